"""What was found out about an operation once is not looked for again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from lazy_parts import assert_equals_loop, inputs
from weft.lazy.ops import Op

torch.manual_seed(0)
LAYER = nn.Linear(3, 3).double()
ASKING: dict[str, Callable[[Tensor], Any]] = {
    "mask of what was given": lambda x: LAYER(x)[x > 0].sum(),
    "mask of a value": lambda x: (lambda h: h[h > 0].sum())(LAYER(x)),
    "nonzero": lambda x: torch.nonzero(LAYER(x) > 0).sum(),
    "masked_select": lambda x: torch.masked_select(LAYER(x), LAYER(x) > 0).sum(),
    "unique": lambda x: torch.unique(LAYER(x).round().detach()).sum(),
}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Op]:
    """The operations that were looked at."""
    found: list[Op] = []
    explore = Op._explore
    monkeypatch.setattr(Op, "_explore", lambda op: found.append(op) or explore(op))
    return found


@pytest.mark.parametrize("name", ASKING)
def test_operations_that_need_values_are_looked_at_once(name: str, looks: list[Op]) -> None:
    net = weft.batched(ASKING[name])
    net(inputs(5))
    assert len(looks) < 5, "once, not once for each example"
    looks.clear()
    net(inputs(9))
    assert not looks
    assert_equals_loop(ASKING[name], inputs(5))


def test_other_numbers_in_a_list_are_no_other_operation(looks: list[Op]) -> None:
    def fn(x: Tensor, index: list[int]) -> Any:
        h = LAYER(x)
        return h[index], torch.outer(h, h)[index, 1]

    net = weft.batched(fn)
    net(inputs(3), [[0, 1], [1, 1], [2, -1]])
    looks.clear()
    net(inputs(3), [[1, 0], [2, 2], [-3, 0]])
    assert not looks
    assert_equals_loop(fn, inputs(3), [[1, 0], [2, 2], [-3, 0]])


def test_writing_at_a_list_of_numbers() -> None:
    def fn(x: Tensor, index: list[int]) -> Tensor:
        h = LAYER(x)
        h[index] = 5.0
        return h

    assert_equals_loop(fn, inputs(3), [[0, 1], [1], [2, 0]])
