"""What is done to a `torch.stack` that is still a list: row by row, or as a reduction over the rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from sys import _getframe
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from weft.lazy.calls import record
from weft.lazy.kinds import FEW_SIZES
from weft.lazy.quick import Quick, known
from weft.lazy.stacks import Stacked, stacked
from weft.lazy.tape import Tape
from weft.lazy.value import ARITHMETIC, COMPARISONS, STEP, Value


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
