"""From a graph to a program: which node type each vertex is, and what it reads.

A vertex without children is a node type of its own: it is on no cycle, so all of them run at once and pay for no recurrence.
With `rounds=k` the program has k + 1 layers of all vertices; layer 0 holds the first states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from weft.api.graph_parts import MANY, MIXED
from weft.graph.builder import Builder
from weft.graph.program import EMPTY, Ints, NodeType, Program
from weft.plan.condense import type_edges
from weft.plan.graphs import MOST_KINDS, GraphProgram, KeptGraphs
from weft.plan.levels import Bools, colevels, levels_within, occurring, offsets
from weft.plan.schedule import schedule

if TYPE_CHECKING:
    from weft.api.graph import Graph
    from weft.plan.plan import Plan


class Table:
    """The node type of each kind of vertex (`Graph.kinds`)."""

    def __init__(self, types: Sequence[int]) -> None:
        self.types = np.array(types, dtype=np.int32)
        self._present: dict[int, list[int]] = {}

    def present(self, kinds: int) -> list[int]:
        """The node types of a set of kinds, ascending; the set is a number with a bit for each."""
        if kinds not in self._present:
            numbers = [kind for kind in range(MOST_KINDS) if kinds >> kind & 1]
            self._present[kinds] = sorted(set(self.types[numbers].tolist()))
        return self._present[kinds]


ONE_TYPE, EVERY_TYPE = Table([kind % 2 for kind in range(MOST_KINDS)]), Table(range(MOST_KINDS))
"""Two node types per vertex type: 2t gathers, 2t + 1 has no children. All vertices of one type, or as many as the graph has."""


@lru_cache(maxsize=256)
def by_name(known: tuple[str, ...], names: tuple[str, ...]) -> Table:
    """The same where a graph knows types by names, which `known` counts: every one of `names` is among them."""
    numbers = [2 * known.index(name) + childless for name in names for childless in (0, 1)]
    return Table([*numbers, *[0] * (MOST_KINDS - len(numbers))])


class Seen:
    """Which node type each vertex of a graph is: by its kind, or vertex by vertex."""

    def __init__(self, graph: Graph, table: Table, ids: Ints | None = None) -> None:
        self.graph, self.table = graph, table
        if ids is not None:
            self.ids = ids
        found = graph.together
        self.by_kind = ids is None and found.kinds != MANY and (table is ONE_TYPE or found.types != MIXED)

    @cached_property
    def present(self) -> list[int]:
        """Which node types occur, ascending."""
        if self.by_kind:
            return self.table.present(self.graph.together.kinds)
        return occurring(self.ids, int(self.ids.max(initial=-1)) + 1)

    def any_root_among(self, types: Sequence[int]) -> bool:
        """Whether a vertex that nobody gathers may be of these node types."""
        return not self.by_kind or not set(types).isdisjoint(self.table.present(self.graph.together.root_kinds))

    @cached_property
    def ids(self) -> Ints:
        """The node type of every vertex."""
        if self.table is ONE_TYPE:
            return self.graph.childless
        return self.graph.kinds if self.table is EVERY_TYPE else self.table.types.take(self.graph.kinds)

    def replaced(self, ids: Ints) -> Seen:
        """The same graph with other node types."""
        return Seen(self.graph, self.table, ids.astype(np.int32, copy=False))


def tree_program(graph: Graph, kinds: tuple[NodeType, ...], seen: Seen, with_edges: bool) -> Program:
    """The program of a graph whose vertices each run once, children first. Types that read nothing have no arguments."""
    if seen.by_kind and isinstance(graph.together, KeptGraphs):
        edge = (lambda: _read_slots(graph, kinds, seen.ids, True)[2]) if with_edges else None
        return GraphProgram(kinds, graph.together, seen.table.types, edge)
    ptr, src, rows = _read_slots(graph, kinds, seen.ids, with_edges)
    return Program(kinds, seen.ids, ptr, src, edge=rows if with_edges else None)


def _read_slots(graph: Graph, kinds: Sequence[NodeType], type: Ints, with_edges: bool) -> tuple[Ints, Ints, Ints]:
    """Offsets, children and edge rows without the slots of vertices whose type reads none."""
    reads = np.array([bool(kind.ports) for kind in kinds], dtype=np.int32)
    ptr, src = graph.offsets, graph.children
    edge = graph.edge_rows if with_edges else src
    if reads.all():
        return ptr, src, edge
    lengths, reading = np.diff(ptr), reads.take(type)
    keep = np.repeat(reading, lengths) > 0
    return offsets(lengths * reading), src[keep], edge[keep]


def round_program(graph: Graph, kinds: Sequence[NodeType], type: Ints, rounds: int, with_edges: bool) -> Program:
    """`rounds` layers over layer 0; argument 0 of a vertex is itself one layer before, its children follow.

    What a type does not read is empty: nobody has to wait for it.
    """
    n = graph.num_vertices
    vertices = np.arange(n, dtype=np.int32)
    of_children = np.diff(graph.offsets)
    lengths = of_children + 1
    own = offsets(lengths)[:-1]
    others = np.ones(int(lengths.sum()), dtype=np.bool_)
    others[own] = False
    src, edge = np.empty(len(others), dtype=np.int32), np.full(len(others), EMPTY, dtype=np.int32)
    edge[others] = graph.edge_rows
    src[own] = np.where(np.array([_reads_own(kind) for kind in kinds]).take(type), vertices, EMPTY)
    reads_children = np.array([_reads_children(kind) for kind in kinds]).take(type)
    src[others] = np.where(np.repeat(reads_children, of_children), graph.children, EMPTY)
    builder = Builder(kinds, feeds=True, edges=with_edges)
    before = builder.layer(np.full(n, len(kinds) - 1, dtype=np.int32), np.zeros(n, np.int32), src[:0], feed=vertices)
    for _ in range(rounds):
        reads = np.where(src >= 0, src + np.int32(before.start), src).astype(np.int32)
        before = builder.layer(type, lengths, reads, feed=vertices, edge=edge if with_edges else None)
    return builder.finish()


def _reads_own(kind: NodeType) -> bool:
    """Whether a type of rounds reads argument 0."""
    return any(port.kind == "slots" and 0 in port.positions for port in kind.ports)


def _reads_children(kind: NodeType) -> bool:
    return any(port.kind != "slots" or max(port.positions) > 0 for port in kind.ports)


def plan_tree(graph: Graph, program: Program, policy: str, max_rows: int | None) -> Plan:
    """Plan a graph's program."""
    return schedule(program, policy, max_rows, KeptOrder(graph, program))


class KeptOrder:
    """What numpy finds out about the order of a graph's vertices is kept on its parts: later batches only concatenate it."""

    __slots__ = ("graph", "program")

    def __init__(self, graph: Graph, program: Program) -> None:
        self.graph, self.program = graph, program

    def level_of(self, types: tuple[int, ...]) -> Ints:
        """Levels within groups of these types."""
        program = self.program

        def make() -> Ints:
            return levels_within(program.ptr, program.src, np.where(np.isin(program.type, types), 0, 1).astype(np.int32))

        return _kept(self.graph, f"levels {types} {self._kinds()}", make)

    def above(self) -> Ints:
        """How long the way above each node is."""
        program = self.program
        return _kept(self.graph, f"above {self._kinds()}", lambda: colevels(program.ptr, program.src))

    def edges(self) -> set[tuple[int, int]]:
        """Which node type feeds which."""
        return set().union(*_kept_edges(self.graph, self.program, f"edges {self._kinds()}"))

    def _kinds(self) -> str:
        return " ".join(f"{kind.name!r}{':' if kind.ports else ''}" for kind in self.program.types)


def _kept_edges(graph: Graph, program: Program, key: str) -> list[set[tuple[int, int]]]:
    """For each part, which of its node types feeds which."""
    try:
        return [part.cache[key] for part in graph.parts]
    except KeyError:
        pass
    bounds = graph.part_offsets.tolist()
    for part, start, stop in zip(graph.parts, bounds[:-1], bounds[1:], strict=True):
        if key not in part.cache:
            ptr = program.ptr[start : stop + 1]
            src = program.src[ptr[0] : ptr[-1]]
            local = np.where(src >= 0, src - np.int32(start), src)
            part.cache[key] = type_edges(len(program.types), program.type[start:stop], ptr, local)
    return [part.cache[key] for part in graph.parts]


def _kept(graph: Graph, key: str, make: Callable[[], Ints]) -> Ints:
    """An array over all vertices from its parts' caches; where one is missing, made for the whole and handed to the parts."""
    parts = graph.parts
    try:
        found: list[Ints] = [part.cache[key] for part in parts]
    except KeyError:
        found = []
    if found:
        return np.concatenate(found) if len(found) > 1 else found[0]
    whole = make()
    for part, start, stop in zip(parts, graph.part_offsets[:-1].tolist(), graph.part_offsets[1:].tolist(), strict=True):
        part.cache[key] = whole[start:stop]
    return whole


def reaching(graph: Graph, wanted: Bools) -> Bools:
    """The wanted vertices and all that they depend on."""
    ptr, src = graph.offsets, graph.children
    found, frontier = wanted.copy(), np.flatnonzero(wanted)
    place = np.empty(len(wanted), dtype=np.int64)
    while len(frontier):
        lengths = ptr[frontier + 1] - ptr[frontier]
        bounds = offsets(lengths)
        read = src[np.repeat(ptr[frontier] - bounds[:-1], lengths) + np.arange(bounds[-1])]
        fresh = read[read >= 0]
        fresh = fresh[~found[fresh]]
        found[fresh] = True
        number = np.arange(len(fresh))
        place[fresh] = number
        frontier = fresh[place[fresh] == number]  # each once, without sorting
    return found


INIT = NodeType("first state", (), 1)
