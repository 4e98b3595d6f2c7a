"""Gathers of a sweep: what a recurrent port reads in each step.

Where the rows that every step reads are consecutive, a gather is a view of the arena and nothing is copied. Else each step
copies its rows: into memory that is kept, if backward or a later piece reads them again, or into scratch memory. Kernels that
alone read a state need no copy: they read the arena through the index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.graph.segments import bag_sum
from weft.graph.tape import Value
from weft.run.columns import Address, Addresses, Countable, Cut
from weft.run.indices import ReadIndex
from weft.run.typerun import TypeRun

Action = Callable[[], Any]

SMALL = 1 << 18
"""Numbers in a buffer up to which memory for all steps, cut once, is cheaper than a scratch buffer cut for every step."""


class Rows:
    """Ranges of an arena's rows, one for each step; with a `width`, so many of them side by side."""

    def __init__(self, arena: Tensor, starts: list[int], sizes: list[int], width: int | None = None) -> None:
        self.arena, self.starts, self.sizes, self.width = arena, starts, sizes, width

    def block(self, first: int, last: int) -> Sequence[Tensor]:
        ranges = zip(self.starts[first:last], self.sizes[first:last], strict=True)
        rows = [self.arena.narrow(0, start, size) for start, size in ranges]
        width = self.width
        return rows if width is None else [row.view(len(row) // width, width, *row.shape[1:]) for row in rows]


class Gathering:
    """The column of a value that is gathered step by step, and the actions that gather it."""

    def __init__(self, run: TypeRun, at: ReadIndex, value: Value, keep: bool, by_address: bool = False) -> None:
        key = run.code.input_name[value.name][-1]
        arena = run.arenas[at.read.value_class, key]
        self.at, self.arena, self.by_address = at, arena, by_address
        self.is_sum = at.read.kind == "sum"
        self.acts = self.is_sum or not at.all_slices
        width = at.read.width if at.read.kind == "slots" else None
        if not self.acts:
            self.column: Any = Rows(arena, at.starts, at.cuts.sizes, width)
        elif keep or numbers(run, value) <= SMALL:
            whole = run.store[value.name] = run.empty(value)
            self.column = run.column(value)
            rows = len(whole) * (width or 1)
            self.flat: Any = Cut(whole.view(rows, *arena.shape[1:]), run.cuts if self.is_sum else at.cuts)
        else:
            sizes = run.cuts.sizes if self.is_sum else at.cuts.sizes
            scratch = arena.new_empty((max(sizes, default=0), *arena.shape[1:]))
            zeros = [0] * len(sizes)
            self.column, self.flat = Rows(scratch, zeros, sizes, width), Rows(scratch, zeros, sizes)

    def block(self, first: int, last: int) -> Sequence[Any]:
        rows: Sequence[Tensor] = self.column.block(first, last)
        return [row.data_ptr() for row in rows] if self.by_address else rows

    def actions(self, first: int, last: int) -> list[Action]:
        indices, places = self.at.pieces.block(first, last), self.flat.block(first, last)
        if self.is_sum:
            assert self.at.bounds is not None
            bounds = self.at.bounds.block(first, last)
            return [_Sum(self.arena, *step) for step in zip(indices, bounds, places, strict=True)]
        return [_Select(self.arena, *step) for step in zip(indices, places, strict=True)]


def through_index(run: TypeRun, at: ReadIndex, value: Value) -> tuple[Countable, Countable]:
    """For a kernel that gathers by itself: where the arena is, and where each step's part of the index begins."""
    arena = run.arenas[at.read.value_class, run.code.input_name[value.name][-1]]
    return Address(arena), Addresses(at.index.int(), at.cuts.offsets)


def addresses(run: TypeRun, value: Value) -> Countable:
    """For a kernel: where a value's rows of each step are."""
    whole = run.whole(value)
    if not whole.is_contiguous():
        whole = run.store[value.name] = whole.contiguous()
    if value.rows is None:
        return Address(whole)
    return Addresses(whole, (run.cuts if value.rows.kind == "n" else run.edge_cuts()).offsets)


def numbers(run: TypeRun, value: Value) -> int:
    return math.prod(size for size in (value.shape or ()) if isinstance(size, int)) * max(run.rows, run.edges)


class _Select:
    __slots__ = ("arena", "index", "out")

    def __init__(self, arena: Tensor, index: Tensor, out: Tensor) -> None:
        self.arena, self.index, self.out = arena, index, out

    def __call__(self) -> None:
        torch.index_select(self.arena, 0, self.index, out=self.out)


class _Sum:
    __slots__ = ("arena", "bounds", "index", "out")

    def __init__(self, arena: Tensor, index: Tensor, bounds: Tensor, out: Tensor) -> None:
        self.arena, self.index, self.bounds, self.out = arena, index, bounds, out

    def __call__(self) -> None:
        self.out.copy_(bag_sum(self.arena, self.index, self.bounds))
