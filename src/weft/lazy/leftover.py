"""Examples that are finished wait for the last flush: nobody asks for their numbers on the way.

A flush in the middle computes what the waiting examples need. What finished ones recorded since the last flush is taken off the
tape, and put back at the very end, so that the ends of all examples run together:

    tape       | example 0 waits | example 1 ends | example 2 waits | example 3 ends |
    runs now     ---------------                    ---------------
    at the end                     --------------                     --------------
"""

from __future__ import annotations

from collections.abc import Container
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.graph.recording import OUTPUT_BITS, Table
from weft.lazy.chains import LOW, Flags, Longs, Recorded
from weft.lazy.state import State
from weft.lazy.tape import Tape
from weft.lazy.value import STEP


class Leftover:
    """Calls since the last flush that can wait. `left` says which, `number` counts those that are left, `rest` the others."""

    def __init__(self, tape: Tape, left: Flags) -> None:
        self.left, self.floor = left, tape.floor
        self.number, self.rest = np.cumsum(left) - 1, np.cumsum(~left) - 1
        self.types, self.refs = np.array(tape.type), np.array(tape.arguments, np.int64)
        arity, self.is_many = _widths(tape.state)
        count = arity[self.types]
        if tape.further:
            count[self.is_many[self.types]] += tape.further
        self.owner: Longs = np.repeat(np.arange(len(count)), count)

    def stands_alone(self) -> bool:
        """Whether neither side uses values of the other."""
        inside = self.refs >= 0
        return bool((self.left[self.owner[inside]] == self.left[(self.refs[inside] - self.floor) >> OUTPUT_BITS]).all())

    def others(self, recorded: Recorded) -> Recorded:
        """The recording of the calls that run now."""
        now = ~self.left
        arguments = recorded.arguments[now[self.owner]]
        inside = arguments >= 0
        arguments[inside] = self.rest[arguments[inside] >> OUTPUT_BITS] << OUTPUT_BITS | arguments[inside] & LOW
        data = {key: _rows(rows, now[self.types == key[0]]) for key, rows in recorded.data.items()}
        further = recorded.further[now[self.is_many[self.types]]]
        return Recorded(recorded.type[now], arguments, further, data, np.append(recorded.starts[:-1][now], True))

    def take_off(self, tape: Tape) -> None:
        """Keep what is needed to put the calls back, before the tape goes on without them."""
        fines, chosen = tape.state.fines, self.left.tolist()
        self.type = list(compress(tape.type, chosen))
        self.arguments = self.refs[self.left[self.owner]]
        self.handed = [tape.imported_refs[-at - 1] for at in self.arguments[self.arguments < 0].tolist()]
        self.further = list(compress(tape.further, self.left[self.is_many[self.types]].tolist()))
        self.data: dict[int, list[Any]] = {}
        for number, rows in tape.data.items():
            kept = list(compress(rows, np.repeat(self.left[self.types == number], len(fines[number].feeds)).tolist()))
            if kept:
                self.data[number] = kept
        self.fed = tape.fed
        self.bounds = [(int(self.number[at]), example) for at, example in tape.bounds if at < len(chosen) and chosen[at]]
        floor = tape.floor
        self.values = [value for value in tape.held if value._ref >= floor and chosen[(value._ref - floor) // STEP]]
        tape.left.append(self)

    def put_back(self, tape: Tape) -> None:
        """After everything that the tape holds by now."""
        first, calls = tape.next, len(tape.type)
        tape.type += self.type
        tape.further += self.further
        tape.fed += self.fed
        tape.bounds += [(calls + at, example) for at, example in self.bounds]
        for number, rows in self.data.items():
            tape.data[number] += rows
        for ref in self.handed:
            if ref not in tape.imports:
                tape.imports[ref] = -len(tape.imports) - 1
                tape.imported_refs.append(ref)
        inside = self.arguments >= 0
        moved = np.where(inside, self.arguments - self.floor, 0)
        refs = first + (self.number[moved >> OUTPUT_BITS] << OUTPUT_BITS | moved & LOW)
        refs[~inside] = [tape.imports[ref] for ref in self.handed]
        tape.arguments += refs.tolist()
        tape.next = first + len(self.type) * STEP
        for value in self.values:
            at = value._ref - self.floor
            value._ref = first + (int(self.number[at // STEP]) * STEP | at % STEP)
        if tape.values is not None:
            tape.values += self.values


def left_over(tape: Tape, busy: Container[int], needed: list[int]) -> Leftover | None:
    """The calls of examples that are not busy; None where there are none, or they cannot wait."""
    if tape.values is None or tape.watchful or tape.changed:
        return None
    left = np.zeros(len(tape.type), bool)
    ends = [start for start, _ in tape.bounds[1:]] + [len(tape.type)]
    for (start, example), end in zip(tape.bounds, ends, strict=True):
        if start < end and example not in busy:
            left[start:end] = True
    if not left.any() or any(left[(ref - tape.floor) // STEP] for ref in needed if ref >= tape.floor):
        return None
    found = Leftover(tape, left)
    return found if found.stands_alone() else None


def _widths(state: State) -> tuple[Longs, Flags]:
    """How many arguments each recorded type has, and whether there are further ones."""
    found: tuple[Longs, Flags] | None = state.kept.get("widths")
    if found is None or len(found[0]) != len(state.fines):
        arity = np.array([len(op.args) for op in state.fines], np.int64)
        found = state.kept["widths"] = (arity, np.array([op.many is not None for op in state.fines], bool))
    return found


def _rows(table: Table, chosen: Flags) -> Table:
    if chosen.all():
        return table
    return table[torch.from_numpy(np.flatnonzero(chosen)).to(table.device)] if isinstance(table, Tensor) else table[chosen]
