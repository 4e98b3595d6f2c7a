"""A small tree as a program, for tests that break it."""

from __future__ import annotations

import numpy as np

from weft.graph.program import Ints, NodeType, Port, Program

TYPES = (
    NodeType("leaf"),
    NodeType("node", (Port("slots", (0, 1)),)),
    NodeType("classify", (Port("sum", (0,)),)),
)


def ints(*numbers: int) -> Ints:
    return np.array(numbers, dtype=np.int32)


def tree() -> Program:
    """Leaves 0 1 2, nodes 3 = (0, 1), 4 = (3, 2) and 5 = (2, nothing), classifiers 6 of 4 and 3, 7 of 4."""
    src = ints(0, 1, 3, 2, 2, -1, 4, 3, 4)
    return Program(
        TYPES,
        ints(0, 0, 0, 1, 1, 1, 2, 2),
        ints(0, 0, 0, 0, 2, 4, 6, 8, 9),
        src,
        out=np.zeros_like(src),
        feed=ints(*range(8)),
        edge=src,
    )
