"""Tensors that a batched call is given: values that know their tensor.

They are recorded like results of an earlier flush, which are handed in again where they are used. So operations on them are
batched, and what asks for their numbers is answered at once. Indexing with numbers and slices gives such a value again.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.lazy.changes import memory, version_of
from weft.lazy.nests import build, flatten
from weft.lazy.pools import Rows
from weft.lazy.tape import Tape
from weft.lazy.value import PARTS, UNKNOWN, Value


class GivenRows(Rows):
    """Tensors of the caller, one per row: never copied."""

    def __init__(self, rows: Tensor, parts: Sequence[Tensor] | None = None) -> None:
        super().__init__(rows)
        self.parts = parts
        self.version = version_of(rows)

    def row(self, at: int) -> Tensor:
        if self.parts is None:
            self.parts = self.rows.unbind(0)
        return self.parts[at]

    def part(self, at: int) -> Tensor:
        return self.row(at)

    def ready(self) -> list[Any] | None:
        return None

    def is_written(self, written: Container[int]) -> bool:
        """Whether the caller's tensor was written into since it was given, or into memory of which this is told."""
        return version_of(self.rows) != self.version or (bool(written) and memory(self.rows) in written)

    def is_changed(self, at: int) -> bool:
        """Nothing was copied: writing into a row is writing into the caller's tensor."""
        return False

    def is_held(self, at: int) -> bool:
        return False


def is_known(tape: Tape, item: Any) -> bool:
    """Whether it is a tensor that becomes a value: an ordinary one, where the batch is computed."""
    if not isinstance(item, Tensor):
        return False
    plain = type(item) in (Tensor, torch.nn.Parameter) and item.layout is torch.strided and not item.is_quantized
    return plain and not item.is_nested and item.device == tape.place


def known(tape: Tape, tensor: Tensor) -> Value:
    """The value that stands for this tensor."""
    return tape.given(GivenRows(tensor.unsqueeze(0), [tensor]), 0)


def known_leaves(tape: Tape, nest: Any) -> Any:
    """The nest with its tensors as values."""
    leaves: list[Any] = []
    structure = flatten(nest, leaves)
    with torch._C.DisableTorchFunction():
        return build(structure, iter([known(tape, leaf) if is_known(tape, leaf) else leaf for leaf in leaves]))


def tensors_of_known(nest: Any) -> Any:
    """The nest with the tensors of those values that know theirs."""
    leaves: list[Any] = []
    structure = flatten(nest, leaves)
    known = [isinstance(leaf, Value) and leaf._ref < UNKNOWN and not leaf._tape.watchful for leaf in leaves]
    return build(structure, iter([leaf._tape.tensor(leaf) if is_ else leaf for leaf, is_ in zip(leaves, known, strict=True)]))


def part_of(value: Value, index: Any) -> Any:
    """An index or slice of a known value, which is known, too; None where the index is not a plain one."""
    if not is_plain(index):
        return None
    tape = value._tape
    tensor = tape.tensor(value)
    with torch._C.DisableTorchFunction():
        part = known(tape, tensor[index])
    tape.views.note(part._ref, value._ref, Tensor.__getitem__, (index,), tape.next)
    return part


def parts_of(value: Value) -> list[Any]:
    """All rows of a known value."""
    tape = value._tape
    tensor = tape.tensor(value)
    with torch._C.DisableTorchFunction():
        parts = [known(tape, row) for row in tensor.unbind(0)]
    for at, part in enumerate(parts):
        tape.views.note(part._ref, value._ref, Tensor.__getitem__, (at,), tape.next)
    return parts


def is_plain(index: Any) -> bool:
    """Whether an index is made of numbers and slices."""
    if isinstance(index, tuple):
        return all(map(is_plain, index))
    if isinstance(index, slice):
        return all(part is None or part.__class__ is int for part in (index.start, index.stop, index.step))
    return index.__class__ is int or index is None or index is Ellipsis


PARTS[:] = [part_of, parts_of]
