r"""Condense: whatever is on no cycle runs once; only what is on a cycle runs level by level.

The rule: look at types, not nodes. Draw an edge from type A to type B where some output of A feeds B in this batch, and
condense the strongly connected components. In topological order, a component on no cycle is one step over all its nodes,
whatever their depth. A component on a cycle is swept: one type by levels, several types by the better of depth and agenda.
Levels count only edges inside the component.

    types    embed --> leaf --> node --> classify         node feeds node: a cycle
                        |       ^__|        ^
                        |___________________|

    steps    1         1        levels      1             trees of 1 to 7 levels of node, all nodes classified:
                                                          condense 1 + 1 + 7 + 1, depth 1 + 1 + 7 + 8

Cost: O(nodes + edges) and one pass over the type graph. It is exact for the union of the batch: an example that feeds its
classifier's output back into its tree pulls `classify` onto the cycle for all examples. It loses only inside a component of
several types, where neither depth nor agenda need be best; the lower bound tells by how much at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weft.graph.program import Ints
from weft.plan.agenda import agenda_steps
from weft.plan.components import components, is_cyclic
from weft.plan.depth import depth_steps
from weft.plan.levels import Indices, levels_within, occurring, offsets, stable_order


@dataclass(frozen=True, eq=False)
class Groups:
    """The nodes of a program by strongly connected components of their types, in topological order; none is empty."""

    types: list[tuple[int, ...]]
    cyclic: list[bool]
    nodes: list[Indices]
    of_node: Ints


@dataclass(frozen=True, eq=False)
class GroupOrder:
    """The nodes of one group, ascending, and the step in which each runs, counted from 0 within the group."""

    types: tuple[int, ...]
    cyclic: bool
    step: Ints
    nodes: Indices

    @property
    def steps(self) -> int:
        return int(self.step.max()) + 1


def condense(
    num_types: int,
    type: Ints,
    ptr: Ints,
    src: Ints,
    level_of: Callable[[tuple[int, ...]], Ints] | None = None,
    edges: set[tuple[int, int]] | None = None,
) -> list[GroupOrder]:
    """Groups in the order of running, producers first; types without nodes are left out.

    `level_of(types)` is for a caller who has kept levels: those of all nodes, with only the edges between nodes of these
    types counted. It is asked for components on a cycle. `edges` is for one who knows which type feeds which.

    >>> import numpy as np
    >>> type = np.array([0, 0, 0, 1, 1, 2, 2], np.int32)
    >>> ptr, src = np.array([0, 0, 0, 0, 2, 4, 5, 6], np.int32), np.array([0, 1, 3, 2, 3, 4], np.int32)
    >>> for group in condense(3, type, ptr, src):
    ...     print(group.types, group.cyclic, group.nodes.tolist(), group.step.tolist())
    (0,) False [0, 1, 2] [0, 0, 0]
    (1,) True [3, 4] [0, 1]
    (2,) False [5, 6] [0, 0]
    """
    groups = group_nodes(num_types, type, ptr, src, edges)
    if level_of is None:
        level_of = _levels_on_demand(ptr, src, groups)
    orders: list[GroupOrder] = []
    for number, (types, cyclic, nodes) in enumerate(zip(groups.types, groups.cyclic, groups.nodes, strict=True)):
        if not cyclic:
            step = np.zeros(len(nodes), dtype=np.int32)
        elif len(types) == 1:
            step = level_of(types)[nodes]
        else:
            level = level_of(types)
            by_depth = depth_steps(type[nodes], level[nodes])
            by_agenda = agenda_steps(type, level, ptr, src, groups.of_node == number)[nodes]
            step = by_agenda if by_agenda.max() < by_depth.max() else by_depth
        orders.append(GroupOrder(types, cyclic, step, nodes))
    return orders


def group_nodes(num_types: int, type: Ints, ptr: Ints, src: Ints, edges: set[tuple[int, int]] | None = None) -> Groups:
    """Condense the type graph and sort the nodes into its components.

    >>> import numpy as np
    >>> groups = group_nodes(2, np.array([1, 0, 0], np.int32), np.array([0, 1, 1, 2], np.int32), np.array([1, 1], np.int32))
    >>> groups.types, groups.cyclic, [nodes.tolist() for nodes in groups.nodes]
    ([(0,), (1,)], [True, False], [[1, 2], [0]])
    """
    if edges is None:
        edges = type_edges(num_types, type, ptr, src)
    present = occurring(type, num_types)
    found = [types for types in components(num_types, edges) if types[0] in present]
    of_type = np.zeros(num_types, dtype=np.int32)
    for number, types in enumerate(found):
        of_type[list(types)] = number
    of_node = of_type.take(type)
    return Groups(found, [is_cyclic(types, edges) for types in found], _nodes_by_group(of_node, len(found)), of_node)


def _nodes_by_group(of_node: Ints, groups: int) -> list[Indices]:
    """The nodes of each group, ascending; a few groups are found faster one by one than by sorting."""
    if groups <= 8:
        return [np.flatnonzero(of_node == number) for number in range(groups)]
    bounds = offsets(np.bincount(of_node, minlength=groups))
    return np.split(stable_order(of_node, groups), bounds[1:-1])


def type_edges(num_types: int, type: Ints, ptr: Ints, src: Ints) -> set[tuple[int, int]]:
    """All pairs (a, b) such that some node of type b reads a node of type a.

    >>> import numpy as np
    >>> type_edges(2, np.array([0, 1], np.int32), np.array([0, 0, 2], np.int32), np.array([0, -1], np.int32))
    {(0, 1)}
    """
    key: Indices = type.take(src) if len(src) else src
    key = key * np.int64(num_types) + np.repeat(type, np.diff(ptr))
    filled = src >= 0
    if not filled.all():
        key = key[filled]
    return {divmod(pair, num_types) for pair in occurring(key, num_types * num_types)}


def _levels_on_demand(ptr: Ints, src: Ints, groups: Groups) -> Callable[[tuple[int, ...]], Ints]:
    """Levels inside every group come from one pass over all nodes, made when a group on a cycle first asks."""
    kept: list[Ints] = []

    def level_of(types: tuple[int, ...]) -> Ints:
        if not kept:
            kept.append(levels_within(ptr, src, groups.of_node))
        return kept[0]

    return level_of
