"""What a graph constructor accepts, and what it says about the rest: vertex, slot or edge, what was expected, what came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.errors import ShapeError, StructureError, TypeMismatch

LARGEST = np.iinfo(np.int32).max


def show(value: Any) -> str:
    """A value in a message: its type and, where that is short, itself."""
    text = repr(value)
    return f"{type(value).__name__} {text}" if len(text) <= 40 else type(value).__name__


def array_of(values: Any, what: str) -> npt.NDArray[Any]:
    """`values` (a sequence, an array or a tensor on any device) as a numpy array."""
    if hasattr(values, "detach"):
        return np.asarray(values.detach().cpu())
    try:
        return np.asarray(values)
    except ValueError:
        raise ShapeError(f"{what}: expected a flat list of integers, came lists of different lengths") from None


def integers(values: Any, what: str) -> npt.NDArray[Any]:
    """`values` as a one-dimensional array of integers, in whatever width it came."""
    array = array_of(values, what)
    if array.ndim != 1:
        came = show(values) if array.ndim == 0 else f"shape {list(array.shape)}"
        raise ShapeError(f"{what}: expected a flat list of integers, came {came}")
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind in "iu":
        return array
    items = values if isinstance(values, Sequence) else array.tolist()
    at = first_other(items, is_integer)
    if at is not None:
        raise TypeMismatch(f"{what}: entry {at}: expected an integer, came {show(items[at])}")
    # Only integers beyond 64 bits are left; as objects they compare exactly, so that the range check can name them.
    return np.array(items, dtype=object)


def is_integer(kind: type) -> bool:
    """Whether values of this type are integers; a bool is not one."""
    return issubclass(kind, Integral) and not issubclass(kind, bool)


def first_other(items: Sequence[Any], accepts: Callable[[type], bool]) -> int | None:
    """Where the first item of a type that is not accepted stands; asks once per distinct type."""
    wrong = {kind for kind in set(map(type, items)) if not accepts(kind)}
    return next(at for at, item in enumerate(items) if type(item) in wrong) if wrong else None


def has_length(item: Any) -> bool:
    """Whether `len(item)` works; a tensor without dimensions has the method but not the length."""
    try:
        len(item)
    except TypeError:
        return False
    return True


def check_size(vertices: int, slots: int) -> None:
    """Vertices and slots must be countable in 32 bits."""
    if max(vertices, slots) >= LARGEST:
        raise StructureError(f"Graph: expected fewer than {LARGEST} vertices and slots, came {vertices} and {slots}")


def check_offsets(offsets: npt.NDArray[Any], slots: int) -> None:
    """Offsets start at 0, never fall and end at the number of slots."""
    if len(offsets) == 0:
        raise ShapeError("Graph: offsets: expected one more entry than vertices, came none")
    if offsets[0] != 0:
        raise StructureError(f"Graph: offsets: expected to start at 0, came {offsets[0]}")
    falls = offsets[1:] < offsets[:-1]
    if falls.any():
        at = int(falls.argmax())
        raise StructureError(f"Graph: offsets: expected not to fall, came {offsets[at]} then {offsets[at + 1]} at vertex {at}")
    if offsets[-1] != slots:
        raise ShapeError(f"Graph: offsets: expected to end at {slots}, the length of flat, came {offsets[-1]}")


def check_children(flat: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> None:
    """Every child is a vertex of the graph, or -1 for an empty slot."""
    count = len(offsets) - 1
    bad = (flat < -1) | (flat >= count)
    if not bad.any():
        return
    at = int(bad.argmax())
    vertex = int(np.searchsorted(offsets, at, side="right")) - 1
    raise StructureError(
        f"Graph: vertex {vertex}, slot {at - int(offsets[vertex])}: child {flat[at]} is out of range; "
        f"a graph of {count} vertices has 0 to {count - 1}, and -1 for an empty slot"
    )


def check_ids(ids: npt.NDArray[Any]) -> None:
    """Type ids are small natural numbers."""
    bad = (ids < 0) | (ids > LARGEST)
    if bad.any():
        at = int(bad.argmax())
        raise StructureError(f"Graph: types: vertex {at}: expected a type id from 0 to {LARGEST}, came {ids[at]}")
