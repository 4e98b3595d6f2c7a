"""The index arrays of a plan as tensors, made once per plan and device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import cached_property
from typing import Any, TypeVar, cast
from weakref import proxy, ref

import numpy as np
import torch
from torch import Tensor

from weft.graph.program import Ints
from weft.plan.library import address
from weft.plan.native import device_parts, find_returns, owners_natively
from weft.plan.plan import NOT_A_SLICE, Plan, Read, Return
from weft.plan.returns import returns
from weft.plan.shape import BACK_HEADER, NativePlan, native
from weft.run.columns import Cut, Cuts, Numbers
from weft.run.gpu.launch import current_stream, is_capturing
from weft.run.told import Told, texts_of
from weft.run.upload import Uploaded, as_tensor

T = TypeVar("T")


def _counts_up(numbers: np.ndarray) -> bool:
    """Whether these are 0, 1, 2, ...; mostly the ends show that they are not."""
    count = len(numbers)
    return count == 0 or bool(numbers[0] == 0 and numbers[-1] == count - 1 and (numbers == np.arange(count)).all())


class ReadIndex:
    """One read as tensors. Pieces are per step for a recurrent read, else one over all rows."""

    def __init__(self, read: Read, indices: Indices) -> None:
        self.read = read
        self._indices = cast(Indices, proxy(indices))  # nothing that a plan keeps may keep the plan
        self.starts = Numbers(read.slices.tolist())
        """First class row of each piece that is a slice, else -1."""
        self.all_slices = NOT_A_SLICE not in self.starts

    @cached_property
    def index(self) -> Tensor:
        return self._indices.tensor(self.read.index)

    @cached_property
    def cuts(self) -> Cuts:
        """Gathered rows of each piece."""
        read = self.read
        element = read.offsets[read.bounds] if read.offsets is not None else read.bounds * read.width
        return Cuts(np.diff(element).tolist())

    @cached_property
    def bounds(self) -> Cut | None:
        """For sums: each piece's segment bounds, counted from 0."""
        read = self.read
        return self._indices.bounds(read, read.bounds[:-1], read.bounds[1:]) if read.kind == "sum" else None

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


class BackIndex:
    """One return as tensors, each made when it is needed."""

    def __init__(self, back: Return, indices: Indices) -> None:
        self.back, self._indices = back, cast(Indices, proxy(indices))
        self.single = None if back.single is None else indices.tensor(back.single)

    @cached_property
    def index(self) -> Tensor:
        return self._indices.tensor(self.back.bags()[0])

    @cached_property
    def bounds(self) -> Tensor:
        return self._indices.tensor(self.back.bags()[1])

    @cached_property
    def cuts(self) -> list[int]:
        found: list[int] = self.back.bounds.tolist()
        return found

    @cached_property
    def elements(self) -> list[int]:
        found: list[int] = self.back.bags()[1][self.back.bounds].tolist()
        return found

    @cached_property
    def slices(self) -> list[int]:
        found: list[int] = self.back.slices.tolist()
        return found

    @cached_property
    def nothing(self) -> list[int]:
        found: list[int] = self.back.nothing.tolist()
        return found

    @cached_property
    def starts(self) -> dict[int, int]:
        """From the first class row of a piece to its number."""
        return {self.back.first + cut: i for i, cut in enumerate(self.cuts[:-1])}

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
        self._plan, self.device = ref(plan), device
        self._kept: dict[object, object] = {}
        self.there: list[Uploaded] = []
        """What `bring` has copied to the device."""
        self._places: list[int] = []
        self.told: tuple[list[int], list[int], int, int, int, int, int] | tuple[()] = ()
        """What texts read: the numbers of a plan and of its returns, where these lie, their addresses on the device, and the
        plan's own; nothing before a plan that was made in C is brought."""
        self._brought: list[Ints] = []
        """Arrays that are no part of the plan: they are found by their addresses, which must stay their own."""

    @property
    def plan(self) -> Plan:
        """It keeps these indices, and not the other way round: so both go at once, device memory included."""
        plan = self._plan()
        assert plan is not None
        return plan

    @staticmethod
    def of(plan: Plan, device: torch.device) -> Indices:
        """Each stream has its own: what is copied to a device is there for those who come later on the same stream."""
        key = ("indices", device, current_stream(device))
        found: Any = plan._derived.get(key) or _before_capture(plan, device)
        if found is None:
            found = plan._derived[key] = Indices(plan, device)
        return found  # type: ignore[no-any-return]  # what is there under this key

    def bring(self, training: bool, more: Callable[[], list[Ints]] = list) -> None:
        """Copy what a call will need to the device, all at once. What is not brought here is copied when it is needed.

        `more` gives arrays that are needed, too, where a plan does not hold all of them in one piece.
        """
        plan = self.plan
        parts = device_parts(plan, training)
        if not parts and not self.there:
            self._brought = [*more(), *self._arrays(training)]
            self.there = [Uploaded([(address(array), array.size) for array in self._brought], self.device)]
        if len(parts) > len(self._places):
            there, places = Uploaded(parts[len(self._places) :], self.device), self._places
            self.there.append(there)
            places += there.places
            assert isinstance(plan, NativePlan)
            tables = plan.numbers_at, plan.back_place + 4 * BACK_HEADER
            addresses = places[0], places[1] if len(places) > 1 else 0, plan.place
            self.told = plan.numbers, plan.back_numbers, *tables, *addresses

    def texts(self, keys: Iterable[Hashable]) -> dict[Hashable, Told]:
        """Facts that `told` is enough for, by their keys; plans of one recipe have the same."""
        plan = native(self.plan)
        if plan is None or not self._places:
            return {}
        fed = plan.program.feed is not None
        mine = [key for key in keys if not (fed and isinstance(key, tuple) and key[0] == "fed rows")]
        return texts_of(mine, plan.layout, plan.back_traits or ())

    def traits(self, back: bool) -> Hashable | None:
        """Those of a plan that was made in C, `back`: with what comes back to whom; None where that is not known."""
        plan = native(self._plan())
        if plan is None:
            return None
        if back and plan.traits_with_back is None:
            find_returns(plan)
        return plan.traits_with_back if back else plan.traits

    def _arrays(self, training: bool) -> list[Ints]:
        plan = self.plan
        arrays = [*plan.rows, *(read.index for read in plan.reads)]
        arrays += [read.offsets for read in plan.reads if read.offsets is not None]
        arrays += [owners(plan, read) for read in plan.reads if read.kind == "edges"]
        for one in returns(plan).values() if training else ():
            arrays += one.bags() if one.single is None else [one.single]
        return [np.ascontiguousarray(array, dtype=np.int32) for array in arrays]

    def tensor(self, array: np.ndarray) -> Tensor:
        """An array of the plan on the device."""
        for there in self.there:
            found = there.tensor(array)
            if found is not None:
                return found
        return as_tensor(array, self.device)

    def rows(self, type: int) -> Tensor | None:
        """Feed rows of a type's rows; None where they are simply the first ones: 0, 1, 2, ..."""
        return self.once(("rows", type), lambda: self._feed_rows(type))

    def _feed_rows(self, type: int) -> Tensor | None:
        nodes, feed = self.plan.rows[type], self.plan.program.feed
        rows = nodes if feed is None else feed[nodes]
        return None if _counts_up(rows) else self.tensor(rows)

    def nodes(self, type: int) -> Tensor | None:
        """Node numbers of a type's rows; None where the type has all nodes in order."""

        def make() -> Tensor | None:
            nodes = self.plan.rows[type]
            if len(nodes) == self.plan.program.num_nodes and _counts_up(nodes):
                return None
            return self.tensor(nodes)

        return self.once(("nodes", type), make)

    def row_of_node(self) -> Tensor:
        return self.once("row of node", lambda: self.tensor(self.plan.row))

    def step_cuts(self, type: int) -> Cuts:
        """The rows of each step of a type."""

        def make() -> Cuts:
            lo, hi = self.plan.type_steps(type)
            return Cuts((hi - lo).tolist())

        return self.once(("cuts", type), make)

    def edge_cuts(self, read: Read) -> Cuts:
        """The edges of each step of a type."""

        def make() -> Cuts:
            assert read.offsets is not None
            lo, hi = self.plan.type_steps(read.type)
            return Cuts((read.offsets[hi] - read.offsets[lo]).tolist())

        return self.once(("edge cuts", read.type, read.port), make)

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
            return as_tensor(whole, self.device), self.tensor(read.offsets), segs, self.bounds(read, lo, hi)

        return self.once(("seg", read.type, read.port), make)

    def bounds(self, read: Read, lo: np.ndarray, hi: np.ndarray) -> Cut:
        assert read.offsets is not None
        sizes = hi - lo
        total = int(sizes.sum()) + len(sizes)
        starts = np.concatenate(([0], np.cumsum(sizes + 1)))[:-1]
        at = np.arange(total) - np.repeat(starts, sizes + 1) + np.repeat(lo, sizes + 1)
        relative = read.offsets[at] - np.repeat(read.offsets[lo], sizes + 1)
        return Cut(as_tensor(relative.astype(np.int32), self.device), Cuts((sizes + 1).tolist()))

    def read(self, read: Read) -> ReadIndex:
        return self.once(("read", read.type, read.port), lambda: ReadIndex(read, self))

    def owners(self, read: Read) -> Tensor:
        """Which row each edge belongs to."""
        return self.once(("owners", read.type, read.port), lambda: self.tensor(owners(self.plan, read)))

    def class_rows(self, type: int, output: int) -> tuple[int, int] | Tensor:
        """Where a type's rows are in their class: one range, or an index."""

        def make() -> tuple[int, int] | Tensor:
            rows = self.plan.class_row[type, output]
            if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1:  # class rows follow the order of rows
                return int(rows[0]), int(rows[-1]) + 1
            return self.tensor(rows)

        return self.once(("class rows", type, output), make)

    def class_starts(self, type: int, output: int) -> Numbers:
        """The first class row that each step of a type writes."""
        return self.once(
            ("class starts", type, output),
            lambda: Numbers(self.plan.class_row[type, output][self.plan.type_steps(type)[0]].tolist()),
        )

    def back(self, type: int, port: int, group: int) -> BackIndex | None:
        def make() -> BackIndex | None:
            back = returns(self.plan).get((type, port, group))
            return None if back is None else BackIndex(back, self)

        return self.once(("back", type, port, group), make)

    def kept(self, key: object, make: Callable[[], np.ndarray]) -> Tensor:
        """An array that others make from the plan."""
        return self.once(key, lambda: as_tensor(make(), self.device))

    def once(self, key: object, make: Callable[[], T]) -> T:
        if key not in self._kept:
            self._kept[key] = make()
        return cast(T, self._kept[key])


def _before_capture(plan: Plan, device: torch.device) -> object | None:
    """While somebody captures launches nothing can be copied, but what was is there: captures begin by waiting for it."""
    if not is_capturing(device):
        return None
    mine = [found for key, found in plan._derived.items() if isinstance(key, tuple) and key[:2] == ("indices", device)]
    return max(cast(list[Indices], mine), key=lambda one: len(one._places), default=None)  # both ways, if some have them


def owners(plan: Plan, read: Read) -> Ints:
    """The row that each edge of a read belongs to; made once for each plan."""
    key = ("owners", read.type, read.port)
    if key not in plan._derived:
        assert read.offsets is not None
        counts, found = np.diff(read.offsets), owners_natively(plan, plan.reads.index(read))
        plan._derived[key] = np.repeat(np.arange(len(counts), dtype=np.int32), counts) if found is None else found
    return cast(Ints, plan._derived[key])
