"""Writing into values is functional: the value, its views and what it is a view of stand for new tensors from then on."""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch
from torch import Tensor

from weft.errors import TraceError
from weft.lazy.calls import record
from weft.lazy.constants import Constant
from weft.lazy.drafts import written
from weft.lazy.given import known
from weft.lazy.ops import VIEWS
from weft.lazy.stacks import Stacked, freeze_rows, settle_owner, settle_whole
from weft.lazy.tape import Tape
from weft.lazy.value import Value
from weft.lazy.varying import written_at
from weft.lazy.views import own_copy, straight_through


def record_inplace(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    """Record an in-place function as a function; its first argument stands for the result."""
    if tape.ended is not None:
        return record(tape, func, args, kwargs, frame)
    target: Value = args[0]
    if isinstance(target, Constant) and _counted(tape, target, func, args[1:], kwargs):
        return target
    if isinstance(target, Stacked):
        target.settle()
    elif id(target) in tape.handed:
        settle_owner(tape, target)
    if str(getattr(func, "__name__", "")) in RESHAPING:
        name = func.__name__
        raise TraceError(f"{name}: a Value cannot change its own shape; use v = v.{name[:-1]}(...), which gives a view")
    views = tape.views
    old, root = _settled(tape, target)
    draft = written(tape, target, args[1], args[2]) if func is Tensor.__setitem__ else None
    if draft is not None:
        _become(tape, target, draft)
        return target
    if settle_whole(tape, root):
        old, root = _settled(tape, target)
    if not tape.watchful and (old._ref != root or root in views.viewed):
        tape.watch()  # before anything is recorded: references of what was left for later are others from here on
        old, root = _settled(tape, target)
    name = str(getattr(func, "__name__", func))
    if root in views.of_model:
        raise TraceError(
            f"{name}: this Value is a view (an index, slice or reshape) of a tensor of the model, which would stay unchanged; "
            "use .clone() first, or collect the values in a list and use torch.stack"
        )
    fed = written_at(tape, func, old, args[1], args[2], frame) if func is Tensor.__setitem__ else None
    new = record(tape, *(fed or (_writing(func), (old, *args[1:]), kwargs)), frame)
    if isinstance(new, Tensor):  # what is written where depends on numbers: they were asked for
        new = known(tape, new)
    if new._kind is not target._kind:
        raise TraceError(f"{name}: the result is {new._kind}, which cannot be written into a Value of {target._kind}")
    if not tape.watchful:
        _become(tape, target, _with_graph_of(tape, old, new, frame))
        return target
    freeze_rows(tape, root)
    whole = views.whole_with(tape, old._ref, new)
    views.moved[root] = whole = _with_graph_of(tape, Value(tape, root, whole._kind), whole, frame)
    if old._ref == root:
        _become(tape, target, whole)
    return target


def _settled(tape: Tape, target: Value) -> tuple[Value, int]:
    """What a value stands for now, and the reference of what it is a view of in the end."""
    tape.views.update(tape)
    old = tape.views.current(tape, target) if tape.watchful else target
    return old, tape.views.root(tape, old._ref)


def _become(tape: Tape, target: Value, new: Value) -> None:
    """The object that the code holds stands for another reference."""
    if target.__class__ is not Value:
        target.__class__, target._known = Value, None
    target._ref = new._ref
    if tape.values is not None:
        tape.values.append(target)


def _counted(tape: Tape, target: Constant, func: Any, others: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """A number changed by numbers stays a known number."""
    given = (*others, *kwargs.values())
    is_drawing = str(getattr(func, "__name__", "")).endswith(DRAWING)
    if is_drawing or not all(isinstance(item, int | float | Constant) for item in given):
        return False
    with tape.pause():
        number = target._plain()
        func(number, *(item._plain() if isinstance(item, Constant) else item for item in others), **kwargs)
        target._known = number.item()
    return True


def _with_graph_of(tape: Tape, old: Value, new: Value, frame: FrameType) -> Value:
    """Written without gradients, the new numbers keep the gradients of the old tensor, as in PyTorch."""
    if not tape.setting.detached or old.__class__ is not Value or not old.requires_grad:
        return new
    torch._C._set_grad_enabled(True)
    tape.set_context()
    try:
        found: Value = record(tape, straight_through, (old, new), {}, frame)
    finally:
        torch._C._set_grad_enabled(False)
        tape.set_context()
    return found


DRAWING = ("normal_", "uniform_", "bernoulli_", "random_", "exponential_", "cauchy_", "geometric_")
"""How the names of functions end that draw random numbers into a tensor."""

RESHAPING = frozenset("unsqueeze_ squeeze_ t_ transpose_ swapaxes_ swapdims_ as_strided_".split())
"""What changes how a tensor looks at its memory."""

_written: dict[Any, Any] = {}


def _writing(func: Any) -> Any:
    """The in-place function as one that returns what it has written into."""
    found = _written.get(func)
    if found is None:
        name = str(getattr(func, "__name__", "write"))
        twin = _twin(name)

        def write(target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if name == "__setitem__" and _is_mask(args[0], target) and _is_single(args[1]):
                return torch.where(
                    _wide(args[0], target), torch.as_tensor(args[1], dtype=target.dtype, device=target.device), target
                )
            if twin is not None:
                result: Tensor = twin(target, *args, **kwargs)
                if result.shape == target.shape and torch.can_cast(result.dtype, target.dtype):
                    return result.to(target.dtype)
            target = _drawn_apart(target) if name.endswith(DRAWING) else own_copy(target, (*args, *kwargs.values()))
            func(target, *args, **kwargs)
            return target

        write.__name__ = name
        found = _written.setdefault(func, write)
    return found


def _twin(name: str) -> Any:
    """The function that gives what an in-place function writes, if there is one: more of them have a rule for batches."""
    plain = f"__{name[3:]}" if name.startswith("__i") else name[:-1]
    if name == "__setitem__" or name.endswith(DRAWING) or plain.strip("_") in VIEWS:
        return None
    return getattr(Tensor, plain, None)


def _is_mask(index: Any, target: Tensor) -> bool:
    return isinstance(index, Tensor) and index.dtype is torch.bool and index.shape == target.shape[: index.dim()]


def _is_single(item: Any) -> bool:
    return isinstance(item, bool | int | float) or (isinstance(item, Tensor) and not item.dim())


def _wide(mask: Tensor, target: Tensor) -> Tensor:
    return mask.reshape(*mask.shape, *[1] * (target.dim() - mask.dim()))


def _drawn_apart(target: Tensor) -> Tensor:
    """A tensor that every row has for itself, so that every row draws its own numbers into it."""
    return torch.rand_like(target) if target.is_floating_point() else torch.randint_like(target, 2)
