"""An endless stream of structures that never come again: what is kept of them has an end."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.lazy import cached, state
from weft.lazy.state import state_of
from weft.run.calls import Engine

KEPT = 12
"""How many plans and recordings may be kept here; a hundred and more would take long to show anything."""


class Trees(nn.Module):
    def __init__(self, asks: bool, marked: bool) -> None:
        super().__init__()
        self.word, self.asks = nn.Embedding(5, 3), asks
        self.node: Any = weft.cell(nn.Bilinear(3, 3, 3)) if marked else nn.Bilinear(3, 3, 3)

    def encode(self, tree: Any) -> Tensor:
        if isinstance(tree, int):
            found: Tensor = self.word(torch.tensor(tree))
            return found
        h: Tensor = torch.tanh(self.node(*map(self.encode, tree)))
        return -h if self.asks and h.sum() > 0 else h

    def forward(self, tree: Any) -> Tensor:
        return self.encode(tree).sum()


def tree(dice: random.Random, leaves: int) -> Any:
    if leaves == 1:
        return dice.randrange(5)
    left = dice.randint(1, leaves - 1)
    return tree(dice, left), tree(dice, leaves - left)


def objects_after(step: Callable[[], None], times: int) -> int:
    for _ in range(times):
        step()
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.parametrize(
    ("asks", "marked", "cache"),
    [(False, True, None), (False, False, None), (False, False, True), (True, False, None), (True, True, None)],
)
def test_new_structures_leave_nothing_behind(asks: bool, marked: bool, cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "MOST_KEPT", KEPT)
    torch.manual_seed(0)
    model, dice = Trees(asks, marked), random.Random(0)
    net = weft.batched(model, cache=cache)

    def step() -> None:
        net([tree(dice, dice.randint(1, 9)) for _ in range(4)]).sum().backward()

    step()
    Engine.of(state_of(model).library).plans.capacity = KEPT
    early = objects_after(step, 60)  # by then all kinds of calls and plans have come up
    late = objects_after(step, 40)  # 160 trees; one that is kept is some thirty objects
    assert late - early < 2500, "something is kept of every structure"
    assert len(state_of(model).fines) < 40


def test_plans_are_kept_for_so_many_nodes_together() -> None:
    torch.manual_seed(0)
    model, dice = Trees(asks=False, marked=True), random.Random(0)
    net = weft.batched(model)
    net([0])
    plans = Engine.of(state_of(model).library).plans
    plans.nodes = 200
    for _ in range(10):
        net([tree(dice, 9) for _ in range(4)])  # about seventy calls
    assert 1 <= len(plans) <= 3


class Scaled:
    """A function without attributes of its own that holds a tensor."""

    __slots__ = ("__weakref__", "by")

    def __init__(self, by: Tensor) -> None:
        self.by = by

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.by


def test_functions_without_attributes_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MOST_WITHOUT", 2)
    made = []
    for number in range(8):
        fn = Scaled(torch.tensor(float(number)))
        made.append(weakref.ref(fn))
        for _ in range(2):
            assert weft.batched(fn)(torch.ones(2, 1)).tolist() == [[number], [number]]
    gc.collect()
    assert not any(each() for each in made[:5])
