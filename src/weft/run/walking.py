"""Running the walk of a sweep: what every step touches, as one table of addresses."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeVar

import torch
from torch import Tensor

from weft.graph.tape import Value
from weft.run.columns import Address, Addresses, Cut, Same
from weft.run.gather import addresses
from weft.run.indices import ReadIndex
from weft.run.typerun import TypeRun
from weft.run.walk import Walk, dense

T = TypeVar("T")

_C: Any = torch._C

NOTHING = Same(0)


class Walking:
    """One type's columns for all steps of a sweep, and the memory that they point to."""

    def __init__(self, run: TypeRun, walk: Walk) -> None:
        self.run, self.walk, self.steps = run, walk, len(run.cuts)
        self.table = array("q")
        self.alive: list[Any] = []

    def add(self, *columns: Any) -> None:
        """The next columns of the table."""
        for column in columns:
            self.table.extend(column.block(0, self.steps))
            self.alive.append(column)

    def add_given(self, value: Value) -> None:
        """A value that exists for all rows before the sweep."""
        run = self.run
        if value.name in self.walk.matrices:
            column = run.column(value)
            assert isinstance(column, Same)
            matrix, turned, apart = dense(column.item)
            self.add(Address(matrix), Same(int(turned)), Same(apart))
        elif run.code.input_name.get(value.name) == ("seg",):
            assert run.bag is not None
            self.add(as_addresses(run.indices.seg(run.bag)[2]))
        else:
            self.add(addresses(run, value))

    def add_gathered(self, value: Value, at: ReadIndex, keep: bool) -> None:
        """Where the rows that steps gather are put, where they come from (nowhere: they are slices) and the index."""
        run, kind = self.run, at.read.kind
        if value.name in run.store:  # saved by the forward sweep
            more = [NOTHING] * (3 if kind == "sum" else 2)
            self.add(addresses(run, value), *more)
            return
        arena = run.arenas[at.read.value_class, run.code.input_name[value.name][-1]]
        bounds = [] if kind != "sum" else [as_addresses(at.bounds)]
        if kind != "sum" and at.all_slices:
            self.add(Addresses(arena, at.starts), NOTHING, NOTHING, *bounds)
            return
        if keep:
            whole = run.store[value.name] = run.empty(value)
            offsets = run.edge_cuts().offsets if kind == "edges" else run.cuts.offsets
            to: Address | Addresses = Addresses(whole, offsets)
        else:
            most = max(run.cuts.sizes if kind == "sum" else at.cuts.sizes, default=0)
            to = Address(run.fresh((most, *arena.shape[1:]), arena.dtype, arena.device))
        self.add(to, Address(arena), Addresses(at.index.int(), at.cuts.offsets), *bounds)

    def ready(self) -> Walking:
        """The last columns: numbers of rows and edges, segment bounds."""
        run = self.run
        self.table.extend(run.cuts.sizes)
        if run.bag is None:
            self.add(NOTHING, NOTHING)
        else:
            self.table.extend(run.edge_cuts().sizes)
            self.add(as_addresses(run.indices.seg(run.bag)[3]))

        self.most = max(run.cuts.sizes, default=0), 0 if run.bag is None else max(run.edge_cuts().sizes, default=0)
        self.scratch: Tensor = run.fresh((self.walk.room(*self.most),), self.walk.dtype, run.indices.device)
        return self

    def go(self, first: int, last: int, walk: Walk | None = None) -> None:
        """Do the steps from `first` to before `last`; backwards if the last comes first. `walk`: one with less to do."""
        (walk or self.walk).run(self.table, self.steps, first, last, self.scratch, self.most)


def as_addresses(cut: Cut | None) -> Addresses:
    assert cut is not None
    return Addresses(cut.tensor, cut.cuts.offsets)


def walkable(runs: Iterable[TypeRun], walks: Iterable[Walk | None]) -> bool:
    """Whether all types of a sweep have a walk, on memory as it expects it, one thread does their steps and nobody watches."""
    if watched():
        return False
    for run, walk in zip(runs, walks, strict=True):
        if walk is None or not walk.alone(max(run.cuts.sizes, default=0)):
            return False
        if any(arena.dtype != walk.dtype or not arena.is_contiguous() for arena in run.arenas.values()):
            return False
    return True


def watched() -> bool:
    """Whether somebody counts or changes torch's operations, who would not see those of a walk: a mode, or the profiler."""
    return bool(_C._len_torch_dispatch_stack() or _C._len_torch_function_stack() or _C._autograd._profiler_enabled())


def in_runs(items: Sequence[T]) -> Iterator[tuple[T, int]]:
    """Equal items that follow each other, and how many: the types of steps, or what these run."""
    for item, many in groupby(items):
        yield item, len(list(many))
