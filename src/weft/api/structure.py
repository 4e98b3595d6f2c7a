"""From a graph to a program: which node type each vertex is, and what it reads.

A vertex without children is a node type of its own: it is on no cycle, so all of them run at once and pay for no recurrence.
With `rounds=k` the program has k + 1 layers of all vertices; layer 0 holds the first states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.graph.program import Ints, NodeType, Program
from weft.plan.condense import type_edges
from weft.plan.levels import colevels, levels_within, offsets
from weft.plan.schedule import schedule

if TYPE_CHECKING:
    from weft.api.graph import Graph
    from weft.plan.plan import Plan


def node_types(graph: Graph, many: bool) -> Ints:
    """Two node types per vertex type: 2t gathers, 2t + 1 has no children."""
    leaf = _kept(graph, "childless", lambda: _childless(graph))
    if not many or graph.type_ids is None:
        return leaf
    types: Ints = leaf + np.int32(2) * graph.type_ids
    return types


def _childless(graph: Graph) -> Ints:
    """1 for every vertex that has no children, else 0."""
    filled = offsets(graph.children >= 0)[graph.offsets]
    childless: Ints = (np.diff(filled) == 0).astype(np.int32)
    return childless


def tree_program(graph: Graph, kinds: Sequence[NodeType], type: Ints, with_edges: bool) -> Program:
    """The program of a graph whose vertices each run once, children first."""
    ptr, src, edge = graph.offsets, graph.children, graph.edge_rows
    reads = np.array([bool(kind.ports) for kind in kinds]).take(type)
    lengths = np.diff(ptr)
    if (lengths > reads * lengths).any():
        keep = np.repeat(reads, lengths)
        ptr, src, edge = offsets(reads * lengths), src[keep], edge[keep]
    return Program(tuple(kinds), type, ptr, src, edge=edge if with_edges else None)


def round_program(graph: Graph, kinds: Sequence[NodeType], type: Ints, rounds: int, with_edges: bool) -> Program:
    """`rounds` layers over layer 0; argument 0 of a vertex is itself one layer before, its children follow."""
    n = graph.num_vertices
    first = np.full(n, len(kinds) - 1, dtype=np.int32)
    lengths = np.diff(graph.offsets) + 1
    one_ptr = offsets(lengths)
    own = one_ptr[:-1]
    one_src = np.empty(int(one_ptr[-1]), dtype=np.int32)
    one_edge = np.full(len(one_src), -1, dtype=np.int32)
    others = np.ones(len(one_src), dtype=np.bool_)
    others[own] = False
    one_src[own] = np.arange(n, dtype=np.int32)
    one_src[others], one_edge[others] = graph.children, graph.edge_rows
    m = len(one_src)
    src = np.concatenate(
        [np.where(one_src >= 0, one_src + np.int32(r * n), np.int32(-1)) for r in range(rounds)] or [one_src[:0]]
    )
    ptr = [np.zeros(n, np.int32), *(one_ptr[:-1] + np.int32(r * m) for r in range(rounds)), np.array([m * rounds], np.int32)]
    return Program(
        tuple(kinds),
        np.concatenate([first, *[type] * rounds]),
        np.concatenate(ptr).astype(np.int32),
        src.astype(np.int32),
        feed=np.tile(np.arange(n, dtype=np.int32), rounds + 1),
        edge=np.tile(one_edge, rounds) if with_edges else None,
    )


def plan_tree(graph: Graph, program: Program, policy: str, max_rows: int | None) -> Plan:
    """Plan a graph's program with levels that are kept on its parts, so that later batches only concatenate them."""
    kinds = " ".join(f"{kind.name!r}{':' if kind.ports else ''}" for kind in program.types)

    def level_of(types: tuple[int, ...]) -> Ints:
        def make() -> Ints:
            return levels_within(program.ptr, program.src, np.where(np.isin(program.type, types), 0, 1).astype(np.int32))

        return _kept(graph, f"levels {types} {kinds}", make)

    def above() -> Ints:
        return _kept(graph, f"above {kinds}", lambda: colevels(program.ptr, program.src))

    def edges() -> set[tuple[int, int]]:
        return set().union(*_kept_edges(graph, program, f"edges {kinds}"))

    return schedule(program, policy, max_rows, level_of, above, edges)


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


INIT = NodeType("first state", (), 1)
