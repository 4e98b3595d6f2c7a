"""Which calls of a recording run now, and which wait: found from arrays alone, once for recordings of equal structure."""

from __future__ import annotations

from itertools import compress
from typing import Any

import numpy as np

from weft.graph.recording import OUTPUT_BITS, References
from weft.lazy.chains import LOW, Flags, Layout, Longs, Recorded
from weft.lazy.ops import Op
from weft.lazy.state import State
from weft.plan.schedule import PlanCache
from weft.run.callgraph import CallGraph, needed

MOST_KEPT = 256
"""For so many recordings it is kept how they are divided."""


class Division:
    """A recording of which the calls `left` wait: `number` counts them, `rest` the others.

    References count from the first call of the recording; those below zero are handed in.
    """

    def __init__(self, calls: Recorded, layout: Layout, is_many: Flags, left: Flags) -> None:
        self.calls, self.left, self.is_left = calls, left, left.tolist()
        now, mine = ~left, left[layout.consumer]
        counted = np.cumsum(left)
        self.number, self.rest = counted - 1, np.cumsum(now) - 1
        self.before = [0, *counted.tolist()]
        """How many of the calls in front of each call are left, and of all."""
        self.type, self.arguments = calls.type[left].tolist(), calls.arguments[mine]
        crosses = ~layout.handed & mine & now[np.maximum(layout.producer, 0)]
        self.used: References = np.unique(calls.arguments[crosses])
        """What runs now and is used by what is left."""
        self.handed_at = (layout.handed | crosses)[mine]
        self.handed: list[int] = self.arguments[self.handed_at].tolist()
        many = is_many[calls.type]
        self.further = calls.further[left[many]].tolist()
        self.others = Recorded(
            calls.type[now], self._renumbered(calls.arguments[~mine]), calls.further[now[many]], {}, _starts(calls.starts, now)
        )
        """The calls that run now."""

    def _renumbered(self, refs: References) -> References:
        inside = refs >= 0
        refs[inside] = self.now(refs[inside])
        return refs

    def now(self, refs: References) -> References:
        """References to calls that run now, counted among those."""
        found: References = self.rest[refs >> OUTPUT_BITS] << OUTPUT_BITS | refs & LOW
        return found

    def runs(self, refs: References) -> References:
        """Which of these references are of calls that run now."""
        found: References = refs[~self.left[refs >> OUTPUT_BITS]]
        return found

    def fed(self, ops: list[Op], data: dict[int, list[Any]], left: bool) -> dict[int, list[Any]]:
        """What is fed to the calls that are left, or to the others."""
        chosen = self.left if left else ~self.left
        found: dict[int, list[Any]] = {}
        for number, rows in data.items():
            mine = np.repeat(chosen[self.calls.type == number], len(ops[number].feeds))
            kept = rows if mine.all() else list(compress(rows, mine.tolist()))
            if kept:
                found[number] = kept
        return found


def _starts(starts: Flags, now: Flags) -> Flags:
    """Calls with nothing but left ones between them follow each other."""
    run = np.cumsum(starts[:-1])[now]
    found = np.ones(len(run) + 1, bool)
    found[1:-1] = run[1:] != run[:-1]
    return found


def all_left(state: State, calls: Recorded) -> Division:
    """Everything waits."""
    arity, is_many = state.widths()
    return Division(calls, Layout(calls, arity, is_many), is_many, np.ones(len(calls.type), bool))


def without_unused(state: State, calls: Recorded, wanted: References) -> Division | None:
    """Leave the calls on which nothing wanted depends; None where there are none.

    Inside a block they would run with the others, and the parameters that they alone use would get zeros as gradients.
    """
    arguments = calls.arguments
    is_used = np.zeros(len(calls.type), bool)
    is_used[arguments[arguments >= 0] >> OUTPUT_BITS] = True
    is_used[wanted >> OUTPUT_BITS] = True
    if is_used.all():
        return None
    known: PlanCache = state.kept.setdefault("divisions", PlanCache(MOST_KEPT))
    key = (*calls.key, wanted.tobytes())
    found = known.find(key)
    if found is None:
        arity, is_many = state.widths()
        layout = Layout(calls, arity, is_many)
        found = Division(calls, layout, is_many, ~_needed(calls, layout, wanted))
        known.add(key, found)
    assert isinstance(found, Division)
    return found


def _needed(calls: Recorded, layout: Layout, wanted: References) -> Flags:
    """The calls on which something wanted depends; what is handed in comes, here, from one more call in front of all."""
    ptr = np.concatenate([[0], layout.start, [len(calls.arguments)]])
    src = np.where(layout.handed, 0, layout.producer + 1)
    graph = CallGraph(np.append(np.int32(0), calls.type), ptr, src, layout.output, ptr)
    keep = needed(graph, wanted + (1 << OUTPUT_BITS))
    assert keep is not None
    return keep[1:]


def divided(state: State, calls: Recorded, finished: Flags, missing: Flags, needed: Longs) -> Division | None:
    """Leave the calls of finished examples and those of late types, such that nothing that runs now uses any of it.

    `missing` tells which of what is handed in was left before; None where what runs now needs some of it.
    """
    known: PlanCache = state.kept.setdefault("divisions", PlanCache(MOST_KEPT))
    key = (*calls.key, finished.tobytes(), missing.tobytes(), needed.tobytes())
    found: Any = known.find((*key, state.eager().tobytes())) or _divided(state, calls, finished, missing, needed)
    if found is not None:
        known.add((*key, state.eager().tobytes()), found)  # by what is eager now: dividing may have learned more
    division: Division | None = found
    return division


def _divided(state: State, calls: Recorded, finished: Flags, missing: Flags, needed: Longs) -> Division | None:
    arity, is_many = state.widths()
    layout, eager, types = Layout(calls, arity, is_many), state.eager(), calls.type
    owner, producer, inside = layout.consumer, np.maximum(layout.producer, 0), ~layout.handed
    forced = np.zeros(len(types), bool)
    if missing.any():
        forced[owner[layout.handed][missing[-calls.arguments[layout.handed] - 1]]] = True
    while True:
        left = finished | forced | ~eager[types]
        wrong = np.append(producer[inside & ~left[owner] & left[producer]], needed[left[needed]])
        if not len(wrong):
            return Division(calls, layout, is_many, left)
        if forced[wrong].any():
            return None
        if finished[wrong].any():  # examples use each other's values
            finished = np.zeros(len(left), bool)
        eager[types[wrong]] = True
