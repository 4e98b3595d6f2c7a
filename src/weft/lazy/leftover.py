"""What nobody waits for is left for the last flush, where it runs together with all that is like it.

A flush in the middle computes what the waiting examples need. Two things are taken off the tape and put back at the very end:
what finished examples recorded since the last flush, and calls of *late* types, on which no number that was asked for has ever
depended, and which were never used again after a flush.

    tape       | example 0 waits | example 1 ends | example 2 waits | example 3 ends |
    runs now     ----------  ---                    ----------  ---
    at the end             ^       --------------             ^       --------------
"""

from __future__ import annotations

from collections.abc import Container
from itertools import compress
from typing import Any

import numpy as np
from torch import Tensor

from weft.graph.recording import OUTPUT_BITS, References
from weft.lazy.chains import LOW, Flags, Layout, Longs, Recorded
from weft.lazy.taken import calls_of, tables_of
from weft.lazy.tape import Tape
from weft.lazy.value import STEP, Value


class Leftover:
    """Calls since the last flush of which some can wait. `left` says which, `number` counts those, `rest` the others."""

    def __init__(self, tape: Tape) -> None:
        self.tape, self.floor = tape, tape.floor
        self.calls = calls_of(tape)
        layout = Layout(self.calls, *tape.state.widths())
        self.owner, self.producer, self.inside = layout.consumer, layout.producer, ~layout.handed
        self.leave(np.ones(len(self.calls.type), bool))

    def leave(self, left: Flags) -> None:
        """These calls are left."""
        self.left = left
        self.number, self.rest = np.cumsum(left) - 1, np.cumsum(~left) - 1
        self.crosses: Flags = self.inside & left[self.owner] & ~left[self.producer]

    def choose(self, finished: Flags, needed: Longs) -> bool:
        """Leave what can wait, such that nothing that runs now uses any of it; False where what was left before is needed."""
        eager, forced = self.tape.state.eager(), self._uses_what_is_left()
        types = self.calls.type
        while True:
            left = finished | forced | ~eager[types]
            wrong = np.append(self.producer[self.inside & ~left[self.owner] & left[self.producer]], needed[left[needed]])
            if not len(wrong):
                self.leave(left)
                return True
            if forced[wrong].any():
                return False
            if finished[wrong].any():  # examples use each other's values
                finished = np.zeros(len(left), bool)
            eager[types[wrong]] = True

    def _uses_what_is_left(self) -> Flags:
        """Which calls use a value that was left by an earlier flush."""
        found = np.zeros(len(self.calls.type), bool)
        results = self.tape.results
        missing = [ref not in results for ref in self.tape.imported_refs] if self.tape.left else []
        if any(missing):
            handed = ~self.inside
            found[self.owner[handed][np.array(missing)[-self.calls.arguments[handed] - 1]]] = True
        return found

    @property
    def used(self) -> References:
        """References of what runs now that is used by what is left, as often as it is used."""
        found: References = self.calls.arguments[self.crosses] + self.floor
        return found

    def others(self) -> Recorded:
        """The recording of the calls that run now."""
        calls, now = self.calls, ~self.left
        arguments = calls.arguments[now[self.owner]]
        inside = arguments >= 0
        arguments[inside] = self.rest[arguments[inside] >> OUTPUT_BITS] << OUTPUT_BITS | arguments[inside] & LOW
        further = calls.further[self._of_many(now)] if len(calls.further) else calls.further
        run = np.cumsum(calls.starts[:-1])[now]  # calls with nothing but left ones between them follow each other
        starts = np.ones(len(run) + 1, bool)
        starts[1:-1] = run[1:] != run[:-1]
        return Recorded(calls.type[now], arguments, further, tables_of(self.tape.state, self._fed(now)), starts)

    def _of_many(self, chosen: Flags) -> Flags:
        """Which of the calls that take many arguments are among the chosen ones."""
        found: Flags = chosen[self.tape.state.widths()[1][self.calls.type]]
        return found

    def _fed(self, chosen: Flags) -> dict[int, list[Any]]:
        """What is fed to the chosen calls."""
        found: dict[int, list[Any]] = {}
        for number, rows in self.tape.data.items():
            mine = chosen[self.calls.type == number]
            feeds = len(self.tape.state.fines[number].feeds)
            kept = rows if mine.all() else list(compress(rows, (mine if feeds == 1 else np.repeat(mine, feeds)).tolist()))
            if kept:
                found[number] = kept
        return found

    def take_off(self, values: list[Value], copies: bool) -> None:
        """Keep what is needed to put the calls back, before the tape goes on without them. `copies`: of fed tensors, too."""
        tape, chosen, calls, floor = self.tape, self.left.tolist(), self.calls, self.floor
        mine = self.left[self.owner]
        self.type = calls.type[self.left].tolist()
        self.arguments, inside = calls.arguments[mine], self.inside[mine]
        self.arguments[inside] += floor
        self.handed_at = ~inside | self.crosses[mine]
        handed = self.arguments[self.handed_at].tolist()
        self.handed = [tape.imported_refs[-ref - 1] if ref < 0 else ref for ref in handed]
        self.further = calls.further[self._of_many(self.left)].tolist() if len(calls.further) else []
        fed = self._fed(self.left)
        self.data = {
            number: [row.clone() if copies and isinstance(row, Tensor) else row for row in rows] for number, rows in fed.items()
        }
        self.fed = [] if copies else tape.fed
        before = [0, *np.cumsum(self.left).tolist()]
        ends = [start for start, _ in tape.bounds[1:]] + [len(chosen)]
        pieces = zip(tape.bounds, ends, strict=True)
        self.bounds = [(before[start], example) for (start, example), end in pieces if before[start] < before[end]]
        self.values = [value for value in values if value._ref >= floor and chosen[(value._ref - floor) // STEP]]

    def holds(self, ref: int) -> bool:
        """Whether a reference is of a call that is left here."""
        at = (ref - self.floor) // STEP
        return 0 <= at < len(self.left) and bool(self.left[at])

    def put_back(self, all_left: list[Leftover], floors: Longs) -> None:
        """After everything that the tape holds by now. `all_left` begin at `floors`; those before this one are back already."""
        tape = self.tape
        self.first, calls = tape.next, len(tape.type)
        tape.type += self.type
        tape.further += self.further
        tape.fed += self.fed
        tape.bounds += [(calls + at, example) for at, example in self.bounds]
        for number, rows in self.data.items():
            tape.data[number] += rows
        refs = np.empty(len(self.arguments), np.int64)
        refs[~self.handed_at] = self.moved(self.arguments[~self.handed_at])
        refs[self.handed_at] = self._handed_in(all_left, floors)
        tape.arguments += refs.tolist()
        tape.next = self.first + len(self.type) * STEP
        mine = [value for value in self.values if self.holds(value._ref)]  # others have been written into since
        for value, ref in zip(mine, self.moved(np.array([value._ref for value in mine], np.int64)).tolist(), strict=True):
            value._ref = ref
        if tape.values is not None:
            tape.values += self.values

    def moved(self, refs: Longs) -> Longs:
        """Where references to calls that were left here are now."""
        at = refs - self.floor
        found: Longs = self.first + (self.number[at >> OUTPUT_BITS] << OUTPUT_BITS | at & LOW)
        return found

    def _handed_in(self, all_left: list[Leftover], floors: Longs) -> Longs:
        """References to results of earlier flushes, and to what was left by them."""
        tape = self.tape
        found = np.array([tape.handed_in(ref) if ref in tape.results else ref for ref in self.handed], np.int64)
        is_left = np.flatnonzero(found >= 0)
        source = np.searchsorted(floors, found[is_left], "right") - 1
        for number in np.flatnonzero(np.bincount(source)).tolist():
            at = is_left[source == number]
            found[at] = all_left[number].moved(found[at])
        return found


def left_over(tape: Tape, busy: Container[int], needed: list[Value]) -> Leftover | None:
    """The calls of examples that are not busy, and those of late types; None where there are none, or they cannot wait."""
    if tape.values is None or tape.watchful:
        put_back(tape)
        return None
    ends = [start for start, _ in tape.bounds[1:]] + [len(tape.type)]
    pieces = zip(tape.bounds, ends, strict=True)
    idle = [(start, end) for (start, example), end in pieces if start < end and example not in busy]
    if not idle and not tape.left and tape.state.eager()[list(set(tape.type))].all():
        return None
    finished = np.zeros(len(tape.type), bool)
    for start, end in idle:
        finished[start:end] = True
    found = Leftover(tape)
    asked = np.array([value._ref for value in needed], np.int64)
    if not found.choose(finished, (asked - tape.floor) >> OUTPUT_BITS):
        _never_wait(tape)
        put_back(tape)
        return left_over(tape, busy, needed)
    return found if found.left.any() else None


def _never_wait(tape: Tape) -> None:
    """What was left and is used again does not wait the next time."""
    for ref in tape.imported_refs:
        one = None if ref in tape.results else tape.left_at(ref)
        if one is not None:
            tape.state.eager()[one.calls.type[(ref - one.floor) // STEP]] = True


def put_back(tape: Tape) -> None:
    """All that was left is on the tape again, before what it holds now."""
    left, tape.left = tape.left, []
    if not left:
        return
    if tape.type:
        now = Leftover(tape)
        now.take_off(tape.values or [], copies=False)
        left.append(now)
    written = tape.changes.shifted(sum(len(one.type) for one in left[:-1]))
    bounds = tape.bounds
    tape.advance()
    tape.changes.written = written
    floors = np.array([one.floor for one in left], np.int64)
    for one in left:
        one.put_back(left, floors)
    if bounds and (not tape.bounds or tape.bounds[-1][1] != bounds[-1][1]):
        tape.bound(bounds[-1][1])
