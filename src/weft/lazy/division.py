"""Which calls of a recording run now, and which wait: found from arrays alone, by `c/weave.c` or, as it says here, by numpy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np

from weft.graph.recording import OUTPUT_BITS, References
from weft.lazy.chains import LOW, Flags, Layout, Recorded
from weft.lazy.native import functions
from weft.lazy.ops import Op
from weft.lazy.state import State
from weft.lazy.taken import Pending


@dataclass(frozen=True, eq=False)
class Division:
    """Calls of which some run now, and some wait. What nothing depends on is in neither."""

    runs: Flags
    left: Flags
    wanted: References
    """Of what is alive, and of what is used by what is left, references to what runs now; sorted."""
    chosen: References
    """The same, counted from the first call that runs."""
    handed: References
    """References to what the calls that run use of others; sorted."""
    others: Recorded
    """The calls that run now; of what is handed in, the first is -1, the next -2."""
    later: Pending
    """The calls that wait; what they are fed is not among it."""

    def fed(self, ops: list[Op], calls: Pending, chosen: Flags) -> dict[int, list[Any]]:
        """What is fed to some of the calls."""
        found: dict[int, list[Any]] = {}
        for number, rows in calls.data.items():
            mine = np.repeat(chosen[calls.type == number], len(ops[number].feeds))
            kept = rows if mine.all() else list(compress(rows, mine.tolist()))
            if kept:
                found[number] = kept
        return found


def divided(state: State, calls: Pending, busy: Flags, waits: Flags, asked: References, alive: References) -> Division | None:
    """Leave the calls of examples that are not busy and those of late types, such that nothing that runs now uses any of it.

    `waits` tells which calls were left before; None where what runs now needs some of them. Without `busy` nothing is left.
    """
    native = functions("weave.c", "weft_divide")
    if native is not None:
        columns = calls.type, calls.arguments, calls.further, calls.number, calls.starts, calls.example
        found = native[0]((*columns, *state.widths(), state.eager(), busy, waits, asked, alive))
        if found is not None:
            return _unpacked(found)
    recorded, handed = calls.numbered()
    layout = Layout(recorded, *state.widths())
    left = _left(state, calls, layout, busy, waits, asked) if len(busy) else np.zeros(len(calls.type), bool)
    return None if left is None else _division(calls, recorded, layout, state.widths()[1], left, handed, alive)


def _unpacked(found: Any) -> Division:
    """What C gives, as arrays."""
    arrays: list[Any] = [np.frombuffer(data, kind) for data, kind in zip(found, "??qqqiqi?qiqi?i", strict=True)]
    runs, left, wanted, chosen, handed, types, arguments, further, starts, *waiting = arrays
    number, late, references, more, begins, example = waiting
    later = Pending(number, late, references, more, begins, example, {}, [])
    return Division(runs, left, wanted, chosen, handed, Recorded(types, arguments, further, {}, starts), later)


def _left(state: State, calls: Pending, layout: Layout, busy: Flags, waits: Flags, asked: References) -> Flags | None:
    """The calls that wait. What turns out to be needed does not wait the next time."""
    eager, types = state.eager(), calls.type
    owner, producer, inside = layout.consumer, np.maximum(layout.producer, 0), ~layout.handed
    needed = calls.places(asked) >> OUTPUT_BITS
    finished = np.append(~busy, True)[np.minimum(calls.example, len(busy))]
    forced = np.zeros(len(types), bool)
    earlier = np.flatnonzero((calls.arguments >= 0) & (calls.arguments >> OUTPUT_BITS < len(waits)))
    forced[owner[earlier[waits[calls.arguments[earlier] >> OUTPUT_BITS]]]] = True
    while True:
        left: Flags = finished | forced | ~eager[types]
        wrong = np.append(producer[inside & ~left[owner] & left[producer]], needed[left[needed]])
        if not len(wrong):
            return left
        if forced[wrong].any():
            return None
        if finished[wrong].any():  # examples use each other's values
            finished = np.zeros(len(left), bool)
        eager[types[wrong]] = True


def _division(
    calls: Pending, recorded: Recorded, layout: Layout, is_many: Flags, left: Flags, handed: References, alive: References
) -> Division:
    now, mine, many = ~left, left[layout.consumer], is_many[calls.type]
    crosses = ~layout.handed & mine & now[np.maximum(layout.producer, 0)]
    places = calls.places(alive)
    wanted = np.union1d(places[now[places >> OUTPUT_BITS]], recorded.arguments[crosses])
    runs = now & _needed(layout, len(now), wanted)
    rest = np.cumsum(runs) - 1

    def renumbered(refs: References) -> References:
        found: References = rest[refs >> OUTPUT_BITS] << OUTPUT_BITS | refs & LOW
        return found

    arguments = recorded.arguments[runs[layout.consumer]]
    used, slots = np.unique(-1 - arguments[arguments < 0], return_inverse=True)
    arguments = np.where(arguments < 0, 0, renumbered(np.maximum(arguments, 0)))
    arguments[recorded.arguments[runs[layout.consumer]] < 0] = -1 - slots
    others = Recorded(calls.type[runs], arguments, calls.further[runs[many]], {}, _starts(calls.starts, runs))
    columns = calls.number[left], calls.type[left], calls.arguments[mine], calls.further[left[many]]
    later = Pending(*columns, _starts(calls.starts, left), calls.example[left], {}, [])
    return Division(runs, left, calls.refs(wanted), renumbered(wanted), handed[used], others, later)


def _starts(starts: Flags, chosen: Flags) -> Flags:
    """Calls with nothing but others between them follow each other."""
    run = np.cumsum(starts[:-1])[chosen]
    found = np.ones(len(run) + 1, bool)
    found[1:-1] = run[1:] != run[:-1]
    return found


def _needed(layout: Layout, count: int, wanted: References) -> Flags:
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
