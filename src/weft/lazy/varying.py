"""Numbers that change from call to call at one place in the code are fed, so that they do not make a kind of call each.

A Python number among the arguments of an operation is part of what is computed, and good to know for the engine: `x * 0.5` is
one kind of call. But `x * len(words)` would be one kind for every length. So a place that has shown more than a few numbers has
them fed, wherever a tensor may stand for the number: in arithmetic, and in indices such as `table[word]` and `scores[t, tag]`.
"""

from __future__ import annotations

from math import prod
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from weft.lazy.constants import INT, Constant, constant
from weft.lazy.kinds import kind_of
from weft.lazy.tape import Tape
from weft.lazy.value import INTEGERS, Value, picked, row_of_model

FEW = 3
FEW_ROWS = 16
"""Of a tensor of the model with no more rows each row is a kind of call: there cannot be many, and they are recorded faster."""
_SMALL, _LARGE = 1e-37, 1e38
"""What float32 holds; others are no longer themselves when a tensor stands for them."""
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def with_fed_numbers(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Call:
    """The function and its arguments; numbers that vary at this place are replaced by ones that are fed."""
    if func is Tensor.__getitem__:
        return _indexed(tape, func, args, kwargs, frame)
    rule = RULES.get(func)
    if rule is None:
        filled = FILLED.get(func)
        return (func, args, kwargs) if filled is None else _filled(tape, func, args, kwargs, frame, filled)
    if not any(item.__class__ is float or item.__class__ is int for item in (*args, *kwargs.values())):
        return func, args, kwargs
    names, others = rule
    if (kwargs and not kwargs.keys() <= names.keys() | others) or len(args) > len(names) + len(others):
        return func, args, kwargs
    values = [item for item in (*args, *kwargs.values()) if isinstance(item, Value)]
    dtypes = {value._kind.dtype for value in values if value._kind.dtype is not torch.bool}
    places = {at: args[at] for at in names.values() if at < len(args)} | {
        name: item for name, item in kwargs.items() if name in names
    }
    numbers = {at: item for at, item in places.items() if _is_number(item)}
    if not numbers or len(dtypes) != 1:
        return func, args, kwargs
    (dtype,) = dtypes
    if not _fits(func, numbers.values(), dtype) or not _varies(tape, func, dtype, tuple(numbers.values()), frame):
        return func, args, kwargs
    kind = kind_of((), dtype)
    turn = int if dtype is torch.int64 else float
    fed = {at: Constant(tape, turn(item), kind) for at, item in numbers.items()}
    func = REPLACED.get(func, func)
    return func, tuple(fed.get(at, item) for at, item in enumerate(args)), {n: fed.get(n, item) for n, item in kwargs.items()}


def _indexed(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Call:
    """An index of numbers, behind whole dimensions or not: `m[i, j]` is `m[i][j]`, and `m[:, j]` a row of `m`, turned."""
    value, index = args
    found = _fed_index(tape, func, value, index, frame)
    if found is None:
        return func, args, kwargs
    numbers, lead = found
    for number in numbers[:-1]:
        value = tape.record(func, (_turned(tape, value, lead, frame), number), {}, frame)
    value, number = _turned(tape, value, lead, frame), numbers[-1]
    at = Constant(tape, number, INT) if number.__class__ is int else number
    return row_of_model if isinstance(value, Tensor) else picked, (value, at), kwargs


def written_at(tape: Tape, func: Any, target: Value, index: Any, new: Any, frame: FrameType) -> Call | None:
    """`target[index] = new` as a function that is fed the index; None where it is to be part of what is computed."""
    numbers, lead = _numbers(index)
    is_tensor = isinstance(new, Tensor | Value)
    if not (is_tensor or isinstance(new, bool | int | float)) or not all(number.__class__ is int for number in numbers):
        return None
    shape, dtype = tuple(target._kind.shape), target._kind.dtype
    part, given = shape[:lead] + shape[lead + len(numbers) :], tuple(new.shape) if is_tensor else ()
    if len(given) > len(part) or any(one not in (1, other) for one, other in zip(given[::-1], part[::-1], strict=False)):
        return None
    if _fed_index(tape, func, target, index, frame) is None:
        return None
    if _is_number(new) and _fits(func, (new,), dtype):
        new = Constant(tape, float(new), kind_of((), dtype))
    at = [Constant(tape, number % size, INT) for number, size in zip(numbers, shape[lead:], strict=False)]
    return put_at, (target, new, lead, *at), {}


def put_at(whole: Tensor, new: Any, lead: int, *at: Tensor) -> Tensor:
    """A copy of the whole with new numbers in one place, or in one place of each row."""
    chosen = torch.ones((), dtype=torch.bool, device=whole.device)
    for dim, index in enumerate(at, lead):
        here = torch.arange(whole.shape[dim], device=whole.device) == index
        chosen = chosen & here.reshape(-1, *[1] * (whole.dim() - dim - 1))
    new = new.to(whole.dtype) if isinstance(new, Tensor) else torch.full((), new, dtype=whole.dtype, device=whole.device)
    part = new.expand(whole.shape[:lead] + whole.shape[lead + len(at) :])
    return torch.where(chosen, part.reshape(*whole.shape[:lead], *[1] * len(at), *part.shape[lead:]), whole)


def _fed_index(tape: Tape, func: Any, value: Any, index: Any, frame: FrameType) -> tuple[tuple[Any, ...], int] | None:
    """The numbers in an index, and the dimensions before them, if they are to be fed."""
    shape = _shape(tape, value)
    numbers, lead = _numbers(index)
    sizes = shape[lead : lead + len(numbers)]
    if not numbers or len(sizes) < len(numbers) or not all(map(_is_inside, numbers, sizes)):
        return None
    kind = shape if isinstance(value, Tensor) else value._kind
    is_known = all(each.__class__ is int for each in numbers)
    if is_known and isinstance(value, Tensor) and prod(sizes) <= FEW_ROWS:
        return None
    return (numbers, lead) if not is_known or _varies(tape, func, kind, (lead, *numbers), frame) else None


def _shape(tape: Tape, value: Any) -> tuple[int, ...]:
    """The shape of a value or of a tensor of the model; other tensors are data, and have none here."""
    if isinstance(value, Value):
        return tuple(value._kind.shape)
    is_of_model = isinstance(value, Tensor) and value.numel() > 0 and tape.state.place_of(value) is not None
    return tuple(value.shape) if is_of_model else ()


def _numbers(index: Any) -> tuple[tuple[Any, ...], int]:
    """The numbers in an index that has nothing behind them, and how many whole dimensions come before."""
    index = index if index.__class__ is tuple else (index,)
    lead, end = 0, len(index)
    while end and (index[end - 1] is Ellipsis or _is_whole(index[end - 1])):
        end -= 1
    while lead < end and _is_whole(index[lead]):
        lead += 1
    numbers = index[lead:end]
    return (numbers, lead) if all(each.__class__ is int or _is_index(each) for each in numbers) else ((), 0)


def _is_index(item: Any) -> bool:
    return isinstance(item, Value) and not item._kind.shape and item._kind.dtype in INTEGERS


def _is_inside(number: Any, size: int) -> bool:
    """What is wrong with a number that is known is said at once."""
    return number.__class__ is not int or -size <= number < size


def _is_whole(part: Any) -> bool:
    return part.__class__ is slice and part.start is None and part.stop is None and part.step is None


def _turned(tape: Tape, value: Any, dim: int, frame: FrameType) -> Any:
    return tape.record(Tensor.movedim, (value, dim, 0), {}, frame) if dim else value


def _filled(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType, filled: Any) -> Call:
    """`torch.full` and `torch.full_like` with a number: what it fills is fed."""
    given: tuple[Any, ...] = (*args, *kwargs.values(), None, None)
    like, number, *rest = given
    if rest != [None, None] or kwargs.keys() > {"fill_value"} or number.__class__ is not float or not abs(number) < _LARGE:
        return func, args, kwargs
    dtype = like._kind.dtype if isinstance(like, Value) else torch.get_default_dtype()
    if dtype not in _FLOATS or not _varies(tape, func, dtype, (number,), frame):
        return func, args, kwargs
    made = constant(tape, number, dtype)
    return (func, args, kwargs) if made is None else (filled, (like, made), {})


def _is_number(item: Any) -> bool:
    return item.__class__ is float or item.__class__ is int


def _fits(func: Any, numbers: Any, dtype: torch.dtype) -> bool:
    """Whether a tensor of this dtype can stand for these numbers."""
    if dtype in _FLOATS:
        if func in ROOTS and any(abs(number) == 0.5 for number in numbers):
            return False  # by itself such a number is a root, which has other signs at infinity and zero
        return all(number == 0 or _SMALL < abs(number) < _LARGE for number in numbers)
    whole = dtype is torch.int64 and func in EXACT
    return whole and all(number.__class__ is int and abs(number) < 1 << 62 for number in numbers)


def _varies(tape: Tape, func: Any, kind: Any, numbers: tuple[Any, ...], frame: FrameType) -> bool:
    if tape.is_portable:
        return True  # what is recorded must not depend on what this process has seen
    seen = tape.world.numbers.setdefault((func, kind, id(frame.f_code), frame.f_lasti), set())
    if len(seen) <= FEW:
        seen.add(numbers)
        if len(seen) > FEW:  # the first few were recorded as parts of what is computed: no longer
            tape.tables.quick.clear()
            tape.tables.fast.clear()
    return len(seen) > FEW


def full_of(size: Any, number: Tensor) -> Tensor:
    """`torch.full` of a number that is fed."""
    return number.expand(size).clone()


def full_like_of(like: Tensor, number: Tensor) -> Tensor:
    """`torch.full_like` of a number that is fed."""
    return number.expand(like.shape).clone()


def filled(input: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """`masked_fill` with a number that is fed, which `torch.vmap` does not know."""
    return torch.where(mask, value, input)


REPLACED: dict[Any, Any] = {torch.masked_fill: filled, Tensor.masked_fill: filled}
_FLOATS = (torch.float32, torch.float64)
FILLED = {torch.full: full_of, torch.full_like: full_like_of}
_DUNDERS = "add radd sub rsub mul rmul truediv rtruediv lt le gt ge eq ne".split()
ROOTS = (torch.pow, Tensor.pow, Tensor.__pow__)
EXACT = frozenset(getattr(Tensor, f"__{name}__") for name in _DUNDERS)
"""Operators that treat whole numbers and a tensor of them alike."""
Rule = tuple[dict[str, int], frozenset[str]]


def _rules() -> dict[Any, Rule]:
    """For functions of numbers: the names and places of arguments that may be fed, and the names of the others."""
    found: dict[Any, Rule] = {}

    def rule(functions: str, others: str, names: str) -> None:
        others_in_order, named = others.split(), names.split()
        for name in functions.split():
            for holder in (torch, Tensor):
                func = getattr(holder, name, None)
                if func is not None:
                    found[func] = {n: len(others_in_order) + at for at, n in enumerate(named)}, frozenset(others_in_order)

    dunders = [*_DUNDERS, *"pow rpow mod rmod floordiv rfloordiv".split()]
    for name in dunders:
        if hasattr(Tensor, f"__{name}__"):
            found[getattr(Tensor, f"__{name}__")] = {"other": 1}, frozenset(("self",))
    rule("add sub mul div true_divide multiply divide subtract fmod remainder lt le gt ge eq ne", "input", "other")
    rule("pow", "input", "exponent")
    rule("clamp clip", "input", "min max")
    rule("clamp_min", "input", "min")
    rule("clamp_max", "input", "max")
    rule("masked_fill", "input mask", "value")
    rule("lerp", "input end", "weight")
    found[torch.where] = {"input": 1, "other": 2}, frozenset(("condition",))
    found[Tensor.where] = {"other": 2}, frozenset(("self", "condition"))
    return found


RULES = _rules()
