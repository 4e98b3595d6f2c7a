"""Numbers that change from call to call at one place in the code are fed, so that they do not make a kind of call each.

A Python number among the arguments of an operation is part of what is computed, and good to know for the engine: `x * 0.5` is
one kind of call. But `x * len(words)` would be one kind for every length. So a place that has shown more than a few numbers has
them fed.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch
from torch import Tensor

from weft.lazy.constants import Constant
from weft.lazy.kinds import kind_of
from weft.lazy.tape import Tape
from weft.lazy.value import Value, picked

FEW = 3
_INDEX = kind_of((), torch.int64)


def with_fed_numbers(tape: Tape, func: Any, args: tuple[Any, ...], frame: FrameType) -> tuple[Any, tuple[Any, ...]]:
    """The function and its arguments; a number that varies at this place is replaced by one that is fed."""
    value, number = args
    cls = number.__class__
    if (cls is not float and cls is not int) or not isinstance(value, Value):
        return func, args
    if func is Tensor.__getitem__:
        if cls is int and value._kind.shape and _varies(tape, func, value, number, frame):
            size = value._kind.shape[0]
            if -size <= number < size:
                return picked, (value, Constant(tape, number, _INDEX))
    elif func in POINTWISE and value._kind.dtype in (torch.float32, torch.float64):
        if _varies(tape, func, value, number, frame):
            kind = kind_of((), value._kind.dtype)
            return func, (value, Constant(tape, float(number), kind))
    return func, args


def _varies(tape: Tape, func: Any, value: Value, number: Any, frame: FrameType) -> bool:
    if tape.is_portable:
        return True  # what is recorded must not depend on what this process has seen
    seen = tape.world.numbers.setdefault((func, value._kind, id(frame.f_code), frame.f_lasti), set())
    if len(seen) <= FEW:
        seen.add(number)
        if len(seen) > FEW:  # the first few were recorded as parts of what is computed: no longer
            tape.tables.quick.clear()
            tape.tables.fast.clear()
    return len(seen) > FEW


_DUNDERS = "add radd sub rsub mul rmul truediv rtruediv lt le gt ge eq ne".split()
POINTWISE = frozenset(getattr(Tensor, f"__{name}__") for name in _DUNDERS)
