"""Which recorded types make one call type: learned from recordings, and what `rewrite.py` reads to rewrite them."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.graph.recording import OUTPUT_BITS, References
from weft.lazy.blocks import OUTSIDE, Block, Source
from weft.lazy.chains import LOW, Chains, Flags, Layout, Longs, Recorded
from weft.lazy.ops import Op
from weft.lazy.state import State

MOST_SETS = 16
"""For how many different sets of types in a flush there are blocks of their own: code with layers has one set for each."""


class Coarse:
    """How the recorded types of a function are put together into call types."""

    def __init__(self, joins: bool, known: dict[Any, Block]) -> None:
        self.joins, self.known = joins, known
        self.chains = Chains()
        self.version = -1
        self.needed: Flags = np.empty(0, bool)
        """For each output column whether it is seen outside of its block."""
        self.labels: dict[tuple[int, ...], tuple[int, ...]] = {}
        """For the outside arguments of each block, which of them were always equal."""
        self.shown: tuple[Any, ...] | None = None
        """What is known, as `c/rewrite.c` reads it; None before the first recording."""
        self._stale = True

    @staticmethod
    def of(state: State, joins: bool, among: bytes = b"") -> Coarse:
        """What was learned of recordings, or of flushes in the middle that hold just these types: their runs are longer."""
        known: dict[bytes, Coarse] = state.kept.setdefault(("coarse", joins), {})
        if among not in known:
            if len(known) > MOST_SETS:
                among = b"others"
            known.setdefault(among, Coarse(joins, state.kept.setdefault("blocks", {})))
        return known[among]

    def see(self, state: State, recorded: Recorded, wanted: References) -> Layout:
        """Learn from a recording what blocks there are, and what of them is seen outside."""
        ops = state.fines
        self.shown, version = None, self.chains.version
        layout = self.chains.see(ops, recorded)
        if version != self.chains.version or self._stale:
            self._number(ops)
        occurrence = np.cumsum(self.position[recorded.type] == 0) - 1
        outside = layout.handed | (occurrence[np.maximum(layout.producer, 0)] != occurrence[layout.consumer])
        self._note_needed(recorded, layout, outside, wanted)
        self._note_equal(recorded, layout)
        if self._stale:
            if len(self.position) != len(ops):  # other flushes have met more types since
                self._number(ops)
            self._make(state)
        chains = self.chains
        learned = chains.arity, chains.first, chains.is_many, chains.after, chains.before, chains.word, chains.near
        made = self.position, self.first_out, self.needed, self.number, self.new_out, self.kept_column, self.label
        self.shown = *learned, *made
        return layout

    def _number(self, ops: list[Op]) -> None:
        """Which block each type is in, and where."""
        blocks = self.chains.blocks if self.joins else [[t] for block in self.chains.blocks for t in block]
        self.position = np.zeros(len(ops), np.int64)
        self.blocks: dict[int, list[int]] = {}
        for block in blocks:
            self.blocks[block[0]] = block
            self.position[block] = np.arange(len(block))
        long = [block for block in blocks if len(block) > 1]
        self.outside = {block[0]: (tuple(block), self._outside(block)) for block in long}
        outs = np.array([len(op.outs) for op in ops], np.int64)
        self.first_out = np.cumsum(outs) - outs
        grown = np.zeros(int(outs.sum()), bool)
        grown[: len(self.needed)] = self.needed
        self.needed = grown
        self._stale = True

    def _note_needed(self, recorded: Recorded, layout: Layout, outside: Flags, wanted: References) -> None:
        used = outside & ~layout.handed
        types, outputs = recorded.type[layout.producer[used]], layout.output[used]
        columns = self.first_out[types] + outputs
        asked = self.first_out[recorded.type[wanted >> OUTPUT_BITS]] + (wanted & LOW)
        for seen in (columns, asked):
            if not self.needed[seen].all():
                self.needed[seen] = True
                self._stale = True

    def _note_equal(self, recorded: Recorded, layout: Layout) -> None:
        """Outside arguments of a block that are always the same value are one argument."""
        for head, (key, columns) in self.outside.items():
            at = np.flatnonzero(recorded.type == head)
            if not len(at) or len(columns) < 2:
                self.labels.setdefault(key, tuple(range(len(columns))))
                continue
            starts = [layout.start[at + position] + column for position, column in columns]
            values = recorded.arguments[np.stack(starts)]
            labels = _equal_rows(values)
            old = self.labels.get(key)
            pairs = labels if old is None else _renumbered(list(zip(old, labels, strict=True)))
            if pairs != old:
                self.labels[key] = pairs
                self._stale = True

    def _outside(self, block: list[int]) -> list[tuple[int, int]]:
        """(position, column) of the arguments that come from outside."""
        chains = self.chains
        return [
            (position, column)
            for position, t in enumerate(block)
            for column in range(int(chains.arity[t]))
            if chains.source(t, column, position) is None
        ]

    def _make(self, state: State) -> None:
        """Call types of all blocks, and the tables that rewriting reads."""
        ops = state.fines
        self.number = np.full(len(ops), -1, np.int64)
        self.new_out = np.arange(len(self.needed)) - np.repeat(self.first_out, [len(op.outs) for op in ops])
        self.kept_column: Flags = np.ones(len(self.chains.word), bool)
        self.label: Longs = np.full(len(self.chains.word), -1, np.int64)
        self.feeds = {head: [(t, i) for t in block for i in range(len(ops[t].feeds))] for head, block in self.blocks.items()}
        """For each block what its operations are fed: types and feed numbers."""
        self.is_fed = any(self.feeds.values())
        for head, block in self.blocks.items():
            if len(block) == 1:
                self.number[head] = state.library.number(ops[head])
            else:
                self.number[head] = state.library.number(self._block(ops, block))
        self._stale = False
        self.version += 1

    def _block(self, ops: list[Op], block: list[int]) -> Block:
        columns = self._outside(block)
        labels = self.labels.get(tuple(block), tuple(range(len(columns))))
        given = dict(zip(columns, labels, strict=True))
        seen: dict[int, int] = {}
        for (position, column), label in given.items():
            at = int(self.chains.first[block[position]]) + column
            self.kept_column[at] = label not in seen
            self.label[at] = seen.setdefault(label, at)
        sources: list[list[Source]] = []
        for position, t in enumerate(block):
            inside = [self.chains.source(t, column, position) for column in range(int(self.chains.arity[t]))]
            sources.append([(OUTSIDE, given[position, column]) if at is None else at for column, at in enumerate(inside)])
        outs: list[Source] = []
        for position, t in enumerate(block):
            for output in range(len(ops[t].outs)):
                if self.needed[self.first_out[t] + output]:
                    self.new_out[self.first_out[t] + output] = len(outs)
                    outs.append((position, output))
        chosen = [ops[t] for t in block]
        key = (tuple(map(id, chosen)), tuple(map(tuple, sources)), tuple(outs))
        return self.known.setdefault(key, Block(chosen, sources, outs))


def _equal_rows(values: Longs) -> tuple[int, ...]:
    """Numbers that are equal where whole rows are."""
    return _renumbered([row.tobytes() for row in values])


def _renumbered(keys: list[Any]) -> tuple[int, ...]:
    first: dict[Any, int] = {}
    return tuple(first.setdefault(key, len(first)) for key in keys)
