"""What nobody waits for is left for the last flush, where it runs together with all that is like it.

A flush in the middle computes what the waiting examples need. Two things stay where they are until the very end: what finished
examples recorded since the last flush, and calls of *late* types, on which no number that was asked for has ever depended, and
which were never used again after a flush.

    tape       | example 0 waits | example 1 ends | example 2 waits | example 3 ends |
    runs now     ----------  ---                    ----------  ---
    at the end             ^       --------------             ^       --------------
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from weft.graph.recording import OUTPUT_BITS, References, Table
from weft.lazy.chains import Recorded
from weft.lazy.division import Division, divided
from weft.lazy.taken import Pending, all_pending, segment, tables_of
from weft.lazy.tape import Tape
from weft.lazy.value import Value


class Selection:
    """The calls that a flush is about, and which of them run now."""

    def __init__(self, tape: Tape, calls: Pending, division: Division) -> None:
        self.tape, self.calls, self.division = tape, calls, division

    def tables(self) -> dict[tuple[int, int], Table]:
        """What is fed to the calls that run now."""
        state = self.tape.state
        return tables_of(state, self.division.fed(state.fines, self.calls, self.division.runs))

    def leave(self) -> None:
        """Let the tape go on: all that ran is known, and what is left waits. Of fed tensors it has copies."""
        tape, division = self.tape, self.division
        tape.waits += bytes(len(tape.type))
        if len(division.later.type) or tape.left:
            np.frombuffer(tape.waits, bool)[self.calls.number] = division.left
            if self.calls.holds_left:
                tape.left = []
            if len(division.later.type):
                fed = division.fed(tape.state.fines, self.calls, division.left)
                data = {number: list(map(_own, rows)) for number, rows in fed.items()}
                tape.left.append(replace(division.later, data=data, values=division.waiting))
            elif tape.left:
                tape.left[-1].values.extend(division.waiting)
        tape.advance()

    def position(self, at: int) -> int:
        """Which of the calls that wait the running call number `at` is."""
        return int(np.flatnonzero(self.division.runs)[at])


def _own(row: Any) -> Any:
    return row.clone() if isinstance(row, Tensor) else row


def everything(tape: Tape, wanted: References | None = None) -> Selection:
    """All that waits, as far as what is wanted depends on it; without `wanted`, what is alive."""
    values, calls = _values(tape), all_pending(tape)
    if wanted is None and tape.values is None:
        wanted = _outputs(tape, calls)
    division = divided(tape, calls, values, None, [], wanted)
    assert division is not None
    return Selection(tape, calls, division)


def recorded(tape: Tape, wanted: References) -> tuple[Recorded, References]:
    """What a tape without flushes holds, as far as what is wanted depends on it, and the references to that."""
    found = everything(tape, wanted)
    chosen = found.division.chosen[np.searchsorted(found.division.wanted, wanted)]
    return replace(found.division.others, data=found.tables()), chosen


def selected(tape: Tape, busy: list[int], asked: list[Value]) -> Selection:
    """Without the calls of examples that are not busy, and without those of late types, unless what is asked for needs them."""
    if tape.values is None or tape.watchful:
        return everything(tape)
    calls = segment(tape)
    division = divided(tape, calls, [tape.values], busy, asked, None)
    if division is None:
        _never_wait(tape, calls)
        calls = all_pending(tape)
        division = divided(tape, calls, _values(tape), busy, asked, None)
    assert division is not None
    return Selection(tape, calls, division)


def _never_wait(tape: Tape, calls: Pending) -> None:
    """What was left and is used again does not wait the next time."""
    for left in tape.left:
        used = np.isin(left.number, calls.arguments >> OUTPUT_BITS)
        tape.state.eager()[left.type[used]] = True


def _values(tape: Tape) -> list[list[Value]]:
    """The values of all that waits, as far as they are known."""
    tape.settle_all()
    return [*(calls.values for calls in tape.left), tape.values or []]


def _outputs(tape: Tape, calls: Pending) -> References:
    """References to all that some calls give."""
    outputs = np.array([len(tape.state.fines[number].outs) for number in calls.type.tolist()], np.int64)
    first = np.repeat((calls.number << OUTPUT_BITS) - (np.cumsum(outputs) - outputs), outputs)
    return first + np.arange(len(first))
