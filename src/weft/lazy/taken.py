"""What a tape holds since the last flush, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.graph.recording import References, Table, table
from weft.lazy.chains import Recorded
from weft.lazy.division import without_unused
from weft.lazy.state import State

if TYPE_CHECKING:
    from weft.lazy.tape import Tape


def recorded(tape: Tape, wanted: References) -> tuple[Recorded, References]:
    """What a tape without flushes holds, as far as what is wanted depends on it, and the references to that."""
    found, data = calls_of(tape), dict(tape.data)
    unused = without_unused(tape.state, found, wanted)
    if unused is not None:
        found, wanted, data = unused.others, unused.now(wanted), unused.fed(tape.state.fines, data, left=False)
    return replace(found, data=tables_of(tape.state, data)), wanted


def calls_of(tape: Tape) -> Recorded:
    """The calls since the last flush, without what is fed to them. References count from the first of them."""
    found = calls_from(tape.floor, tape.type, tape.arguments, tape.further)
    found.starts[[call for call, _ in tape.bounds]] = True
    return found


def calls_from(floor: int, types: list[int], refs: list[int], further: list[int]) -> Recorded:
    """Calls as they were written on a tape, of which the first has this reference."""
    arguments = np.fromiter(refs, np.int64, len(refs))
    arguments[arguments >= 0] -= floor
    starts = np.zeros(len(types) + 1, bool)
    starts[[0, -1]] = True
    return Recorded(np.fromiter(types, np.int32, len(types)), arguments, np.array(further, np.int32), {}, starts)


def tables_of(state: State, data: Mapping[int, list[Any]]) -> dict[tuple[int, int], Table]:
    """What is fed to the calls of each type, one table for each feed."""
    found: dict[tuple[int, int], Table] = {}
    for number, rows in data.items():
        feeds = state.fines[number].feeds
        for i, kind in enumerate(feeds):
            found[number, i] = table(rows[i :: len(feeds)] if len(feeds) > 1 else rows, kind.dtype)
    return found
