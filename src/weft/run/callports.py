"""Which arguments of a call are gathered together: those that are read from one value class.

Arguments that read the same outputs (the left and the right child of a tree node) share an arena, so one gather serves both and
joining them is a view. Arguments that never read the same outputs (a state and an input) stay apart, so that each may be
recurrent or not by itself. What has been seen to be read is remembered, over all programs of a library: classes only grow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from weft.graph.calls import CallType
from weft.plan.library import address, is_plain, library
from weft.run.callgraph import CallGraph

Groups = tuple[tuple[int, ...], ...]


class Sharing:
    """Union-find over (type, argument) and (type, output), fed by what programs read."""

    def __init__(self) -> None:
        self.count = 0
        """Changes whenever classes were joined."""
        self._slot_base: npt.NDArray[np.int64] = np.zeros(1, np.int64)
        self._output_base: npt.NDArray[np.int64] = np.zeros(1, np.int64)
        self._known: npt.NDArray[np.bool_] = np.zeros((0, 0), dtype=np.bool_)
        self._parent: dict[tuple[str, int], tuple[str, int]] = {}
        self._groups: dict[int, tuple[int, Groups]] = {}
        """What `groups` found, and at which count."""

    def see(self, types: list[CallType], graph: CallGraph) -> None:
        """Learn from a program what its calls read."""
        self._grow(types)
        if not self._knows(graph):
            self._learn(graph)

    def _knows(self, graph: CallGraph) -> bool:
        """Whether nothing is new, found out in C; else, and where C cannot, numpy finds it."""
        made, arrays = library(), (graph.type, graph.ptr, graph.src, graph.out)
        if made is None or not all(map(is_plain, arrays)):
            return False
        bases = address(self._slot_base), address(self._output_base), address(self._known), self._known.shape[1]
        return bool(made.weft_all_known(len(graph.type), *map(address, arrays), *bases))

    def _learn(self, graph: CallGraph) -> None:
        type, owner, position, src, out = graph.type, graph.owner, graph.position, graph.src, graph.out
        slots = self._slot_base
        arguments = np.diff(slots) - 1  # the last slot of a type stands for all further arguments
        kind = type.take(owner)
        slot = slots.take(kind) + np.minimum(position, arguments.take(kind))
        output = self._output_base.take(type.take(src)) + out
        wide = int(self._output_base[-1])
        pairs = slot * wide + output
        is_known = self._known.reshape(-1)[pairs]
        if is_known.all():
            return
        fresh = pairs[~is_known]
        for pair in np.unique(fresh).tolist():
            self._join(("slot", pair // wide), ("output", pair % wide))
        self._known.reshape(-1)[fresh] = True

    def groups(self, types: list[CallType], t: int) -> Groups:
        """The argument positions of a type, by value class."""
        count, known = self._groups.get(t, (-1, ()))
        if count == self.count:
            return known
        self._grow(types)
        found: dict[tuple[str, int], list[int]] = {}
        for position in range(len(types[t].args)):
            found.setdefault(self._find(("slot", int(self._slot_base[t]) + position)), []).append(position)
        groups = tuple(map(tuple, found.values()))
        self._groups[t] = self.count, groups
        return groups

    def _grow(self, types: list[CallType]) -> None:
        new = types[len(self._slot_base) - 1 :]
        if not new:
            return
        slots, outputs = np.cumsum([(len(kind.args) + 1, len(kind.outputs)) for kind in new], axis=0).T
        self._slot_base = np.append(self._slot_base, self._slot_base[-1] + slots)
        self._output_base = np.append(self._output_base, self._output_base[-1] + outputs)
        known = np.zeros((int(self._slot_base[-1]), int(self._output_base[-1])), dtype=np.bool_)
        known[: self._known.shape[0], : self._known.shape[1]] = self._known
        self._known = known

    def _find(self, item: tuple[str, int]) -> tuple[str, int]:
        while (above := self._parent.get(item, item)) != item:
            self._parent[item] = self._parent.get(above, above)
            item = above
        return item

    def _join(self, first: tuple[str, int], second: tuple[str, int]) -> None:
        a, b = self._find(first), self._find(second)
        if a != b:
            self._parent[a] = b
            self.count += 1
