"""Which calls of a recording run now and which wait: found from arrays alone, by `c/divide.c` or, as it says here, by numpy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from sys import getrefcount
from typing import Any

import numpy as np

from weft.graph.recording import OUTPUT_BITS, References
from weft.lazy.chains import LOW, Flags, Layout, Longs, Recorded
from weft.lazy.native import functions
from weft.lazy.ops import Op
from weft.lazy.pools import Found, found_rows
from weft.lazy.taken import Pending
from weft.lazy.tape import Tape
from weft.lazy.value import Value


@dataclass(eq=False, slots=True)
class Division:
    """Calls of which some run now, and some wait. What nothing depends on is in neither."""

    waiting: list[Value]
    """Values that somebody holds, of calls that wait."""
    found: Found
    """Where the results are that are handed in."""
    runs: Flags
    left: Flags
    wanted: References
    """Of what is alive, and of what is used by what is left, references to what runs now; sorted."""
    chosen: References
    """The same, counted from the first call that runs."""
    handed: References
    """References to what the calls that run use of others; sorted."""
    present: Longs
    """The types of the calls that run now, each once."""
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


def divided(
    tape: Tape, calls: Pending, values: list[list[Value]], busy: list[int] | None, asked: list[Value], wanted: References | None
) -> Division | None:
    """Leave the calls of examples that are not busy and those of late types, such that nothing that runs now uses any of it.

    None where what runs now needs some that were left before. Without `busy` nothing is left. Without `wanted` that is wanted
    which somebody holds of these values.
    """
    state, native = tape.state, functions("weave", "weft_divide")
    if native is not None:
        columns = calls.number, calls.type, calls.arguments, calls.further, calls.starts, calls.example
        arrays = *columns, *state.widths(), state.eager(), tape.waits
        found = native[0]((arrays, busy, asked, values, wanted, tape.results))
        if found is not None:
            return _unpacked(*found)
    counted = [(some, list(map(getrefcount, some))) for some in values]
    held = [value for pairs in counted for value, count in zip(*pairs, strict=True) if count > _UNHELD]
    alive = _alive(tape, calls, held) if wanted is None else wanted
    recorded, handed = calls.numbered()
    layout = Layout(recorded, *state.widths())
    left = np.zeros(len(calls.type), bool) if busy is None else _left(tape, calls, layout, busy, asked)
    return None if left is None else _division(tape, calls, recorded, layout, left, handed, alive, held)


def divided_by(tape: Tape, calls: Pending, left: Flags, wanted: References) -> Division:
    """Leave these calls, of which no other uses anything; of the others run what they or what is wanted need."""
    recorded, handed = calls.numbered()
    return _division(tape, calls, recorded, Layout(recorded, *tape.state.widths()), left, handed, wanted, [])


def _unpacked(waiting: list[Value], rows: Any, *columns: Any) -> Division:
    """What C gives, as arrays."""
    arrays: list[Any] = list(map(np.frombuffer, columns, "??qqqqiqi?qiqi?i"))
    runs, left, wanted, chosen, handed, present, types, arguments, further, starts, *left_over = arrays
    number, late, references, more, begins, example = left_over
    later = Pending(number, late, references, more, begins, example, {}, [])
    others = Recorded(types, arguments, further, {}, starts)
    where = Found(np.frombuffer(rows[0], np.int64), np.frombuffer(rows[1], np.int64), rows[2])
    return Division(waiting, where, runs, left, wanted, chosen, handed, present, others, later)


_UNHELD = next(map(getrefcount, [object()]))
"""What the count of references is where only a list holds an object."""


def _alive(tape: Tape, calls: Pending, held: list[Value]) -> References:
    """References of the values that are held, of those calls."""
    least = int(calls.number[0]) << OUTPUT_BITS if len(calls.number) else 0
    refs = [value._ref for value in held if value._ref >= least and value._ref not in tape.results]
    return np.unique(np.array(refs, np.int64))


def _left(tape: Tape, calls: Pending, layout: Layout, busy: list[int], asked: list[Value]) -> Flags | None:
    """The calls that wait. What turns out to be needed does not wait the next time."""
    eager, types, waits = tape.state.eager(), calls.type, np.frombuffer(tape.waits, bool)
    owner, producer, inside = layout.consumer, np.maximum(layout.producer, 0), ~layout.handed
    refs = [value._ref for value in asked]
    if not all(map(calls.holds, refs)):
        return None
    needed = calls.places(np.array(refs, np.int64)) >> OUTPUT_BITS
    finished = ~np.isin(calls.example, busy)
    forced = np.zeros(len(types), bool)
    earlier = np.flatnonzero(layout.handed & (calls.arguments >= 0) & (calls.arguments >> OUTPUT_BITS < len(waits)))
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
    tape: Tape,
    calls: Pending,
    recorded: Recorded,
    layout: Layout,
    left: Flags,
    handed: References,
    alive: References,
    held: list[Value],
) -> Division:
    now, mine, many = ~left, left[layout.consumer], tape.state.widths()[1][calls.type]
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
    refs, chosen, given = calls.refs(wanted), renumbered(wanted), handed[used]
    present = np.flatnonzero(np.bincount(others.type))
    waits = {*later.number.tolist(), *np.flatnonzero(np.frombuffer(tape.waits, bool)).tolist()} - {*calls.number[now].tolist()}
    waiting = [value for value in held if value._ref >> OUTPUT_BITS in waits]
    return Division(waiting, found_rows(tape.results, given), runs, left, refs, chosen, given, present, others, later)


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
