"""Constants: numbers that the code makes a tensor of. No tensor is made; the number is fed to whatever uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from weft.lazy.kinds import Kind, kind_of
from weft.lazy.value import ARITHMETIC, COMPARISONS, Value

if TYPE_CHECKING:
    from weft.lazy.tape import Tape

INT = kind_of((), torch.int64)
BOOL = kind_of((), torch.bool)
_LARGE = 1e38


class Constant(Value):
    """`torch.tensor(3)` while recording: its number is known, so asking for it runs nothing."""

    __slots__ = ()
    _known: Any
    """The number. A constant that is written into becomes a plain value, so it has no place of its own for it."""

    def __init__(self, tape: Tape, number: Any, kind: Kind) -> None:
        self._tape = tape
        self._ref = -1
        self._kind = kind
        self._known = number

    def item(self) -> Any:
        return self._known

    def tolist(self) -> Any:
        return self._known

    def _plain(self) -> Any:
        with self._tape.pause():
            return torch.tensor(self._known, dtype=self._kind.dtype, device=self._tape.device)

    def __repr__(self) -> str:
        return f"Value({self._known!r}, dtype={str(self._kind.dtype).removeprefix('torch.')})"


def _known(name: str, plain: Any) -> Any:
    """An operator of which a number and a number give a number; with anything else it is recorded."""
    compute = getattr(Tensor, name)

    def operator(self: Constant, other: Any) -> Any:
        if other.__class__ is not Constant and other.__class__ not in (bool, int, float):
            return plain(self, other)
        with self._tape.pause():
            found = compute(self._plain(), other._plain() if other.__class__ is Constant else other)
        if not isinstance(found, Tensor) or found.dtype not in _NUMBERS:
            return plain(self, other)
        return Constant(self._tape, found.item(), kind_of((), found.dtype))

    operator.__name__ = name
    return operator


_NUMBERS = (torch.bool, torch.int64, torch.float32, torch.float64)

for _name in (*COMPARISONS, *ARITHMETIC[:7], *(f"r{name}" for name in ARITHMETIC[:7])):
    setattr(Constant, f"__{_name}__", _known(f"__{_name}__", getattr(Value, f"__{_name}__")))


def constant(tape: Tape, number: Any, dtype: torch.dtype | None = None) -> Constant | None:
    """The constant of a Python number, or None if it is not a plain one."""
    cls = number.__class__
    if cls is int:
        return Constant(tape, number, INT) if dtype is None or dtype is torch.int64 else _cast(tape, number, dtype)
    if cls is bool and dtype is None:
        return Constant(tape, number, BOOL)
    if cls is float and (dtype is None or dtype.is_floating_point):
        return _cast(tape, number, dtype or torch.get_default_dtype())
    return None


def _cast(tape: Tape, number: Any, dtype: torch.dtype) -> Constant | None:
    """A floating-point constant, rounded as the tensor would be."""
    if dtype is torch.float64:
        return Constant(tape, float(number), kind_of((), dtype))
    if dtype is torch.float32 and abs(number) < _LARGE:
        return Constant(tape, float(np.float32(number)), kind_of((), dtype))
    return None
