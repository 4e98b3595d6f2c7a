"""Every rule of a program is a sentence of the verifier, and every sentence is seen here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_tree import TYPES, ints, tree

from weft.errors import StructureError
from weft.graph.program import NodeType, Port
from weft.graph.verify import verify_program

BROKEN_PROGRAMS: dict[str, tuple[dict[str, Any], str]] = {
    "type out of range": ({"type": ints(0, 0, 0, 1, 1, 3, 2, 2)}, "node 5 has type 3, but there are 3 node types."),
    "negative type": ({"type": ints(0, -1, 0, 1, 1, 1, 2, 2)}, "node 1 has type -1, but there are 3 node types."),
    "ptr too short": ({"ptr": ints(0, 0, 0, 2, 9)}, "ptr has 5 entries; 8 nodes with 9 arguments need 9."),
    "ptr starts late": ({"ptr": ints(1, 1, 1, 1, 2, 4, 6, 8, 9)}, "ptr starts at 1; it must start at 0."),
    "ptr ends early": (
        {"ptr": ints(0, 0, 0, 0, 2, 4, 6, 8, 8)},
        "ptr ends at 8; it must end at the number of arguments, 9.",
    ),
    "ptr falls": ({"ptr": ints(0, 0, 0, 0, 4, 2, 6, 8, 9)}, "ptr falls from 4 to 2 at node 4; it must never decrease."),
    "source out of range": (
        {"src": ints(0, 1, 3, 2, 2, -1, 8, 3, 4)},
        "argument 0 of node 6 reads node 8, but there are 8 nodes.",
    ),
    "source below empty": (
        {"src": ints(0, -2, 3, 2, 2, -1, 4, 3, 4)},
        "argument 1 of node 3 reads node -2, but there are 8 nodes.",
    ),
    "no such output": (
        {"out": ints(0, 0, 0, 1, 0, 0, 0, 0, 0)},
        "argument 1 of node 4 reads output 1 of node 2, whose type has 1 output.",
    ),
    "output of nothing": (
        {"out": ints(0, 0, 0, 0, 0, 1, 0, 0, 0)},
        "argument 1 of node 5 is empty but names output 1; empty arguments name output 0.",
    ),
    "out too short": ({"out": ints(0, 0)}, "out has 2 entries; 8 nodes with 9 arguments need 9."),
    "feed too long": ({"feed": ints(*range(9))}, "feed has 9 entries; 8 nodes with 9 arguments need 8."),
    "negative feed row": ({"feed": ints(0, 1, 2, -1, 4, 5, 6, 7)}, "node 3 reads feed row -1; feed rows count from 0."),
    "edge too short": ({"edge": ints(0)}, "edge has 1 entries; 8 nodes with 9 arguments need 9."),
    "negative edge row": (
        {"edge": ints(0, 1, 2, -3, 4, 5, 6, 7, 8)},
        "argument 1 of node 4 has edge row -3; edge rows count from 0, -1 is none.",
    ),
    "not integers": (
        {"src": np.zeros(9)},
        "src is float64 with 1 dimension; it must be a flat array of integers.",
    ),
    "cycle": (
        {"src": ints(4, 1, 3, 2, 2, -1, 4, 3, 4)},
        "the arguments run in a cycle: 3 reads 4 reads 3.",
    ),
    "reads itself": ({"src": ints(0, 1, 3, 2, 2, 5, 4, 3, 4)}, "the arguments run in a cycle: 5 reads 5."),
    "unknown kind of port": (
        {"types": (*TYPES[:2], NodeType("classify", (Port("mean"),)))},
        "port 0 of node type 2 has kind 'mean'; the kinds are 'slots', 'sum', 'edges'.",
    ),
    "port without positions": (
        {"types": (*TYPES[:2], NodeType("classify", (Port("slots", ()),)))},
        "port 0 of node type 2 reads no position.",
    ),
    "negative position": (
        {"types": (*TYPES[:2], NodeType("classify", (Port("slots", (0, -1)),)))},
        "port 0 of node type 2 reads position -1; positions count from 0.",
    ),
    "bag with two positions": (
        {"types": (*TYPES[:2], NodeType("classify", (Port("sum", (0, 1)),)))},
        "port 0 of node type 2 has 2 positions; a port of kind 'sum' has one, the first that it takes.",
    ),
    "negative outputs": (
        {"types": (*TYPES[:2], NodeType("classify", (Port("sum"),), -1))},
        "node type 2 has -1 outputs; their number cannot be negative.",
    ),
}


@pytest.mark.parametrize("name", BROKEN_PROGRAMS)
def test_broken_program(name: str) -> None:
    changes, sentence = BROKEN_PROGRAMS[name]
    with pytest.raises(StructureError) as error:
        verify_program(replace(tree(), **changes))
    assert str(error.value) == f"broken program: {sentence}"
