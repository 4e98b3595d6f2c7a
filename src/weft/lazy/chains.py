"""Straight runs of recorded calls, learned from the recordings themselves.

Every recorded type is an operation at one place in the user's code. If type A is always directly followed by B, and B always
directly preceded by A, over all recordings so far, then the two are one straight run: no branch, no loop and no boundary comes
between. Maximal runs are *blocks*. An argument of a call in a block is either always the same output of the same earlier call
of the block, or always from outside; where that is not so, the block is cut.

    tape     | embed lin tanh | embed lin tanh | cat lin tanh | out |         | where other code goes on
    blocks     ------A-------   ------A-------   -----B-----   -C-
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.graph.program import Ints
from weft.graph.recording import OUTPUT_BITS, References, Table
from weft.lazy.ops import Op

UNKNOWN, VARIES = -1, -2
FAR = 1 << 40
LONGEST = 512
LOW = (1 << OUTPUT_BITS) - 1
MOST_OUTS = LOW

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recording as arrays, its types numbered as recorded. `starts[i]` says that call i does not follow call i - 1 in the
    user's code. References count from the first call; those below zero are handed in from outside."""

    type: Ints
    arguments: References
    further: Ints
    data: dict[tuple[int, int], Table]
    starts: Flags


class Layout:
    """Where the arguments of each call are: derived from a recording and the operations of its types."""

    def __init__(self, recorded: Recorded, arity: Longs, is_many: Flags) -> None:
        t = recorded.type
        count = arity[t]
        if len(recorded.further):
            count[is_many[t]] += recorded.further
        ends = np.cumsum(count)
        self.start = ends - count
        self.consumer = np.repeat(np.arange(len(t)), count)
        self.column = np.arange(len(recorded.arguments)) - self.start[self.consumer]
        self.producer = recorded.arguments >> OUTPUT_BITS
        self.output = recorded.arguments & LOW
        self.handed = recorded.arguments < 0


class Chains:
    """What recordings have shown so far, by recorded type. `version` grows whenever blocks may have changed."""

    def __init__(self) -> None:
        self.version = 0
        self.arity: Longs = np.empty(0, np.int64)
        self.first: Longs = np.empty(0, np.int64)
        """The first column of each type in `word` and `near`."""
        self.is_many: Flags = np.empty(0, bool)
        self.outs: list[int] = []
        """How many outputs each type has."""
        self.after: Longs = np.empty(0, np.int64)
        self.before: Longs = np.empty(0, np.int64)
        self.word: Longs = np.empty(0, np.int64)
        """For each argument column: how many calls back its producer is, and which output; or that it varies."""
        self.near: Longs = np.empty(0, np.int64)
        self.blocks: list[list[int]] = []

    def see(self, ops: Sequence[Op], recorded: Recorded) -> Layout:
        """Learn from a recording."""
        self._grow(ops)
        layout = Layout(recorded, self.arity, self.is_many)
        t = recorded.type.astype(np.int64)
        follows = np.where(recorded.starts[1:], VARIES, np.append(t[1:], 0))
        precedes = np.where(recorded.starts[:-1], VARIES, np.append(0, t[:-1]))
        user = t[layout.consumer]
        columns = self.first[user] + layout.column
        distance = np.where(layout.handed, FAR, layout.consumer - layout.producer)
        if len(recorded.further):
            single = ~self.is_many[user]
            columns, distance, output = columns[single], distance[single], layout.output[single]
        else:
            output = layout.output
        words = np.where(distance == FAR, FAR, distance << OUTPUT_BITS | output)
        shown = ((self.after, t, follows), (self.before, t, precedes), (self.word, columns, words))
        if self.blocks and all(_is_known(*each) for each in shown) and bool((self.near[columns] <= distance).all()):
            return layout
        for table, keys, values in shown:
            _agree(table, keys, values)
        np.minimum.at(self.near, columns, distance)
        self._find()
        return layout

    def _grow(self, ops: Sequence[Op]) -> None:
        new = ops[len(self.arity) :]
        if not new:
            return
        arity = np.array([len(op.args) for op in new], np.int64)
        self.first = np.append(self.first, len(self.word) + np.cumsum(arity) - arity)
        self.arity = np.append(self.arity, arity)
        self.outs += [len(op.outs) for op in new]
        self.is_many = np.append(self.is_many, [op.many is not None for op in new])
        unknown = np.full(len(new), UNKNOWN, np.int64)
        self.after, self.before = np.append(self.after, unknown), np.append(self.before, unknown)
        self.word = np.append(self.word, np.full(int(arity.sum()), UNKNOWN, np.int64))
        self.near = np.append(self.near, np.full(int(arity.sum()), FAR, np.int64))

    def _find(self) -> None:
        """The blocks, from what is known now."""
        after, before = self.after.tolist(), self.before.tolist()
        found: list[list[int]] = []
        for head in range(len(after)):
            if (before[head] == UNKNOWN and after[head] == UNKNOWN) or self._joins(before[head], head):
                continue
            chain = [head]
            while self._joins(chain[-1], after[chain[-1]]):
                chain.append(after[chain[-1]])
            found += self._cut(chain)
        if found != self.blocks:
            self.blocks = found
            self.version += 1

    def _joins(self, t: int, u: int) -> bool:
        """Whether u always comes directly after t."""
        if t < 0 or u < 0 or self.is_many[t] or self.is_many[u]:
            return False
        return bool(self.after[t] == u and self.before[u] == t)

    def _cut(self, chain: list[int]) -> list[list[int]]:
        """Pieces of a run in which every argument is always from inside or always from outside."""
        pieces: list[list[int]] = [[]]
        outs = 0
        for t in chain:
            at = len(pieces[-1])
            outs += self.outs[t]
            columns = slice(self.first[t], self.first[t] + self.arity[t])
            changes = (self.word[columns] == VARIES) & (self.near[columns] <= at)
            if at and (bool(changes.any()) or at >= LONGEST or outs > MOST_OUTS):
                pieces.append([])
                outs = self.outs[t]
            pieces[-1].append(t)
        return pieces

    def source(self, t: int, column: int, position: int) -> tuple[int, int] | None:
        """(position in the block, output) of an argument's producer, or None if it comes from outside."""
        word = int(self.word[self.first[t] + column])
        distance = word >> OUTPUT_BITS
        return (position - distance, word & LOW) if word != VARIES and distance <= position else None


def _is_known(table: Longs, keys: Longs, values: Longs) -> bool:
    """Whether these values say nothing new."""
    found = table[keys]
    return bool(((found == values) | (found == VARIES)).all())


def _agree(table: Longs, keys: Longs, values: Longs) -> None:
    """Write values at keys that are unknown; where two differ, say so."""
    unknown = table[keys] == UNKNOWN
    table[keys[unknown]] = values[unknown]
    table[keys[table[keys] != values]] = VARIES
