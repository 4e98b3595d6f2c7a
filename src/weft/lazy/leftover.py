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

import numpy as np
from torch import Tensor

from weft.graph.recording import OUTPUT_BITS, References
from weft.lazy.chains import LOW, Longs
from weft.lazy.division import Division, all_left, divided
from weft.lazy.taken import calls_of
from weft.lazy.tape import Tape
from weft.lazy.value import STEP, Value


class Leftover:
    """Calls since the last flush of which some wait."""

    def __init__(self, tape: Tape, division: Division) -> None:
        self.tape, self.floor, self.division = tape, tape.floor, division

    def wanted(self, alive: References) -> References:
        """Of what is alive, and of what is used by what is left, references to what runs now."""
        return np.union1d(self.division.runs(alive - self.floor), self.division.used) + self.floor

    def take_off(self, values: list[Value], copies: bool) -> None:
        """Keep what is needed to put the calls back, before the tape goes on without them. `copies`: of fed tensors, too."""
        tape, division, floor = self.tape, self.division, self.floor
        self.handed = [tape.imported_refs[-ref - 1] if ref < 0 else ref + floor for ref in division.handed]
        fed = division.fed(tape.state.fines, tape.data, left=True)
        self.data = {
            number: [row.clone() if copies and isinstance(row, Tensor) else row for row in rows] for number, rows in fed.items()
        }
        self.fed = [] if copies else tape.fed
        before, chosen = division.before, division.is_left
        ends = [start for start, _ in tape.bounds[1:]] + [len(chosen)]
        pieces = zip(tape.bounds, ends, strict=True)
        self.bounds = [(before[start], example) for (start, example), end in pieces if before[start] < before[end]]
        self.values = [value for value in values if value._ref >= floor and chosen[(value._ref - floor) // STEP]]

    def holds(self, ref: int) -> bool:
        """Whether a reference is of a call that is left here."""
        at = (ref - self.floor) // STEP
        return 0 <= at < len(self.division.is_left) and self.division.is_left[at]

    def put_back(self, all_left: list[Leftover], floors: Longs) -> None:
        """After everything that the tape holds by now. `all_left` begin at `floors`; those before this one are back already."""
        tape, division = self.tape, self.division
        self.first, calls = tape.next, len(tape.type)
        tape.type += division.type
        tape.further += division.further
        tape.fed += self.fed
        tape.bounds += [(calls + at, example) for at, example in self.bounds]
        for number, rows in self.data.items():
            tape.data[number] += rows
        refs, inside = np.empty(len(division.arguments), np.int64), ~division.handed_at
        refs[inside] = self.moved(division.arguments[inside] + self.floor)
        refs[division.handed_at] = self._handed_in(all_left, floors)
        tape.arguments += refs.tolist()
        tape.next = self.first + len(division.type) * STEP
        mine = [value for value in self.values if self.holds(value._ref)]  # others have been written into since
        for value, ref in zip(mine, self.moved(np.array([value._ref for value in mine], np.int64)).tolist(), strict=True):
            value._ref = ref
        if tape.values is not None:
            tape.values += self.values

    def moved(self, refs: Longs) -> Longs:
        """Where references to calls that were left here are now."""
        at = refs - self.floor
        found: Longs = self.first + (self.division.number[at >> OUTPUT_BITS] << OUTPUT_BITS | at & LOW)
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
    calls, finished = calls_of(tape), np.zeros(len(tape.type), bool)
    for start, end in idle:
        finished[start:end] = True
    missing = np.array([ref not in tape.results for ref in tape.imported_refs] if tape.left else [], bool)
    asked = np.array([value._ref for value in needed], np.int64)
    found = divided(tape.state, calls, finished, missing, (asked - tape.floor) >> OUTPUT_BITS)
    if found is None:
        _never_wait(tape)
        put_back(tape)
        return left_over(tape, busy, needed)
    return Leftover(tape, found) if len(found.type) else None


def _never_wait(tape: Tape) -> None:
    """What was left and is used again does not wait the next time."""
    for ref in tape.imported_refs:
        one = None if ref in tape.results else tape.left_at(ref)
        if one is not None:
            tape.state.eager()[one.division.calls.type[(ref - one.floor) // STEP]] = True


def put_back(tape: Tape) -> None:
    """All that was left is on the tape again, before what it holds now."""
    left, tape.left = tape.left, []
    if not left:
        return
    if tape.type:
        now = Leftover(tape, all_left(tape.state, calls_of(tape)))
        now.take_off(tape.values or [], copies=False)
        left.append(now)
    written = tape.changes.shifted(sum(len(one.division.type) for one in left[:-1]))
    bounds = tape.bounds
    tape.advance()
    tape.changes.written = written
    floors = np.array([one.floor for one in left], np.int64)
    for one in left:
        one.put_back(left, floors)
    if bounds and (not tape.bounds or tape.bounds[-1][1] != bounds[-1][1]):
        tape.bound(bounds[-1][1])
