r"""The lower bound: no order of steps, whatever the policy, has fewer.

The rule: a step runs nodes of one type, and none of them needs another of the same step. So a type takes at least as many
steps as the largest number of its nodes on one path, and the types add up.

    b   a       at most one a and one b on any path: bound 1 + 1
    |   |
    a   b       in truth 3 steps: a | b | a  or  b | a | b

Cost: a type on no cycle counts 1, a type alone on its cycle one per level, because a path between two nodes of one type stays
inside their component of the type graph; only types that share a cycle are walked one by one, O(nodes + edges) each. It loses,
that is, lies below the best order, where types wait for each other as above.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from weft.graph.program import Ints
from weft.plan.condense import group_nodes
from weft.plan.levels import NARROW, Indices, between_members, levels_within, offsets, stable_order


def lower_bound(num_types: int, type: Ints, ptr: Ints, src: Ints) -> int:
    """The sum over types of the largest number of nodes of that type on one path.

    >>> import numpy as np
    >>> lower_bound(2, np.array([0, 1, 1, 0], np.int32), np.array([0, 0, 1, 1, 2], np.int32), np.array([0, 2], np.int32))
    2
    """
    return sum(longest_chains(num_types, type, ptr, src).values())


def longest_chains(num_types: int, type: Ints, ptr: Ints, src: Ints) -> dict[int, int]:
    """For every type that has nodes the largest number of them on one path."""
    groups = group_nodes(num_types, type, ptr, src)
    if not any(groups.cyclic):
        return {types[0]: 1 for types in groups.types}
    level = levels_within(ptr, src, groups.of_node)
    found: dict[int, int] = {}
    for number, (types, nodes) in enumerate(zip(groups.types, groups.nodes, strict=True)):
        if len(types) == 1:
            found[types[0]] = int(level[nodes].max()) + 1
        else:
            by_level = _ByLevel(nodes, level, *between_members(ptr, src, groups.of_node == number))
            found |= {kind: by_level.most_on_one_path(type[by_level.nodes] == kind) for kind in types}
    return found


class _ByLevel:
    """A subgraph renumbered so that each level is a range of nodes: node i of it is `nodes[i]` of the whole."""

    def __init__(self, nodes: Indices, level: Ints, ptr: Ints, src: Ints) -> None:
        depth = int(level[nodes].max()) + 1
        self.nodes = nodes[stable_order(level[nodes], depth)]
        number = np.empty(len(level), dtype=np.int32)
        number[self.nodes] = np.arange(len(nodes), dtype=np.int32)
        start = ptr[self.nodes]
        count = ptr[self.nodes + 1] - start
        self.ptr = offsets(count)
        self.src: Ints = number[src[np.repeat(start - self.ptr[:-1], count) + np.arange(self.ptr[-1])]]
        self.levels: list[int] = offsets(np.bincount(level[nodes])).tolist()

    def most_on_one_path(self, chosen: npt.NDArray[np.bool_]) -> int:
        """Largest number of chosen nodes on one path, by the number on paths that end at each node, level by level."""
        most = chosen.astype(np.int32)
        ptr_at, src_at, most_at = self.ptr.data, self.src.data, most.data
        for start, end in pairwise(self.levels[1:]):
            if end - start > NARROW:
                first, last = self.ptr[start], self.ptr[end]
                before = most[self.src[first:last]]
                most[start:end] += np.maximum.reduceat(before, self.ptr[start:end] - first)
            else:
                for node in range(start, end):
                    most_at[node] += max([most_at[src_at[at]] for at in range(ptr_at[node], ptr_at[node + 1])])
        return int(most.max())
