"""From computed rows back to what a block gives: tensors with a batch dimension, tuples, ragged sequences."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.blocks.block import Block
from weft.blocks.building import BlockProgram, Counts
from weft.blocks.types import (
    BroadcastSequenceType,
    PyObjectType,
    ResultType,
    SequenceType,
    TensorType,
    TupleType,
    VoidType,
    is_tensor_nest,
)
from weft.errors import TypeMismatch

RAGGED = ("list", "padded", "nested")


@dataclass(eq=False)
class Results:
    """The rows of each leaf of a batch, in example order. Leaves are taken in the order of the type."""

    count: int
    rows: list[Tensor | list[Tensor]]
    lengths: Sequence[Counts]
    objects: Sequence[list[Any]]

    def __post_init__(self) -> None:
        self._rows, self._lengths, self._objects = iter(self.rows), iter(self.lengths), iter(self.objects)

    def batched(self, type: ResultType, ragged: str) -> Any:
        """One result for the whole batch, leaf by leaf."""
        if isinstance(type, TupleType):
            return tuple(self.batched(item, ragged) for item in type)
        if isinstance(type, VoidType):
            return None
        if isinstance(type, TensorType) and not type.ragged:
            return next(self._rows)
        if isinstance(type, TensorType) and ragged != "list":
            whole, lengths = joined(next(self._rows), type)
            return padded([whole], lengths) if ragged == "padded" else nested([whole], lengths)
        if isinstance(type, SequenceType) and not isinstance(type, BroadcastSequenceType) and ragged != "list":
            lengths = next(self._lengths)
            leaves = [next(self._rows) for _ in type.element_type.terminal_types()]
            return padded(leaves, lengths) if ragged == "padded" else nested(leaves, lengths)
        one = self._reader(type)
        return [one() for _ in range(self.count)]

    def single(self, type: ResultType) -> list[Any]:
        """One result for each example."""
        one = self._reader(type)
        return [one() for _ in range(self.count)]

    def _reader(self, type: ResultType) -> Any:
        """A function that gives the next instance of a type."""
        if isinstance(type, TupleType):
            parts = [self._reader(item) for item in type]
            return lambda: tuple(part() for part in parts)
        if isinstance(type, VoidType):
            return lambda: None
        if isinstance(type, BroadcastSequenceType):
            element = self._reader(type.element_type)
            return lambda: itertools.repeat(element())
        if isinstance(type, SequenceType):
            lengths, item = iter(next(self._lengths).tolist()), self._reader(type.element_type)
            return lambda: [item() for _ in range(next(lengths))]
        if isinstance(type, PyObjectType):
            return iter(next(self._objects)).__next__
        rows = next(self._rows)
        each: Iterator[Tensor] = iter(rows.unbind(0) if isinstance(rows, Tensor) else rows)
        return each.__next__


def joined(rows: Tensor | list[Tensor], type: TensorType) -> tuple[Tensor, Counts]:
    """Tensors whose first dimensions differ, one after the other, and how long each is."""
    if not len(rows):
        return torch.zeros(0, *type.shape[1:], dtype=type.dtype), np.zeros(0, np.int64)
    return torch.cat(list(rows)), np.array([len(row) for row in rows], np.int64)


def padded(leaves: Sequence[Any], lengths: Counts) -> tuple[Any, Tensor]:
    """Sequences side by side, filled up with zeros, and a mask that is True where there is an item."""
    longest = int(lengths.max(initial=0))
    mask = np.arange(longest)[None] < lengths[:, None]
    places = torch.from_numpy(np.flatnonzero(mask))
    made = []
    for rows in leaves:
        whole = rows.new_zeros((mask.size, *rows.shape[1:]))
        whole = whole.index_copy(0, places.to(rows.device), rows) if len(rows) else whole
        made.append(whole.reshape(*mask.shape, *rows.shape[1:]))
    device = leaves[0].device if leaves else "cpu"
    return (made[0] if len(made) == 1 else tuple(made)), torch.from_numpy(mask).to(device)


def nested(leaves: Sequence[Any], lengths: Counts) -> Any:
    """Sequences as a jagged nested tensor, or a tuple of these."""
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
    made = [torch.nested.nested_tensor_from_jagged(rows, offsets.to(rows.device)) for rows in leaves]
    return made[0] if len(made) == 1 else tuple(made)


def check_ragged(block: Block, ragged: str) -> None:
    """Whether sequences that the block gives can come in this form."""
    if ragged not in RAGGED:
        raise TypeMismatch(f"ragged: expected one of {', '.join(map(repr, RAGGED))}, got {ragged!r}")
    pending = [block._known("output")]
    while pending and ragged != "list":
        type = pending.pop()
        if isinstance(type, TupleType):
            pending.extend(type)
        elif isinstance(type, SequenceType) and not _can_be_joined(type.element_type):
            raise block._mismatch(f"ragged={ragged!r}: expected sequences of tensors, got {type!r}; use ragged='list'")


def _can_be_joined(item: ResultType) -> bool:
    """Whether items side by side are one tensor, or a tuple of tensors."""
    leaves = item.terminal_types()
    return is_tensor_nest(item) and not any(isinstance(leaf, TensorType) and leaf.ragged for leaf in leaves)


def empty_rows(type: TensorType, device: str) -> Tensor:
    shape = [0 if n is None else n for n in type.shape]
    return torch.zeros((0, *shape), dtype=type.dtype, device=device)


def wanted_of(program: BlockProgram) -> tuple[Any, list[tuple[int, int]]]:
    """All references that a caller will see, and the range of each leaf among them."""
    parts = [*program.outputs, *program.metrics]
    ends = np.cumsum([0, *(len(part) for part in parts)]).tolist()
    return np.concatenate([*parts, np.zeros(0, np.int64)]), list(itertools.pairwise(ends))
