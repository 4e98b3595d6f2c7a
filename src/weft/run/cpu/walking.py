"""Running walks: what every step of a sweep, or a piece over all rows, touches, as one list of lines."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

import torch
from torch import Tensor

from weft.graph.tape import Value
from weft.run.columns import Address, Addresses, Countable, Cut, Listed, Same
from weft.run.cpu.walk import Walk, dense
from weft.run.emit import Code
from weft.run.gather import addresses
from weft.run.indices import ReadIndex
from weft.run.spare import Spare
from weft.run.typerun import TypeRun

T = TypeVar("T")

_C: Any = torch._C

NOTHING = Same(0)


class Walking:
    """One type's columns for all steps of a sweep, and the memory that they point to."""

    def __init__(self, run: TypeRun, walk: Walk) -> None:
        self.run, self.walk = run, walk
        self.lines: list[int] = []
        self.alive: list[Any] = []

    def add(self, *columns: Countable) -> None:
        """The next columns."""
        for column in columns:
            self.lines += column.line()
        self.alive += columns

    def add_given(self, value: Value) -> None:
        """A value that exists for all rows before the sweep."""
        run = self.run
        if value.name in self.walk.matrices:
            column = run.column(value)
            assert isinstance(column, Same)
            self.add_matrix(column.item)
        elif run.code.input_name.get(value.name) == ("seg",):
            assert run.bag is not None
            self.add(as_addresses(run.indices.seg(run.bag)[2]))
        else:
            self.add(addresses(run, value))

    def add_matrix(self, matrix: Tensor) -> None:
        matrix, turned, apart = dense(matrix)
        self.add(Address(matrix), Same(int(turned)), Same(apart))

    def add_gathered(self, value: Value, at: ReadIndex, keep: bool) -> None:
        """Where the rows that steps gather are put, where they come from (nowhere: they are slices) and the index."""
        run, kind = self.run, at.read.kind
        if value.name in run.store:  # saved by the forward sweep
            self.add(addresses(run, value), *[NOTHING] * (3 if kind == "sum" else 2))
            return
        arena = run.arenas[at.read.value_class, run.code.input_name[value.name][-1]]
        bounds = [] if kind != "sum" else [as_addresses(at.bounds)]
        if kind != "sum" and at.all_slices:
            self.add(Addresses(arena, at.starts), NOTHING, NOTHING)
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
        self.most = run.cuts.most, 0
        self.add(Listed(run.cuts.sizes))
        if run.bag is None:
            self.add(NOTHING, NOTHING)
        else:
            self.most = run.cuts.most, run.edge_cuts().most
            self.add(Listed(run.edge_cuts().sizes), as_addresses(run.indices.seg(run.bag)[3]))
        self.scratch = run.fresh((self.walk.room(*self.most),), self.walk.dtype, run.indices.device)
        self.packed = array("q", self.lines)
        return self

    def go(self, first: int, last: int, walk: Walk | None = None) -> None:
        """Do the steps from `first` to before `last`; backwards if the last comes first. `walk`: one with less to do."""
        (walk or self.walk).run(self.packed, first, last, self.scratch, self.most)


def as_addresses(cut: Cut | None) -> Addresses:
    assert cut is not None
    return Addresses(cut.tensor, cut.cuts.offsets)


def walkable(runs: Iterable[TypeRun], walks: Iterable[Walk | None]) -> bool:
    """Whether all types of a sweep have a walk, one thread does their steps and nobody watches."""
    for run, walk in zip(runs, walks, strict=True):
        if walk is None or not walk.alone(run.cuts.most):
            return False
    return not watched()


def watched() -> bool:
    """Whether somebody counts or changes torch's operations, who would not see those of a walk: a mode, or the profiler."""
    return bool(_C._len_torch_dispatch_stack() or _C._len_torch_function_stack() or _C._autograd._profiler_enabled())


def in_runs(items: Sequence[T]) -> Iterator[tuple[T, int]]:
    """Equal items that follow each other, and how many: the types of steps, or what these run."""
    for item, many in groupby(items):
        yield item, len(list(many))


def run_piece(run: TypeRun, code: Code, places: Mapping[str, Tensor]) -> None:
    """Run a piece over all rows: by its walk, if it has one, or call by call. What it returns joins the store."""
    walk: Walk | None = code.walk
    if walk is None or not walk.alone(max(run.rows, run.edges)) or watched():
        run.run_whole(code, places)
        return
    given = [run.whole(value) for value in walk.takes]  # first: what is handed on has the same name as what is given
    places = dict(places)
    for value in walk.into:
        if value.name not in places:
            places[value.name] = run.store[value.name] = torch.empty(run.shape(value), dtype=value.dtype)
    bounds = None if run.bag is None else run.indices.seg(run.bag)[1].int()
    into = [places[value.name] for value in walk.into]
    walk_rows(walk, given, into, run.rows, run.edges, bounds, run.code.spare)
    for value, base in walk.views:
        run.store[value.name] = run.whole(base).t()


def walk_rows(
    walk: Walk, given: Sequence[Tensor], into: Sequence[Tensor], rows: int, edges: int, bounds: Tensor | None, spare: Spare
) -> None:
    """Take all rows through a walk, from the tensors that it takes into those that it fills."""
    lines: list[int] = []
    alive: list[Tensor] = []
    for value, tensor in zip(walk.takes, given, strict=True):
        if value.name in walk.matrices:
            tensor, turned, apart = dense(tensor.t() if walk.matrices[value.name] else tensor)
            lines += (tensor.data_ptr(), 0, 0, int(turned), 0, 0, apart, 0, 0)
        else:
            tensor = tensor if tensor.is_contiguous() else tensor.contiguous()
            lines += (tensor.data_ptr(), 0, 0)
        alive.append(tensor)
    for place in into:
        lines += (place.data_ptr(), 0, 0)
    lines += (rows, 0, 0, edges, 0, 0, 0 if bounds is None else bounds.data_ptr(), 0, 0)
    scratch = spare.take((walk.room(rows, edges),), walk.dtype)
    walk.run(array("q", lines), 0, 1, scratch, (rows, edges))
    spare.give_back([scratch], ())
