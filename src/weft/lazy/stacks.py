"""`torch.stack` of a list of values stays a list for as long as it can.

What is done to every row alike is recorded row by row, and reductions over the rows are one kind of call for any length; so
attention over histories of different lengths batches across examples. What needs the stack as a whole gets it, and so does what
is done to a few rows, such as the children of a node: a kind of call for each of a few lengths takes far less time to record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from sys import _getframe
from types import FrameType
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from weft.errors import TraceError
from weft.lazy.calls import record
from weft.lazy.kinds import FEW_SIZES, kind_of
from weft.lazy.quick import Quick, known
from weft.lazy.reduce import reduce_values
from weft.lazy.tape import Tape
from weft.lazy.value import ARITHMETIC, COMPARISONS, STEP, Value


class _Rows:
    """What a stack knows: its rows, the whole if it was made (of which rows), whether rows were given out, and its views."""

    __slots__ = ("given_out", "of", "rows", "source", "views", "whole")

    def __init__(self, rows: list[Value], given_out: bool) -> None:
        self.rows, self.given_out = rows, given_out
        self.whole: Any = None
        self.of: list[int] = []
        self.source: tuple[Stacked, _View] | None = None
        """The stack that this one is a view of."""
        self.views: list[_View] = []

    def is_made_of(self, ref: int) -> bool:
        """Whether this is the reference of the whole, or of that of a view."""
        return (self.whole is not None and self.whole._ref == ref) or any(ref in view.wholes for view in self.views)


class _View:
    """A slice or columns of a stack, which is a stack itself: how it is taken of the whole, and what was made of its rows."""

    __slots__ = ("stack", "take", "wholes")

    def __init__(self, stack: Stacked, take: Callable[[Any], Any]) -> None:
        self.stack, self.take = ref(stack), take
        self.wholes: list[int] = []


class GivenOut(NamedTuple):
    """A row that code has got from a stack, and when; its reference is that of what was stacked."""

    row: ReferenceType[Value]
    stack: Callable[[], Stacked | None]
    when: int
    ref: int


_LINKED = object()
"""What a row knows that is a view of something else than its stack by now, and follows it."""


class Stacked(Value):
    """A stack along a new first dimension, kept as the list of its rows. Written into, it becomes a plain value."""

    __slots__ = ()
    _known: Any

    def __init__(self, tape: Tape, parts: Sequence[Value], copies: bool = True, fresh: bool = False) -> None:
        """`copies`: the rows are the stack's own, as torch's are; `fresh`: nobody else has these."""
        kind = parts[0]._kind
        super().__init__(tape, -1, kind_of((len(parts), *kind.shape), kind.dtype))
        own = [tape.make(tape, part._ref, part._kind) for part in parts] if copies and not fresh else list(parts)
        self._known = _Rows(own, not copies)
        if tape.watchful and copies:
            for part in self.parts:
                make_own(tape, part)
        tape.stacks.append(ref(self))

    @property
    def parts(self) -> list[Value]:
        """The rows; this object's own, so that what is written into one of them is seen here."""
        rows: list[Value] = self._known.rows
        return rows

    def _plain(self) -> Any:
        known = self._known
        refs = [part._ref for part in known.rows]
        if known.whole is None or known.of != refs:
            known.whole, known.of = _whole(self._tape, known.rows, _getframe(1)), refs
            if known.source is not None:
                known.source[1].wholes.append(known.whole._ref)
        return known.whole

    def __iter__(self) -> Iterator[Any]:
        return iter([self._given_out(part) for part in self.parts])

    def tolist(self) -> Any:
        return [part.tolist() for part in self.parts]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int) and not isinstance(index, bool):
            return self._given_out(self.parts[index])
        if isinstance(index, slice) and self.parts[index]:
            self._known.given_out = True
            return self._viewed(Stacked(self._tape, self.parts[index], copies=False), lambda whole: whole[index])
        rest = index[1:] if isinstance(index, tuple) else ()
        if rest and index[0] in (slice(None), ...) and (index[0] != ... or rest == (None,)):
            found = self.mapped(lambda part: part[(..., *rest) if index[0] is ... else rest])
            return self._viewed(found, lambda whole: whole[index])
        return self._plain()[index]

    def _viewed(self, found: Any, take: Callable[[Any], Any]) -> Any:
        """What was found row by row, as a view; `take` gives it of the whole."""
        if isinstance(found, Stacked):
            view = _View(found, take)
            found._known.source = self, view
            self._known.views.append(view)
        return found

    def mapped(self, fn: Callable[[Any], Any]) -> Any:
        """The stack of what any function gives for every row."""
        return stacked(self._tape, [fn(part) for part in self.parts], fresh=True)

    def _each(self, func: Any, *rest: Any, before: tuple[Any, ...] = (), **more: Any) -> Any:
        """The same for a function that is recorded; what else it takes is the same for all."""
        other = [[one._plain() if one.__class__ is Stacked else one for one in some] for some in (before, rest)]
        return func.each(*other[0], self, *other[1], **more)

    def _reduced(self, how: str) -> Any:
        return reduce_values(self._tape, how, self.parts, _getframe(2))

    # Writing

    def _given_out(self, part: Value) -> Value:
        self._known.given_out = True
        tape = self._tape
        known = tape.handed.get(id(part))
        if known is None or known.row() is not part:
            if known is not None:
                tape.gone.append(known)  # its views may be there still
            stack = ref(self) if self._known.source is None else lambda: self  # what it is a view of is needed still
            tape.handed[id(part)] = GivenOut(ref(part), stack, tape.next, part._ref)
        return part

    def settle(self) -> None:
        """Become a plain value, of which the rows that were given out are views, or a view of one."""
        source = self._known.source
        if source is None:
            self._become(self._plain())
        else:
            source[0].settle()

    def _become(self, whole: Any) -> None:
        tape, known = self._tape, self._known
        if known.given_out:
            for part in known.rows:
                _check_handed(tape, part)
        self.__class__, self._ref, self._known = Value, whole._ref, None  # type: ignore[assignment]  # another class
        if tape.values is not None:
            tape.values.append(self)
        if known.given_out:
            rows = _with_gradients(tape, lambda: [self[at] for at in range(len(known.rows))])
            for part, row in zip(known.rows, rows, strict=True):
                part._ref, part._known = row._ref, _LINKED
        for view in known.views:
            _follow(tape, self, view)


def _follow(tape: Tape, whole: Value, view: _View) -> None:
    """What was made of a view row by row is a view of the whole from now on."""
    found, taken = view.stack(), _with_gradients(tape, lambda: view.take(whole))
    tape.views.update(tape)
    for made in view.wholes:
        if tape.views.viewed.get(made):
            tape.watch()
            tape.views.moved[made] = taken
    if isinstance(found, Stacked):
        found._become(taken)


def _whole(tape: Tape, rows: list[Value], frame: FrameType) -> Any:
    """The rows as one value."""
    return _with_gradients(tape, lambda: record(tape, torch.stack, (rows,), {}, frame))


def _with_gradients(tape: Tape, make: Callable[[], Any]) -> Any:
    """What is made of a stack. That was made with gradients, so it has them, wherever it is needed first."""
    if not tape.setting.detached:
        return make()
    torch._C._set_grad_enabled(True)
    try:
        tape.set_context()
        return make()
    finally:
        torch._C._set_grad_enabled(False)
        tape.set_context()


def settle_owner(tape: Tape, part: Value) -> None:
    """A row of a stack is written into: it is the row alone, and where the whole was made, that and its views follow."""
    found = _owner(tape, part)
    if found is not None:
        known = found._known
        if known.whole is not None or known.source is not None or known.views:
            found.settle()
        make_own(tape, part)


def settle_whole(tape: Tape, root: int) -> bool:
    """A view of what was made of a stack as a whole is written into: from now on the stack is that whole. Is there one?"""
    made = [found for entry in tape.stacks if isinstance(found := entry(), Stacked) and found._known.is_made_of(root)]
    for found in made:
        if isinstance(found, Stacked):  # still: it may be a view of one before
            found.settle()
    return bool(made)


def _owner(tape: Tape, part: Value) -> Stacked | None:
    """The stack that has given out this row, if it is still one."""
    entry = tape.handed.get(id(part))
    found = None if entry is None or entry.row() is not part else entry.stack()
    return found if isinstance(found, Stacked) else None


def freeze_rows(tape: Tape, root: int) -> None:
    """Before something is written into: rows of stacks are copies of it."""
    tape.stacks = [entry for entry in tape.stacks if isinstance(entry(), Stacked)]
    rows = [part for entry in tape.stacks for part in entry().parts]
    for entry in (*tape.handed.values(), *tape.gone):
        row = entry.row()
        if row is not None:
            rows.append(row)
        elif tape.views.root(tape, entry.ref) == root:
            _check_no_views(tape, entry)
    for row in rows:
        if tape.views.root(tape, row._ref) == root:
            make_own(tape, row)


def make_own(tape: Tape, row: Value) -> None:
    """Give a row a reference of its own; until then it has that of the value that was stacked."""
    if getattr(row, "_known", None) is _LINKED:
        return
    _check_handed(tape, row)
    row._ref, row._known = row.clone()._ref, _LINKED


def _check_handed(tape: Tape, row: Value) -> None:
    entry = tape.handed.get(id(row))
    if entry is not None and entry.row() is row and getattr(row, "_known", None) is not _LINKED:
        tape.views.update(tape)
        _check_no_views(tape, entry)


def _check_no_views(tape: Tape, entry: GivenOut) -> None:
    """Views of a row cannot be told from views of what was stacked."""
    if tape.views.last.get(entry.ref, -1) >= entry.when:
        raise TraceError(
            "a row of a torch.stack is written into, or what was stacked is, after views of one of them were taken; use "
            ".clone() before torch.stack"
        )


def stacked(tape: Tape, parts: list[Any], fresh: bool = False) -> Any:
    """A stack of these values, as a list where they are all of one kind; `fresh`: nobody else has them."""
    kind = parts[0]._kind if isinstance(parts[0], Value) else None
    for part in parts:
        if part.__class__ is not Value or part._tape is not tape or part._kind is not kind:
            return torch.stack([part._plain() if isinstance(part, Value) else part for part in parts])
    return Stacked(tape, parts, fresh=fresh)


def stack(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    """`torch.stack` while recording."""
    parts = args[0] if args else kwargs.get("tensors")
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if isinstance(parts, list | tuple) and parts and dim == 0 and kwargs.get("out") is None and not tape.setting.detached:
        first = parts[0]
        if all(part.__class__ is Value and part._tape is tape and part._kind is first._kind for part in parts):
            return Stacked(tape, parts)
    from weft.lazy.mode import ordinary

    return ordinary(tape, func, args, kwargs, frame)


def reduced(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    """The function on a stack that is still a list, or NotImplemented where it needs the whole."""
    rule = RULES.get(getattr(func, "__name__", "").strip("_"))
    if rule is None or not any(isinstance(item, Stacked) for item in args):
        return NotImplemented
    return rule(_Recorder(tape, func, frame), *args, **kwargs)


class _Recorder:
    """A function as one that records its calls at one place."""

    __slots__ = ("frame", "func", "tape")

    def __init__(self, tape: Tape, func: Any, frame: FrameType) -> None:
        self.tape, self.func, self.frame = tape, func, frame

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return record(self.tape, self.func, args, kwargs, self.frame)

    def each(self, *args: Any, **kwargs: Any) -> Any:
        """The stack of what calls with one row after the other of the stacks among the arguments give.

        If they are like the first, they are written down all at once: the same call, with references of other values.
        """
        tape, many = self.tape, next(len(one.parts) for one in args if one.__class__ is Stacked)
        columns = [one.parts if one.__class__ is Stacked else [one] * many for one in args]
        head = [column[0] for column in columns]
        found = [self(*head, **kwargs)]
        quick = None if kwargs else self._quick(head)
        if quick is None or quick.single is None:
            found += [self(*row, **kwargs) for row in zip(*[column[1:] for column in columns], strict=True)]
            return stacked(tape, found, fresh=True)
        values = [[value._ref for value in column[1:]] for column in columns if column[0].__class__ is Value]
        first, make, kind = tape.next, tape.make, quick.single
        tape.next = first + STEP * (many - 1)
        tape.type += [quick.number] * (many - 1)
        tape.arguments += values[0] if len(values) == 1 else chain.from_iterable(zip(*values, strict=True))
        return Stacked(tape, found + [make(tape, ref, kind) for ref in range(first, tape.next, STEP)], fresh=True)

    def _quick(self, args: list[Any]) -> Quick | None:
        """The entry of a call, if others like it differ from it in their values alone."""
        feeds: list[Any] = []
        found = known(self.tape, self.func, args, self.frame, [], feeds)
        return None if feeds or any(one.__class__ is list or one.__class__ is tuple for one in args) else found


def _is_first(x: Any, dim: Any) -> bool:
    return isinstance(dim, int) and not isinstance(dim, bool) and dim in (0, -x.ndim)


def _reduction(how: str) -> Callable[..., Any]:
    def rule(func: Any, x: Any, dim: Any = None, keepdim: bool = False, *rest: Any, **more: Any) -> Any:
        single = dim[0] if isinstance(dim, tuple | list) and len(dim) == 1 else dim
        if not isinstance(x, Stacked) or rest or more or keepdim or not _is_first(x, single) or not x.is_floating_point():
            return NotImplemented
        return x._reduced(how)

    return rule


def is_long(x: Any) -> bool:
    """Whether it is a stack of more than a few rows; where flushes are many and small, any."""
    return isinstance(x, Stacked) and (len(x.parts) > FEW_SIZES or x._tape.values is not None)


def _softmax(func: Any, x: Any, dim: Any = None, *rest: Any, **more: Any) -> Any:
    if not is_long(x) or not _is_first(x, dim) or more or any(item is not None for item in rest):
        return NotImplemented
    with_powers = _powers(x)
    return with_powers / with_powers._reduced("sum")


def _log_softmax(func: Any, x: Any, dim: Any = None, *rest: Any, **more: Any) -> Any:
    if not is_long(x) or not _is_first(x, dim) or more or any(item is not None for item in rest):
        return NotImplemented
    lower = x - x._reduced("max").detach()
    return lower - lower.exp()._reduced("sum").log()


def _logsumexp(func: Any, x: Any, dim: Any = None, *rest: Any, **more: Any) -> Any:
    if not is_long(x) or not _is_first(x, dim) or more or any(rest):
        return NotImplemented
    top = x._reduced("max").detach()
    top = top.masked_fill(top.abs() == math.inf, 0.0)
    return (x - top).exp()._reduced("sum").log() + top


def _powers(x: Stacked) -> Any:
    top = x._reduced("max").detach()
    return (x - top).exp()


def _pointwise(func: Any, x: Any, *rest: Any, **more: Any) -> Any:
    if not is_long(x) or any(isinstance(item, Value | Tensor) for item in (*rest, *more.values())):
        return NotImplemented
    return x._each(func, *rest, **more)


def _binary(func: Any, x: Any, y: Any, **more: Any) -> Any:
    if not is_long(x) and not is_long(y):
        return NotImplemented
    if isinstance(x, Stacked) and isinstance(y, Stacked):
        if len(x.parts) == len(y.parts) and x.ndim == y.ndim:
            return func.each(x, y, **more)
    elif isinstance(x, Stacked) and _fits(y, x):
        return x._each(func, y, **more)
    elif isinstance(y, Stacked) and _fits(x, y):
        return y._each(func, before=(x,), **more)
    return NotImplemented


def _fits(other: Any, x: Stacked) -> bool:
    return isinstance(other, int | float) or (isinstance(other, Value | Tensor) and other.ndim < x.ndim)


def _matmul(func: Any, x: Any, y: Any) -> Any:
    if is_long(x):
        if isinstance(y, Stacked):
            if x.ndim == 1 and y.ndim == 2 and len(x.parts) == len(y.parts) and x.is_floating_point():
                return (x.unsqueeze(-1) * y)._reduced("sum")
        elif x.ndim == 2 and isinstance(y, Value | Tensor) and y.ndim in (1, 2):
            return x._each(func, y)
    return NotImplemented


def _mv(func: Any, x: Any, y: Any) -> Any:
    if isinstance(y, Stacked) or not isinstance(y, Value | Tensor) or y.ndim != 1:
        return NotImplemented
    return _matmul(_Recorder(func.tape, torch.matmul, func.frame), x, y)


def _unsqueeze(func: Any, x: Any, dim: Any) -> Any:
    if not is_long(x) or func.tape.setting.detached or dim not in (-1, x.ndim):
        return NotImplemented
    return x._viewed(x._each(func, -1), lambda whole: whole.unsqueeze(-1))


def _detach(func: Any, x: Any) -> Any:
    return x._viewed(x._each(func), lambda whole: whole.detach()) if is_long(x) else NotImplemented


def _linear(func: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    return x._each(func, weight, bias) if is_long(x) and x.ndim > 1 else NotImplemented


POINTWISE = (
    "abs ceil celu clamp clamp_max clamp_min clone cos elu erf exp expm1 floor gelu hardtanh leaky_relu log log1p "
    "logsigmoid mish neg reciprocal relu relu6 round rsqrt selu sigmoid sign silu sin softplus softsign sqrt "
    "square tan tanh dropout"
).split()
RULES: dict[str, Callable[..., Any]] = {
    "sum": _reduction("sum"),
    "mean": _reduction("mean"),
    "amax": _reduction("max"),
    "amin": _reduction("min"),
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
    "matmul": _matmul,
    "mv": _mv,
    "unsqueeze": _unsqueeze,
    "detach": _detach,
    "linear": _linear,
    **dict.fromkeys(POINTWISE, _pointwise),
    **dict.fromkeys(
        [*COMPARISONS, *ARITHMETIC[:-5], "div", "true_divide", "subtract", "multiply", "maximum", "minimum"], _binary
    ),
}
RULES["matmul"] = _matmul


def _method(name: str, func: Any) -> Callable[..., Any]:
    rule = RULES[name.strip("_")]

    def method(self: Stacked, *args: Any, **kwargs: Any) -> Any:
        tape, frame = self._tape, _getframe(1)
        found = NotImplemented if tape.is_over() else rule(_Recorder(tape, func, frame), self, *args, **kwargs)
        return record(tape, func, (self, *args), kwargs, frame) if found is NotImplemented else found

    return method


def _reflected(name: str) -> Callable[..., Any]:
    rule, func = RULES[name], getattr(Tensor, f"__r{name}__")

    def method(self: Stacked, other: Any) -> Any:
        tape, frame = self._tape, _getframe(1)
        found = NotImplemented if tape.is_over() else rule(_Recorder(tape, func, frame), self, other)
        return record(tape, func, (self, other), {}, frame) if found is NotImplemented else found

    return method


def _install() -> None:
    for name in RULES:
        if hasattr(Tensor, name):
            setattr(Stacked, name, _method(name, getattr(Tensor, name)))
    for name in (*COMPARISONS, *ARITHMETIC[:8]):
        setattr(Stacked, f"__{name}__", _method(f"__{name}__", getattr(Tensor, f"__{name}__")))
    for name in ("add", "sub", "mul", "truediv"):
        setattr(Stacked, f"__r{name}__", _reflected(name))
    for name in ("neg", "abs"):
        setattr(Stacked, f"__{name}__", _method(f"__{name}__", getattr(Tensor, f"__{name}__")))


_install()
