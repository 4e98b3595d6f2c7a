"""On a CPU a backward pass without recurrences runs by a recipe from the third call of its kind on, and gives the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.cc import compiler
from weft.run.execution import Execution

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler")


class Net(nn.Module):
    """Words, some of which are used twice, and two results, one of which may get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.pair, self.out = nn.Embedding(7, 4), nn.Linear(8, 4), nn.Linear(4, 2)

    def forward(self, words: Sequence[int], scale: Tensor) -> tuple[Tensor, Tensor]:
        rows = [self.word(torch.tensor(word)) for word in words]
        pairs = [torch.tanh(self.pair(torch.cat([a, b]))) * scale for a, b in pairwise(rows)]
        return torch.stack([self.out(pair) for pair in pairs]).sum(0), torch.stack(pairs).amax(0)


def batch(seed: int) -> tuple[list[list[int]], Tensor]:
    torch.manual_seed(seed)
    lengths = torch.randint(2, 6, (9,)).tolist()
    return [torch.randint(7, (n,)).tolist() for n in lengths], torch.rand(9, requires_grad=True)


def gradients(net: Any, model: nn.Module, seed: int, both: bool) -> list[Tensor]:
    words, scale = batch(seed)
    first, second = net(words, scale)
    total = first.square().sum() + (second.square().sum() if both else 0)
    return list(torch.autograd.grad(total, [*model.parameters(), scale]))


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the backward passes that take the general way."""
    seen: list[int] = []
    way = Execution.backward

    def counted(self: Execution, *args: Any) -> Any:
        seen.append(1)
        return way(self, *args)

    monkeypatch.setattr(Execution, "backward", counted)
    return seen


@pytest.mark.parametrize("both", [True, False])
def test_a_recipe_gives_what_the_general_way_gives(both: bool, general: list[int]) -> None:
    torch.manual_seed(0)
    model = Net().double()
    net, eager = weft.batched(model), weft.batched(model, backend="eager")
    for seed in range(6):
        expected = gradients(eager, model, seed, both)
        before = len(general)
        found = gradients(net, model, seed, both)
        for got, want in zip(found, expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert len(general) == before, "the last call should have had a recipe"


def test_who_watches_the_operations_sees_them(general: list[int]) -> None:
    model = Net()
    net = weft.batched(model)
    for _ in range(4):
        gradients(net, model, 1, True)
    words, scale = batch(1)
    first, _ = net(words, scale)
    before = len(general)
    with torch.profiler.profile(acc_events=True) as seen:
        first.sum().backward()
    assert len(general) == before + 1
    assert any("mm" in event.key for event in seen.key_averages())


def test_a_graph_that_is_kept_can_be_gone_through_twice(general: list[int]) -> None:
    model = Net().double()
    net = weft.batched(model)
    for _ in range(4):
        gradients(net, model, 2, True)
    words, scale = batch(2)
    first, second = net(words, scale)
    before, parameters = len(general), list(model.parameters())
    once = torch.autograd.grad(first.sum() + second.sum(), parameters, retain_graph=True)
    again = torch.autograd.grad(first.sum() + second.sum(), parameters)
    assert len(general) == before
    assert all(torch.equal(one, two) for one, two in zip(once, again, strict=True))


def test_a_recipe_runs_only_what_comes_back_as_it_was_written_for() -> None:
    """Which examples take the longer way decides whether gradients come back as a slice; numbers of rows are equal."""
    torch.manual_seed(0)
    shared, longer = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
    weights = [*shared.parameters(), *longer.parameters()]

    def fn(x: Tensor, is_long: bool) -> Tensor:
        h = torch.tanh(shared(x))
        return (longer(h) if is_long else h) * 1.5

    net = weft.batched(fn)
    for flags in [*product([False, True], repeat=3)] * 2 + [*product([False, True], repeat=4)] * 2:
        x, cotangent = torch.randn(2, len(flags), 4, dtype=torch.float64)
        found = torch.autograd.grad((net(x, list(flags)) * cotangent).sum(), weights, allow_unused=True)
        expected = torch.autograd.grad((torch.stack(list(map(fn, x, flags))) * cotangent).sum(), weights, allow_unused=True)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
