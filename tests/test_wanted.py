"""Wanted results are put together by type and output in C, and in numpy: the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import weft
from weft import cc
from weft.graph.recording import OUTPUT_BITS
from weft.plan import native
from weft.plan.plan import Plan
from weft.run import calls

pytestmark = pytest.mark.skipif(cc.compiler() is None, reason="no C compiler")


class Many(nn.Module):
    """Results of several kinds, some of which are one value, and some of which examples do not have."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.pair = nn.Embedding(9, 4), weft.cell(nn.Bilinear(4, 4, 4))

    def forward(self, words: list[int]) -> tuple[Tensor, Tensor, list[Tensor]]:
        rows = [self.word(torch.tensor(word)) for word in words]
        top = rows[0]
        for row in rows[1:]:
            top = self.pair(top, row)
        return top, rows[-1].max(0)[0], rows


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Plan, Any]]:
    """Plans with what is wanted of them."""
    found: list[tuple[Plan, Any]] = []
    right = calls._wanted_groups

    def noting(plan: Plan, results: Any) -> Any:
        found.append((plan, results))
        return right(plan, results)

    monkeypatch.setattr(calls, "_wanted_groups", noting)
    torch.manual_seed(0)
    weft.batched(Many(), stack=False)([[1, 2, 3], [4], [5, 6, 7, 8], [2, 2]])
    return found


def test_both_find_the_same_kinds_in_the_same_order(seen: list[tuple[Plan, Any]]) -> None:
    dice = np.random.default_rng(0)
    for plan, results in seen:
        for some in (results, dice.permutation(results), dice.choice(results, 40), results[:1]):
            found, twin = native.wanted_natively(plan, some, OUTPUT_BITS), calls._with_numpy(plan, some)
            assert found is not None
            for (*kind, at, nodes, rows), (*right, places, of, _) in zip(found, twin, strict=True):
                assert kind == right
                assert at.tolist() == places.tolist() and nodes.tolist() == of.tolist()
                assert rows.tolist() == plan.row[nodes].tolist()
    assert max(len(calls._with_numpy(plan, results)) for plan, results in seen) > 2


def test_more_kinds_than_c_has_room_for_are_left_to_numpy(
    seen: list[tuple[Plan, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "MOST_WANTED", 1)
    plan, results = seen[-1]
    assert native.wanted_natively(plan, results, OUTPUT_BITS) is None
    assert len(calls._wanted_groups(plan, results)) > 1
