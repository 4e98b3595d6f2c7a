"""Base graphs that C keeps, and what a batch of them is: one call over their addresses, nothing per graph in Python.

C holds the arrays of a base graph in one piece of memory and, with them, what planning once found out about it: its levels, and
who feeds whom. Planning a batch then only counts and places rows (`c/graphs.c`). Without a compiler nothing is kept, and
batches are merged and planned in numpy.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from weft.graph.program import Ints, NodeType, Program
from weft.plan.library import address, library
from weft.plan.native import described, finished
from weft.plan.plan import Plan

MOST_KINDS = 63
"""So many kinds of vertices can be told apart in C."""


class Kept(int):
    """Where C keeps a base graph; it does so for as long as this number lives."""

    __slots__ = ()

    def __del__(self, library: Callable[[], object] = library) -> None:
        library().weft_graph_free(self)  # type: ignore[attr-defined]


def keep(numbers: Sequence[int], digest: bytes, children: Ints, offsets: Ints, kinds: Ints) -> Kept:
    """Have C keep a base graph. `numbers`: vertices, slots, edges, and what tells its names of types, and its device."""
    given = array("q", numbers)
    made = library().weft_graph(given.buffer_info()[0], digest, *map(address, (children, offsets, kinds)))
    if made is None:
        raise MemoryError("no memory to keep a graph")
    return Kept(made)


class KeptGraphs:
    """Base graphs that follow each other, as C reads them, and what they are together."""

    __slots__ = ("_alive", "_numbers", "count", "device", "edges", "kinds", "place", "places", "slots", "types", "vertices")

    def __init__(self, graphs: list[Kept]) -> None:
        self._alive, self.places, self.count = graphs, array("q", graphs), len(graphs)
        self._numbers = numbers = array("q", bytes(8 * (6 + 2 * len(graphs))))
        self.place, at = self.places.buffer_info()[0], numbers.buffer_info()[0]
        library().weft_totals(self.place, self.count, at, at + 8 * 6)
        self.vertices, self.slots, self.edges, self.types, self.device, self.kinds = numbers[:6]

    @property
    def digests(self) -> memoryview:
        """The digests of all, one after the other."""
        return memoryview(self._numbers)[6:]

    def merged(self) -> tuple[Ints, Ints, Ints]:
        """Children, offsets and kinds of the vertices, counted on from graph to graph."""
        n, m = self.vertices, self.slots
        whole = np.empty(m + 2 * n + 1, dtype=np.int32)
        children, offsets, kinds = whole[:m], whole[m : m + n + 1], whole[m + n + 1 :]
        library().weft_merge(self.place, self.count, *map(address, (children, offsets, kinds)))
        return children, offsets, kinds


class GraphProgram(Program):
    """The program of kept graphs. Planning does not need its arrays: they are made when somebody looks at them."""

    graphs: KeptGraphs
    table: Ints
    """The node type of each kind of vertex."""
    _edge: Callable[[], Ints] | None

    def __init__(self, types: tuple[NodeType, ...], graphs: KeptGraphs, table: Ints, edge: Callable[[], Ints] | None) -> None:
        self.__dict__.update(types=types, graphs=graphs, table=table, _edge=edge, _cache={})

    @property
    def num_nodes(self) -> int:
        return self.graphs.vertices

    @cached_property
    def _arrays(self) -> tuple[Ints, Ints, Ints]:
        graphs, kinds, n = self.graphs, described(self.types), self.graphs.vertices
        assert kinds is not None
        type, ptr, src = (np.empty(size, dtype=np.int32) for size in (n, n + 1, graphs.slots + 1))
        places = map(address, (kinds, self.table, type, ptr, src))
        kept = library().weft_program(graphs.place, graphs.count, len(self.types), *places)
        return type, ptr, src[:kept]

    @cached_property
    def type(self) -> Ints:
        return self._arrays[0]

    @cached_property
    def ptr(self) -> Ints:
        return self._arrays[1]

    @cached_property
    def src(self) -> Ints:
        return self._arrays[2]

    @cached_property
    def edge(self) -> Ints | None:
        return None if self._edge is None else self._edge()


def plan_graphs(program: GraphProgram, policy: str, max_rows: int | None, started: float) -> Plan | None:
    """The plan that `schedule` makes of the program; None where C does not make it from the graphs themselves."""
    graphs, kinds = program.graphs, described(program.types)
    if kinds is None or not graphs.vertices:
        return None
    sizes = array("q", (0, 0))
    work = library().weft_plan_graphs(
        graphs.place,
        graphs.count,
        len(program.types),
        address(kinds),
        address(program.table),
        max_rows or 0,
        sizes.buffer_info()[0],
    )
    return None if work is None else finished(work, program, policy, max_rows, sizes, started)
