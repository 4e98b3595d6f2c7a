"""The index arrays of a plan as tensors, made once per plan and device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from weft.plan.library import address
from weft.plan.plan import NOT_A_SLICE, Plan, Read, Return
from weft.plan.returns import returns
from weft.run.columns import Cut, Cuts

T = TypeVar("T")


def as_tensor(array: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)


def _counts_up(numbers: np.ndarray) -> bool:
    """Whether these are 0, 1, 2, ...; mostly the ends show that they are not."""
    count = len(numbers)
    return count == 0 or bool(numbers[0] == 0 and numbers[-1] == count - 1 and (numbers == np.arange(count)).all())


@dataclass(frozen=True, eq=False)
class ReadIndex:
    """One read as tensors. Pieces are per step for a recurrent read, else one over all rows."""

    read: Read
    index: Tensor
    cuts: Cuts
    """Gathered rows of each piece."""
    starts: list[int]
    """First class row of each piece that is a slice, else -1."""
    all_slices: bool
    bounds: Cut | None
    """For sums: each piece's segment bounds, counted from 0."""

    @property
    def pieces(self) -> Cut:
        return Cut(self.index, self.cuts)

    @property
    def whole_slice(self) -> int | None:
        """The first class row, where all pieces together are one slice: full trees, chains of equal length."""
        if not self.all_slices or not self.starts:
            return None
        first = self.starts[0]
        return first if self.starts == [first + offset for offset in self.cuts.offsets[:-1]] else None


@dataclass(frozen=True, eq=False)
class BackIndex:
    """One return as tensors."""

    back: Return
    index: Tensor
    single: Tensor | None
    bounds: Tensor
    cuts: list[int]
    elements: list[int]
    slices: list[int]
    nothing: list[bool]
    starts: dict[int, int]
    """From the first class row of a piece to its number."""

    def piece(self, number: int) -> int | Tensor | tuple[Tensor, Tensor] | None:
        """How one piece's gradients come back: not at all, by a slice, by an index, or by an index with segment bounds."""
        if self.nothing[number]:
            return None
        if self.slices[number] != NOT_A_SLICE:
            return self.slices[number]
        first, last = self.cuts[number], self.cuts[number + 1]
        if self.single is not None:
            return self.single[first:last]
        bounds = self.bounds[first : last + 1]
        return self.index[self.elements[number] : self.elements[number + 1]], bounds - bounds[0]


class Indices:
    """Lazily made tensors of one plan on one device."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan, self.device = plan, device
        self._kept: dict[object, object] = {}

    @staticmethod
    def of(plan: Plan, device: torch.device) -> Indices:
        key = ("indices", device)
        if key not in plan._derived:
            plan._derived[key] = Indices(plan, device)
        return cast(Indices, plan._derived[key])

    def rows(self, type: int) -> Tensor | None:
        """Feed rows of a type's rows; None where they are simply the first ones: 0, 1, 2, ..."""
        return self._once(("rows", type), lambda: self._feed_rows(type))

    def _feed_rows(self, type: int) -> Tensor | None:
        nodes, feed = self.plan.rows[type], self.plan.program.feed
        rows = nodes if feed is None else feed[nodes]
        return None if _counts_up(rows) else self._tensor(rows)

    def nodes(self, type: int) -> Tensor | None:
        """Node numbers of a type's rows; None where the type has all nodes in order."""

        def make() -> Tensor | None:
            nodes = self.plan.rows[type]
            if len(nodes) == self.plan.program.num_nodes and _counts_up(nodes):
                return None
            return self._tensor(nodes).long()

        return self._once(("nodes", type), make)

    def row_of_node(self) -> Tensor:
        return self._once("row of node", lambda: self._tensor(self.plan.row))

    def step_cuts(self, type: int) -> Cuts:
        """The rows of each step of a type."""

        def make() -> Cuts:
            lo, hi = self.plan.type_steps(type)
            return Cuts((hi - lo).tolist())

        return self._once(("cuts", type), make)

    def edge_cuts(self, read: Read) -> Cuts:
        """The edges of each step of a type."""

        def make() -> Cuts:
            assert read.offsets is not None
            lo, hi = self.plan.type_steps(read.type)
            return Cuts((read.offsets[hi] - read.offsets[lo]).tolist())

        return self._once(("edge cuts", read.type, read.port), make)

    def seg(self, read: Read) -> tuple[Tensor, Tensor, Cut, Cut]:
        """Which row each edge belongs to, and segment bounds: over all rows, and for each step counted from its start."""

        def make() -> tuple[Tensor, Tensor, Cut, Cut]:
            assert read.offsets is not None
            lo, hi = self.plan.type_steps(read.type)
            counts = np.diff(read.offsets)
            whole = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
            inside = whole - np.repeat(np.repeat(lo, hi - lo), counts)
            edge_cuts = read.offsets[np.concatenate((lo, hi[-1:]))]
            segs = Cut(as_tensor(inside, self.device), Cuts(np.diff(edge_cuts).tolist()))
            return as_tensor(whole, self.device), self._tensor(read.offsets), segs, self._bounds(read, lo, hi)

        return self._once(("seg", read.type, read.port), make)

    def _bounds(self, read: Read, lo: np.ndarray, hi: np.ndarray) -> Cut:
        assert read.offsets is not None
        sizes = hi - lo
        total = int(sizes.sum()) + len(sizes)
        starts = np.concatenate(([0], np.cumsum(sizes + 1)))[:-1]
        at = np.arange(total) - np.repeat(starts, sizes + 1) + np.repeat(lo, sizes + 1)
        relative = read.offsets[at] - np.repeat(read.offsets[lo], sizes + 1)
        return Cut(as_tensor(relative.astype(np.int32), self.device), Cuts((sizes + 1).tolist()))

    def read(self, read: Read) -> ReadIndex:
        def make() -> ReadIndex:
            index = self._tensor(read.index)
            element = read.offsets[read.bounds] if read.offsets is not None else read.bounds * read.width
            bounds = self._bounds(read, read.bounds[:-1], read.bounds[1:]) if read.kind == "sum" else None
            slices = bool((read.slices != NOT_A_SLICE).all())
            return ReadIndex(read, index, Cuts(np.diff(element).tolist()), read.slices.tolist(), slices, bounds)

        return self._once(("read", read.type, read.port), make)

    def class_rows(self, type: int, output: int) -> tuple[int, int] | Tensor:
        """Where a type's rows are in their class: one range, or an index."""

        def make() -> tuple[int, int] | Tensor:
            rows = self.plan.class_row[type, output]
            if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1:  # class rows follow the order of rows
                return int(rows[0]), int(rows[-1]) + 1
            return self._tensor(rows)

        return self._once(("class rows", type, output), make)

    def class_starts(self, type: int, output: int) -> list[int]:
        """The first class row that each step of a type writes."""
        return self._once(
            ("class starts", type, output),
            lambda: self.plan.class_row[type, output][self.plan.type_steps(type)[0]].tolist(),
        )

    def back(self, type: int, port: int, group: int) -> BackIndex | None:
        def make() -> BackIndex | None:
            back = returns(self.plan).get((type, port, group))
            return None if back is None else self._back(back)

        return self._once(("back", type, port, group), make)

    def _back(self, back: Return) -> BackIndex:
        cuts = back.bounds.tolist()
        return BackIndex(
            back,
            self._tensor(back.index),
            None if back.single is None else self._tensor(back.single),
            self._tensor(back.offsets),
            cuts,
            back.offsets[back.bounds].tolist(),
            back.slices.tolist(),
            back.nothing.tolist(),
            {back.first + cut: i for i, cut in enumerate(cuts[:-1])},
        )

    def _tensor(self, array: np.ndarray) -> Tensor:
        """One of the plan's arrays. They are views of few buffers, and each of these goes to another device in one copy."""
        base = array.base
        if self.device.type == "cpu" or not isinstance(base, np.ndarray) or base.ndim != 1 or array.dtype != base.dtype:
            return as_tensor(array, self.device)
        _, copy = self._once(("buffer", id(base)), lambda: (base, as_tensor(base, self.device)))
        first = (address(array) - address(base)) // base.itemsize
        return copy[first : first + len(array)]

    def _once(self, key: object, make: Callable[[], T]) -> T:
        if key not in self._kept:
            self._kept[key] = make()
        return cast(T, self._kept[key])
