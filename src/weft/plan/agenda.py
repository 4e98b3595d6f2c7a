r"""Agenda: run all ready nodes of the type that lies lowest (DyNet's rule; Neubig, Goldberg and Dyer 2017, On-the-fly operation
batching in dynamic computation graphs).

The rule: among the types that have a node whose arguments are all computed, take the one with the lowest mean level, and run
all its ready nodes as one step; on a tie the type with the lower number. The mean is over the nodes of the type that have not
run yet. DyNet's code takes it once, over all nodes of the type, and leaves it; to follow what is left needs fewer steps where
types feed each other, and more in some programs where they do not (the chains c and a b b c: 5 against 4).

        b           level 2
        |
        c     b     level 1        depth    leaf | b | c | b     4 steps
        |     |                    agenda   leaf | c | b         3 steps: b lies higher than c, so it waits
      leaf   leaf   level 0

Cost: O(nodes + edges + steps * types). A wide step is a handful of numpy calls, a narrow one is walked in Python. It loses
where it runs a low type to its end although more of its nodes are one step of another type away: the chains a a and b a b
take a | a | b | a | b, by depth a | b | a | b.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from weft.graph.program import Ints
from weft.plan.levels import NARROW, Bools, Indices, between_members, consumers, count_down, offsets, stable_order


def agenda_steps(type: Ints, level: Ints, ptr: Ints, src: Ints, member: Bools | None = None) -> Ints:
    """The step of every node: consecutive numbers in the order of running. Nodes that are no members get -1.

    `level` must be the levels of this graph, within `member` where that is given.

    >>> import numpy as np
    >>> type, level = np.array([0, 1, 2, 2, 1], np.int32), np.array([0, 1, 2, 1, 2], np.int32)
    >>> ptr, src = np.array([0, 0, 1, 2, 3, 4], np.int32), np.array([0, 1, 0, 3], np.int32)
    >>> agenda_steps(type, level, ptr, src).tolist()
    [0, 1, 2, 2, 3]
    """
    ptr, src = between_members(ptr, src, member)
    reads_nothing = np.diff(ptr) == 0
    agenda = _Agenda(type, level, ptr, src, member)
    agenda.add(np.flatnonzero(reads_nothing if member is None else reads_nothing & member))
    while agenda.ready:
        agenda.run(min((agenda.mean[kind], kind) for kind in agenda.ready)[1])
    return agenda.step


class _Agenda:
    """Which nodes of each type are ready, and the mean level of those that have not run."""

    def __init__(self, type: Ints, level: Ints, ptr: Ints, src: Ints, member: Bools | None) -> None:
        self.type, self.level = type, level
        self.readers_ptr, self.readers = consumers(ptr, src)
        self.pending: Ints = np.diff(ptr).astype(np.int32)
        self.step = np.full(len(type), -1, dtype=np.int32)
        self.steps = 0
        self.ready: set[int] = set()
        self._place = np.empty(len(type), dtype=np.int32)
        self._types = int(type.max(initial=-1)) + 1
        self._single: list[list[int]] = [[] for _ in range(self._types)]
        self._bulk: list[list[Indices]] = [[] for _ in range(self._types)]
        kinds, heights = (type, level) if member is None else (type[member], level[member])
        self._left: list[int] = np.bincount(kinds, minlength=self._types).tolist()
        self._height: list[float] = np.bincount(kinds, weights=heights, minlength=self._types).tolist()
        self.mean = [height / max(left, 1) for height, left in zip(self._height, self._left, strict=True)]

    def add(self, nodes: Indices) -> None:
        """These nodes have become ready."""
        kinds = self.type[nodes]
        nodes = nodes[stable_order(kinds, self._types)]
        bounds = offsets(np.bincount(kinds, minlength=self._types)).tolist()
        for kind, (start, end) in enumerate(pairwise(bounds)):
            if start < end:
                self._bulk[kind].append(nodes[start:end])
                self.ready.add(kind)

    def run(self, kind: int) -> None:
        """All ready nodes of this type run as one step."""
        single, bulk = self._single[kind], self._bulk[kind]
        self._single[kind], self._bulk[kind] = [], []
        self.ready.discard(kind)
        count = len(single) + sum(map(len, bulk))
        if count > NARROW:
            height = self._run_many(np.concatenate([*bulk, np.array(single, dtype=np.int32)]))
        else:
            height = self._run_few(single + [node for nodes in bulk for node in nodes.tolist()])
        self.steps += 1
        self._left[kind] -= count
        self._height[kind] -= height
        self.mean[kind] = self._height[kind] / max(self._left[kind], 1)

    def _run_many(self, nodes: Indices) -> int:
        self.step[nodes] = self.steps
        self.add(count_down(nodes, self.readers_ptr, self.readers, self.pending, self._place))
        return int(self.level[nodes].sum())

    def _run_few(self, nodes: list[int]) -> int:
        step_at, level_at, type_at, pending_at = self.step.data, self.level.data, self.type.data, self.pending.data
        ptr_at, readers_at = self.readers_ptr.data, self.readers.data
        height = 0
        for node in nodes:
            step_at[node] = self.steps
            height += level_at[node]
            for at in range(ptr_at[node], ptr_at[node + 1]):
                reader = readers_at[at]
                left = pending_at[reader] - 1
                pending_at[reader] = left
                if not left:
                    kind = type_at[reader]
                    self._single[kind].append(reader)
                    self.ready.add(kind)
        return height
