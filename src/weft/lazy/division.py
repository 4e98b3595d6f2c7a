"""Which calls of a recording run now, and which wait: found from arrays alone, once for recordings of equal structure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from typing import Any

import numpy as np

from weft.graph.recording import OUTPUT_BITS, References
from weft.lazy.chains import LOW, Flags, Layout, Longs, Recorded
from weft.lazy.ops import Op
from weft.lazy.state import State
from weft.lazy.taken import Pending
from weft.lazy.value import Value
from weft.plan.schedule import PlanCache

MOST_KEPT = 256
"""For so many recordings it is kept how they are divided."""


class Division:
    """A recording of which the calls `left` wait, and the `others` run now. What nothing depends on is in neither.

    References count from the first call of the recording; those below zero are handed in.
    """

    def __init__(self, calls: Recorded, layout: Layout, is_many: Flags, left: Flags, alive: References) -> None:
        self.calls, self.left = calls, left
        now, self.mine = ~left, left[layout.consumer]
        crosses = ~layout.handed & self.mine & now[np.maximum(layout.producer, 0)]
        self.wanted: References = np.union1d(alive[now[alive >> OUTPUT_BITS]], calls.arguments[crosses])
        """Of what is alive, and of what is used by what is left, references to what runs now."""
        self.runs = now = now & needed(layout, len(now), self.wanted)
        self.rest = np.cumsum(now) - 1
        many = is_many[calls.type]
        self.many = left[many]
        arguments, further = calls.arguments[now[layout.consumer]], calls.further[now[many]]
        self.others = Recorded(calls.type[now], self._renumbered(arguments), further, {}, _starts(calls.starts, now))
        """The calls that run now."""

    def _renumbered(self, refs: References) -> References:
        inside = refs >= 0
        refs[inside] = self.now(refs[inside])
        return refs

    def now(self, refs: References) -> References:
        """References to calls that run now, counted among those."""
        found: References = self.rest[refs >> OUTPUT_BITS] << OUTPUT_BITS | refs & LOW
        return found

    def later(self, calls: Pending, values: list[Value], data: dict[int, list[Any]]) -> Pending:
        """Of these calls, of which this is the division, those that are left."""
        left, starts = self.left, _starts(calls.starts, self.left)
        arguments, further = calls.arguments[self.mine], calls.further[self.many]
        return Pending(calls.number[left], calls.type[left], arguments, further, starts, calls.example[left], data, values)

    def fed(self, ops: list[Op], data: Mapping[int, list[Any]], chosen: Flags) -> dict[int, list[Any]]:
        """What is fed to some of the calls."""
        found: dict[int, list[Any]] = {}
        for number, rows in data.items():
            mine = np.repeat(chosen[self.calls.type == number], len(ops[number].feeds))
            kept = rows if mine.all() else list(compress(rows, mine.tolist()))
            if kept:
                found[number] = kept
        return found


def _starts(starts: Flags, chosen: Flags) -> Flags:
    """Calls with nothing but others between them follow each other."""
    run = np.cumsum(starts[:-1])[chosen]
    found = np.ones(len(run) + 1, bool)
    found[1:-1] = run[1:] != run[:-1]
    return found


def needed(layout: Layout, count: int, wanted: References) -> Flags:
    """The calls on which something wanted depends."""
    readers = np.bincount(layout.producer[~layout.handed], minlength=count)
    readers += np.bincount(wanted >> OUTPUT_BITS, minlength=count)
    keep = np.ones(count, bool)
    dead = np.flatnonzero(readers == 0)
    while len(dead):
        keep[dead] = False
        lengths = np.append(layout.start, len(layout.producer))[dead + 1] - layout.start[dead]
        starts = np.repeat(layout.start[dead] - (np.cumsum(lengths) - lengths), lengths)
        read = layout.producer[starts + np.arange(lengths.sum())]
        read = read[read >= 0]
        np.subtract.at(readers, read, 1)
        dead = np.unique(read[readers[read] == 0])
    return keep


def divided(state: State, calls: Recorded, finished: Flags, missing: Flags, asked: Longs, alive: References) -> Division | None:
    """Leave the calls of finished examples and those of late types, such that nothing that runs now uses any of it.

    `missing` tells which of what is handed in was left before; None where what runs now needs some of it.
    """
    known: PlanCache = state.kept.setdefault("divisions", PlanCache(MOST_KEPT))
    key = (*calls.key, finished.tobytes(), missing.tobytes(), asked.tobytes(), alive.tobytes())
    found: Any = known.find((*key, state.eager().tobytes())) or _divided(state, calls, finished, missing, asked, alive)
    if found is not None:
        known.add((*key, state.eager().tobytes()), found)  # by what is eager now: dividing may have learned more
    division: Division | None = found
    return division


def undivided(state: State, calls: Recorded, alive: References) -> Division:
    """Leave nothing."""
    known: PlanCache = state.kept.setdefault("divisions", PlanCache(MOST_KEPT))
    key = (*calls.key, alive.tobytes())
    found: Any = known.find(key)
    if found is None:
        arity, is_many = state.widths()
        none = np.zeros(len(calls.type), bool)
        found = Division(calls, Layout(calls, arity, is_many), is_many, none, alive)
        known.add(key, found)
    division: Division = found
    return division


def _divided(
    state: State, calls: Recorded, finished: Flags, missing: Flags, asked: Longs, alive: References
) -> Division | None:
    arity, is_many = state.widths()
    layout, eager, types = Layout(calls, arity, is_many), state.eager(), calls.type
    owner, producer, inside = layout.consumer, np.maximum(layout.producer, 0), ~layout.handed
    forced = np.zeros(len(types), bool)
    if missing.any():
        forced[owner[layout.handed][missing[-calls.arguments[layout.handed] - 1]]] = True
    while True:
        left = finished | forced | ~eager[types]
        wrong = np.append(producer[inside & ~left[owner] & left[producer]], asked[left[asked]])
        if not len(wrong):
            return Division(calls, layout, is_many, left, alive)
        if forced[wrong].any():
            return None
        if finished[wrong].any():  # examples use each other's values
            finished = np.zeros(len(left), bool)
        eager[types[wrong]] = True
