"""Calls that were recorded and have not run, as arrays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.graph.program import Ints
from weft.graph.recording import OUTPUT_BITS, References, Table, table
from weft.lazy.chains import LOW, Flags, Longs, Recorded
from weft.lazy.native import functions
from weft.lazy.state import State
from weft.lazy.value import Value

if TYPE_CHECKING:
    from weft.lazy.tape import Tape


@dataclass(eq=False, slots=True)
class Pending:
    """Calls that wait to be run, in the order in which they were recorded. References are those of the tape."""

    number: Longs
    """Which call of the tape each of them is."""
    type: Ints
    arguments: References
    further: Ints
    starts: Flags
    example: Ints
    """Whose code each call is of."""
    data: Mapping[int, list[Any]]
    values: list[Value]
    """Of calls that were left: results that somebody may still hold."""
    holds_left: bool = False
    """Whether calls that were left by earlier flushes are among them."""

    def holds(self, ref: int) -> bool:
        """Whether a reference is of one of these calls."""
        at = int(np.searchsorted(self.number, ref >> OUTPUT_BITS))
        return at < len(self.number) and int(self.number[at]) == ref >> OUTPUT_BITS

    def numbered(self) -> tuple[Recorded, References]:
        """With references that count from the first of these calls, and below zero for those that name other calls: which."""
        first = int(self.number[0]) if len(self.number) else 0
        at = (self.arguments >> OUTPUT_BITS) - first
        outside = at < 0
        if len(self.number) and int(self.number[-1]) - first >= len(self.number):
            place = np.full(int(self.number[-1]) - first + 1, -1, np.int64)
            place[self.number - first] = np.arange(len(self.number))
            at = np.where(outside, -1, place[np.maximum(at, 0)])
            outside = at < 0
        arguments = at << OUTPUT_BITS | self.arguments & LOW
        handed, slots = np.unique(self.arguments[outside], return_inverse=True)
        arguments[outside] = -1 - slots
        return Recorded(self.type, arguments, self.further, {}, self.starts), handed

    def places(self, refs: References) -> References:
        """References of the tape, counted from the first of these calls."""
        found: References = np.searchsorted(self.number, refs >> OUTPUT_BITS) << OUTPUT_BITS | refs & LOW
        return found

    def refs(self, places: References) -> References:
        """The other way round."""
        found: References = self.number[places >> OUTPUT_BITS] << OUTPUT_BITS | places & LOW
        return found


def joined(parts: Sequence[Pending]) -> Pending:
    """Calls of several flushes, one after the other."""
    if len(parts) == 1:
        return parts[0]
    data: defaultdict[int, list[Any]] = defaultdict(list)
    for part in parts:
        for number, rows in part.data.items():
            data[number] += rows
    columns = [(part.number, part.type, part.arguments, part.further, part.starts[:-1], part.example) for part in parts]
    numbers, types, arguments, further, starts, examples = map(np.concatenate, zip(*columns, strict=True))
    return Pending(numbers, types, arguments, further, np.append(starts, True), examples, data, [], True)


def segment(tape: Tape) -> Pending:
    """The calls since the last flush."""
    count = len(tape.type)
    if tape.taken is not None and len(tape.taken.type) == count:
        return tape.taken
    first = tape.floor >> OUTPUT_BITS
    native = functions("weave", "weft_take")
    if native is not None:
        found = native[0]((tape.type, tape.arguments, tape.further, tape.bounds, first))
        columns: list[Any] = [*map(np.frombuffer, found, "qiqi?i"), tape.data, []]
    else:
        starts, example = np.zeros(count + 1, bool), np.zeros(count, np.int32)
        starts[[0, -1]] = True
        if tape.bounds:
            bounds = np.array(tape.bounds, np.int64)
            starts[bounds[:, 0]] = True
            example[bounds[0, 0] :] = np.repeat(bounds[:, 1], np.diff(bounds[:, 0], append=count))
        lists = np.array(tape.type, np.int32), np.array(tape.arguments, np.int64), np.array(tape.further, np.int32)
        columns = [np.arange(count) + first, *lists, starts, example, tape.data, []]
    tape.taken = Pending(*columns)
    return tape.taken


def all_pending(tape: Tape) -> Pending:
    """The calls since the last flush, after those that were left before."""
    return joined([*tape.left, segment(tape)])


def tables_of(state: State, data: Mapping[int, list[Any]]) -> dict[tuple[int, int], Table]:
    """What is fed to the calls of each type, one table for each feed."""
    found: dict[tuple[int, int], Table] = {}
    for number, rows in data.items():
        feeds = state.fines[number].feeds
        for i, kind in enumerate(feeds):
            found[number, i] = table(rows[i :: len(feeds)] if len(feeds) > 1 else rows, kind.dtype)
    return found
