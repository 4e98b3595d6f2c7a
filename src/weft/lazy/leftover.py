"""What nobody waits for is left for the last flush, where it runs together with all that is like it.

A flush in the middle computes what the waiting examples need. Two things stay where they are until the very end: what finished
examples recorded since the last flush, and calls of *late* types, on which no number that was asked for has ever depended, and
which were never used again after a flush.

    tape       | example 0 waits | example 1 ends | example 2 waits | example 3 ends |
    runs now     ----------  ---                    ----------  ---
    at the end             ^       --------------             ^       --------------
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from weft.graph.recording import OUTPUT_BITS, References, Table
from weft.lazy.chains import Recorded
from weft.lazy.division import Division, divided
from weft.lazy.native import functions
from weft.lazy.taken import Pending, all_pending, segment, tables_of
from weft.lazy.tape import Tape
from weft.lazy.value import Value


class Selection:
    """The calls that a flush is about, and which of them run now. `held`: values that somebody holds."""

    def __init__(self, tape: Tape, calls: Pending, division: Division, held: list[Value]) -> None:
        self.tape, self.calls, self.division, self.held = tape, calls, division, held

    def tables(self) -> dict[tuple[int, int], Table]:
        """What is fed to the calls that run now."""
        state = self.tape.state
        return tables_of(state, self.division.fed(state.fines, self.calls, self.division.runs))

    def leave(self) -> None:
        """Let the tape go on: all that ran is known, and what is left waits. Of fed tensors it has copies."""
        tape, division = self.tape, self.division
        waiting = [value for value in self.held if value._ref not in tape.results]
        tape.waits += bytes(len(tape.type))
        np.frombuffer(tape.waits, bool)[self.calls.number] = division.left
        if self.calls.holds_left:
            tape.left = []
        if len(division.later.type):
            fed = division.fed(tape.state.fines, self.calls, division.left)
            data = {number: list(map(_own, rows)) for number, rows in fed.items()}
            tape.left.append(replace(division.later, data=data, values=waiting))
        elif tape.left:
            tape.left[-1].values.extend(waiting)
        tape.advance()

    def position(self, at: int) -> int:
        """Which of the calls that wait the running call number `at` is."""
        return int(np.flatnonzero(self.division.runs)[at])


def _own(row: Any) -> Any:
    return row.clone() if isinstance(row, Tensor) else row


def everything(tape: Tape, wanted: References | None = None) -> Selection:
    """All that waits, as far as what is wanted depends on it; without `wanted`, what is alive."""
    held, calls = _held(tape, with_left=True), all_pending(tape)
    alive = _alive(tape, calls, held) if wanted is None else wanted
    division = divided(tape.state, calls, _NOBODY, _NOBODY, _NONE, alive)
    assert division is not None
    return Selection(tape, calls, division, held)


_NONE, _NOBODY = np.empty(0, np.int64), np.empty(0, bool)


def recorded(tape: Tape, wanted: References) -> tuple[Recorded, References]:
    """What a tape without flushes holds, as far as what is wanted depends on it, and the references to that."""
    found = everything(tape, wanted)
    chosen = found.division.chosen[np.searchsorted(found.division.wanted, wanted)]
    return replace(found.division.others, data=found.tables()), chosen


def selected(tape: Tape, busy: Collection[int], asked: list[Value]) -> Selection:
    """Without the calls of examples that are not busy, and without those of late types, unless what is asked for needs them."""
    if tape.values is None or tape.watchful:
        return everything(tape)
    is_busy = np.zeros(max(busy, default=0) + 1, bool)
    is_busy[list(busy)] = True
    calls, refs = segment(tape), np.array([value._ref for value in asked], np.int64)
    if not len(refs) or refs.min() >= tape.floor:
        held = _held(tape)
        waits = np.frombuffer(tape.waits, bool)
        division = divided(tape.state, calls, is_busy, waits, refs, _alive(tape, calls, held))
        if division is not None:
            return Selection(tape, calls, division, held)
    _never_wait(tape, calls)
    held, calls = _held(tape, with_left=True), all_pending(tape)
    division = divided(tape.state, calls, is_busy, _NOBODY, refs, _alive(tape, calls, held))
    assert division is not None
    return Selection(tape, calls, division, held)


def _never_wait(tape: Tape, calls: Pending) -> None:
    """What was left and is used again does not wait the next time."""
    for left in tape.left:
        used = np.isin(left.number, calls.arguments >> OUTPUT_BITS)
        tape.state.eager()[left.type[used]] = True


def _held(tape: Tape, with_left: bool = False) -> list[Value]:
    """The values that somebody else holds."""
    tape.settle_all()
    lists = [*(calls.values for calls in tape.left if with_left), tape.values or []]
    native = functions("weave.c", "weft_held")
    if native is not None:
        return [value for values in lists for value in native[0](values)]
    counted = [(values, list(map(sys.getrefcount, values))) for values in lists]
    return [value for pairs in counted for value, count in zip(*pairs, strict=True) if count > _UNHELD]


def _alive(tape: Tape, calls: Pending, held: list[Value]) -> References:
    """References of the values that are held, of those calls; of all there are where that is not known."""
    if tape.values is None:
        outputs = np.array([len(tape.state.fines[number].outs) for number in calls.type.tolist()], np.int64)
        first = np.repeat((calls.number << OUTPUT_BITS) - (np.cumsum(outputs) - outputs), outputs)
        return first + np.arange(len(first))
    least = int(calls.number[0]) << OUTPUT_BITS if len(calls.number) else 0
    native = functions("weave.c", "weft_alive")
    if native is not None:
        return np.frombuffer(native[0]((held, tape.results, least)), np.int64)
    refs = np.array([value._ref for value in held if value._ref >= least and value._ref not in tape.results], np.int64)
    return refs if bool((refs[1:] > refs[:-1]).all()) else np.unique(refs)


_UNHELD = next(map(sys.getrefcount, [object()]))
"""What the count of references is where only a list holds an object."""
