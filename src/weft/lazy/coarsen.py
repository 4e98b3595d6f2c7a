"""From recorded types to call types: for now, each operation is its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.graph.program import Ints
from weft.graph.recording import CallProgram, References, Table
from weft.lazy.state import State


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recording as arrays. `starts[i]` says that call i does not follow call i - 1 in the user's code."""

    type: Ints
    arguments: References
    further: Ints
    data: dict[tuple[int, int], Table]
    starts: np.ndarray


def coarse_program(state: State, recorded: Recorded, wanted: References, sites: bool) -> tuple[CallProgram, References, Ints]:
    numbers = np.array([state.library.number(state.fines[t]) for t in range(len(state.fines))], np.int32)
    data = {(int(numbers[t]), i): rows for (t, i), rows in recorded.data.items()}
    return CallProgram(numbers[recorded.type], recorded.arguments, recorded.further, data), wanted, np.arange(len(recorded.type))
