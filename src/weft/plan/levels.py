r"""Levels: how many edges the longest path to a node has.

The rule: a node whose arguments are all known is ready; peel off everything that is ready at once, round after round. The
round in which a node goes is its level. What never becomes ready is on a cycle or needs one.

    level 2      4   5
                  \ / \
    level 1        3   \        3 gathers 0 and 1; 4 gathers 3; 5 gathers 3 and 2
                  / \   \
    level 0      0   1   2

Cost: O(nodes + edges). A wide round is a handful of numpy calls; narrow rounds (a chain has one node in each) are walked
in plain Python over the same memory, because a round in numpy costs as much as some forty nodes walked. It loses on graphs
that are deep and narrow, several times the cost per node of wide ones: the levels of an example are worth keeping.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from weft.errors import StructureError
from weft.graph.program import Ints

Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.signedinteger]

NARROW = 32
"""Rounds of at most this many nodes are walked in Python, until a round is twice as wide."""


def levels(ptr: Ints, src: Ints, member: Bools | None = None) -> Ints:
    """Largest number of edges on a path that ends at each node; a node without arguments is at level 0.

    Node i reads `src[ptr[i]:ptr[i + 1]]`; -1 is an empty argument. With `member` only edges between two members count and
    all other nodes are at level 0. A cycle raises `StructureError` that names one.

    >>> import numpy as np
    >>> levels(np.array([0, 0, 0, 2, 4], np.int32), np.array([0, 1, 2, 0], np.int32)).tolist()
    [0, 0, 1, 2]
    """
    ptr, src = between_members(ptr, src, member)
    return _peel(*consumers(ptr, src), np.diff(ptr), ptr, src)


def levels_within(ptr: Ints, src: Ints, label: Ints) -> Ints:
    """Levels of every labelled group of nodes in one pass: only edges between two nodes of the same label count.

    >>> import numpy as np
    >>> chain = np.array([0, 0, 1, 2, 3], np.int32), np.array([0, 1, 2], np.int32)
    >>> levels_within(*chain, np.array([7, 7, 8, 8], np.int32)).tolist()
    [0, 1, 0, 1]
    """
    keep = (src >= 0) & (label[src] == np.repeat(label, np.diff(ptr)))
    ptr, src = offsets(keep)[ptr], src[keep]
    return _peel(*consumers(ptr, src), np.diff(ptr), ptr, src)


def colevels(ptr: Ints, src: Ints, member: Bools | None = None) -> Ints:
    """Largest number of edges on a path from each node to one that reads it; a node nobody reads is at 0.

    >>> import numpy as np
    >>> colevels(np.array([0, 0, 0, 2, 4], np.int32), np.array([0, 1, 2, 0], np.int32)).tolist()
    [2, 2, 1, 0]
    """
    ptr, src = between_members(ptr, src, member)
    pending = np.bincount(src, minlength=len(ptr) - 1).astype(np.int32)
    return _peel(ptr, src, pending, ptr, src)


def consumers(ptr: Ints, src: Ints) -> tuple[Ints, Ints]:
    """Who reads whom: node i is read by `dst[ptr2[i]:ptr2[i + 1]]`, in the order of the arguments; empty ones left out.

    >>> import numpy as np
    >>> ptr2, dst = consumers(np.array([0, 0, 0, 2, 4], np.int32), np.array([0, 1, 2, 0], np.int32))
    >>> ptr2.tolist(), dst.tolist()
    ([0, 2, 3, 4, 4], [2, 3, 2, 3])
    """
    nodes = len(ptr) - 1
    reader = np.repeat(np.arange(nodes, dtype=np.int32), np.diff(ptr))
    filled = src >= 0
    if not filled.all():
        reader, src = reader[filled], src[filled]
    return offsets(np.bincount(src, minlength=nodes)), reader[stable_order(src, nodes)]


def offsets(counts: npt.NDArray[np.generic]) -> Ints:
    """Where each of consecutive runs of these lengths starts, and where the last ends."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def stable_order(keys: Ints, bound: int) -> npt.NDArray[np.int64]:
    """Stable argsort of keys in [0, bound): numpy sorts 16-bit keys by radix, so larger ones go in two 16-bit halves."""
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    if bound > 1 << 16:
        order = order[np.argsort((keys >> 16).astype(np.uint16)[order], kind="stable")]
    return order


def occurring(keys: Indices, bound: int) -> list[int]:
    """Which numbers in [0, bound) occur, ascending; a few are looked for one by one, which is faster than counting all.

    >>> import numpy as np
    >>> occurring(np.array([3, 0, 3]), 5)
    [0, 3]
    """
    if bound <= 8:
        return [number for number in range(bound) if (keys == number).any()]
    table_is_small = bound <= len(keys) + 65536  # a table of all must not outgrow the keys
    found: list[int] = (np.flatnonzero(np.bincount(keys, minlength=1)) if table_is_small else np.unique(keys)).tolist()
    return found


def between_members(ptr: Ints, src: Ints, member: Bools | None) -> tuple[Ints, Ints]:
    """The same arguments without empty ones and, given `member`, without edges that leave or enter the members."""
    keep = src >= 0
    if member is not None:
        keep &= member[src]
        keep &= np.repeat(member, np.diff(ptr))
    if keep.all():
        return ptr, src
    return offsets(keep)[ptr], src[keep]


def _peel(ptr: Ints, dst: Ints, pending: Ints, argument_ptr: Ints, arguments: Ints) -> Ints:
    """The round in which each node's `pending` count reaches 0; a node done in one round counts its `dst` down in the next."""
    level = np.zeros(len(pending), dtype=np.int32)
    pending = np.array(pending, dtype=np.int32)
    place = np.empty(len(pending), dtype=np.int32)
    frontier: Indices = np.flatnonzero(pending == 0)
    peeled = depth = 0
    while len(frontier):
        if len(frontier) > NARROW:
            peeled += len(frontier)
            depth += 1
            frontier = count_down(frontier, ptr, dst, pending, place)
            level[frontier] = depth
        else:
            frontier, count, depth = _narrow_rounds(frontier, ptr, dst, pending, level, depth)
            peeled += count
    if peeled < len(pending):
        raise StructureError(_cycle_message(_find_cycle(argument_ptr, arguments, pending > 0)))
    return level


def count_down(frontier: Indices, ptr: Ints, dst: Ints, pending: Ints, place: Ints) -> Indices:
    """Count down what the frontier leads to, all at once; returns what became ready, each node once."""
    start = ptr[frontier]
    count = ptr[frontier + 1] - start
    end = np.cumsum(count)
    touched = dst.take(np.repeat(start - end + count, count) + np.arange(end[-1]))
    np.subtract.at(pending, touched, np.int32(1))  # a Python 1 would leave numpy's fast path: 25 times slower
    ready: Indices = touched[pending.take(touched) == 0]
    order = np.arange(len(ready), dtype=np.int32)
    place[ready] = order
    first: Indices = ready[place[ready] == order]
    return first


def _narrow_rounds(frontier: Indices, ptr: Ints, dst: Ints, pending: Ints, level: Ints, depth: int) -> tuple[Indices, int, int]:
    """Walk round by round, node by node, until a round is wide or empty; memoryviews read single numbers fastest."""
    ptr_at, dst_at, pending_at, level_at = ptr.data, dst.data, pending.data, level.data
    current: list[int] = frontier.tolist()
    peeled = 0
    while current and len(current) <= 2 * NARROW:
        peeled += len(current)
        depth += 1
        following: list[int] = []
        for node in current:
            for at in range(ptr_at[node], ptr_at[node + 1]):
                target = dst_at[at]
                left = pending_at[target] - 1
                pending_at[target] = left
                if not left:
                    level_at[target] = depth
                    following.append(target)
        current = following
    return np.array(current, dtype=np.int32), peeled, depth


def _find_cycle(ptr: Ints, src: Ints, stuck: Bools) -> list[int]:
    """A cycle among the stuck nodes, from its lowest on, each gathers the next.

    It is as short as any through the node at which a plain walk first comes back to where it was.
    """
    ptr, src = between_members(ptr, src, stuck)
    itself = np.flatnonzero(np.repeat(np.arange(len(ptr) - 1), np.diff(ptr)) == src)
    if len(itself):
        return [int(src[itself[0]])]
    backward = bool((np.diff(ptr)[stuck] == 0).any())
    walk_ptr, walk_to = consumers(ptr, src) if backward else (ptr, src)
    node = int(np.flatnonzero(stuck)[0])
    seen: set[int] = set()
    while node not in seen:
        seen.add(node)
        node = int(walk_to[walk_ptr[node]])
    cycle = _shortest_round_trip(node, ptr.tolist(), src.tolist())
    lowest = cycle.index(min(cycle))
    return cycle[lowest:] + cycle[:lowest]


def _shortest_round_trip(home: int, ptr: list[int], src: list[int]) -> list[int]:
    """Breadth first from `home` along arguments until one leads back; the path that did."""
    came_from = {home: home}
    queue = [home]
    for node in queue:
        for target in src[ptr[node] : ptr[node + 1]]:
            if target == home:
                path = [node]
                while path[-1] != home:
                    path.append(came_from[path[-1]])
                return path[::-1]
            if target not in came_from:
                came_from[target] = node
                queue.append(target)
    raise AssertionError(f"node {home} is on no cycle")


def _cycle_message(cycle: list[int]) -> str:
    """`cycle: 3 -> 5 -> 3 (vertex 3 gathers vertex 5, which gathers vertex 3)`; the middle of a long one is left out."""
    if len(cycle) == 1:
        return f"cycle: {cycle[0]} -> {cycle[0]} (vertex {cycle[0]} gathers itself)"
    names = [str(node) for node in cycle]
    start, *rest = [*names, names[0]]
    words = [f"which gathers vertex {name}" for name in rest]
    words[0] = f"vertex {start} gathers vertex {rest[0]}"
    arrows = [start, *rest]
    if len(cycle) > 6:
        arrows = [*arrows[:3], "...", *arrows[-2:]]
        words = [f"{len(cycle)} vertices: {words[0]}", words[1], "...", words[-1]]
    return f"cycle: {' -> '.join(arrows)} ({', '.join(words)})"
