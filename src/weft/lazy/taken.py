"""What a tape holds since the last flush, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.graph.recording import Table, table
from weft.lazy.chains import Recorded
from weft.lazy.state import State

if TYPE_CHECKING:
    from weft.lazy.tape import Tape


def recorded(tape: Tape) -> Recorded:
    """What the tape holds since the last flush; references count from its first call, those handed in are negative."""
    found = calls_of(tape)
    return Recorded(found.type, found.arguments, found.further, tables_of(tape.state, tape.data), found.starts)


def calls_of(tape: Tape) -> Recorded:
    """The same without what is fed to the calls."""
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
