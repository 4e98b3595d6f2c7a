"""What C finds out about recorded calls, numpy finds out too: what they read is known, and somebody reads them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from weft import cc
from weft.graph.recording import OUTPUT_BITS
from weft.run import callgraph
from weft.run.callgraph import CallGraph, needed
from weft.run.callports import Sharing

pytestmark = pytest.mark.skipif(cc.compiler() is None, reason="no C compiler")

WIDTHS, OUTPUTS = (0, 1, 2, 3), (1, 3, 2, 1)
TYPES: Any = [SimpleNamespace(args=[None] * width, outputs=[None] * many) for width, many in zip(WIDTHS, OUTPUTS, strict=True)]


def random_graph(seed: int, calls: int = 30, most_further: int = 2) -> CallGraph:
    """Calls of some types that read earlier ones; the last type takes some arguments more."""
    dice = np.random.default_rng(seed)
    type = np.concatenate([[0], dice.integers(0, 4, calls - 1)]).astype(np.int32)
    further = np.where(type == 3, dice.integers(0, most_further + 1, calls), 0)
    lengths = np.array(WIDTHS)[type] + further
    ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    src = dice.integers(0, np.maximum(np.repeat(np.arange(calls), lengths), 1)).astype(np.int32)
    out = dice.integers(0, np.array(OUTPUTS)[type[src]]).astype(np.int32)
    return CallGraph(type, ptr, src, out, np.zeros(calls, np.int32))


@pytest.mark.parametrize("seed", range(20))
def test_what_was_learned_is_known_and_nothing_else(seed: int) -> None:
    sharing, learned, other = Sharing(), random_graph(seed), random_graph(seed + 100)
    sharing._grow(TYPES)
    assert not sharing._knows(learned)
    sharing.see(TYPES, learned)
    assert sharing._knows(learned)
    count, known = sharing.count, sharing._known.copy()
    same = sharing._knows(other)
    sharing._learn(other)
    assert same == (known == sharing._known).all()
    assert not same or sharing.count == count


@pytest.mark.parametrize("seed", range(20))
def test_calls_that_nobody_needs_are_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, dice = random_graph(seed), np.random.default_rng(seed)
    unread = np.setdiff1d(np.arange(len(graph.type)), graph.src)
    everything = (unread << OUTPUT_BITS).astype(np.int64)
    some = dice.permutation(everything)[: len(everything) // 2]
    found = [needed(graph, wanted) for wanted in (everything, some)]
    monkeypatch.setattr(callgraph, "library", lambda: None)
    right = [needed(graph, wanted) for wanted in (everything, some)]
    assert found[0] is None and right[0] is None
    assert found[1] is not None and right[1] is not None and found[1].tolist() == right[1].tolist()
