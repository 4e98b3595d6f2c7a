"""What a flush in the middle costs where its structure was seen before."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.graph.cell import Trace
from weft.run import calls


class Rounds(nn.Module):
    """Asks for a number in every round; an example has as many rounds as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.score = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, rounds: int) -> Any:
        h, seen = x, 0
        for _ in range(rounds):
            h = torch.tanh(self.step(h)) + h
            seen += int(self.score(h).argmax())
        return h, seen


def loop(model: nn.Module, x: Tensor, rounds: list[int]) -> tuple[Tensor, Tensor]:
    found = [model(*each) for each in zip(x, rounds, strict=True)]
    return torch.stack([h for h, _ in found]), torch.tensor([seen for _, seen in found])


def check_equal(model: nn.Module, net: Any, x: Tensor, rounds: list[int]) -> None:
    (h, seen), (wanted, counts) = net(x, rounds), loop(model, x, rounds)
    torch.testing.assert_close(h, wanted)
    assert torch.equal(seen, counts)


def counted(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> list[int]:
    """A list that grows by one with every call of a function."""
    made: list[int] = []
    plain = getattr(where, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        made.append(1)
        return plain(*args, **kwargs)

    monkeypatch.setattr(where, name, counting)
    return made


def after_three_calls() -> tuple[Rounds, Any, Tensor]:
    """What is kept of a flush is there after a few of them."""
    torch.manual_seed(0)
    model, x = Rounds(), torch.randn(3, 4)
    net = weft.batched(model)
    for _ in range(3):
        net(x, [2, 2, 2])
    return model, net, x


def test_structures_come_again_and_change() -> None:
    torch.manual_seed(0)
    model, rounds = Rounds(), [1, 3, 3, 5]
    net = weft.batched(model)
    for _ in range(3):
        check_equal(model, net, torch.randn(4, 4), rounds)
    check_equal(model, net, torch.randn(4, 4), [2, 2, 6, 6])
    check_equal(model, net, torch.randn(4, 4), rounds)


def test_what_was_kept_of_a_flush_goes_when_blocks_change() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(4, 4)

    def fn(x: Tensor, both: bool) -> Tensor:
        h = torch.tanh(linear(x))
        if bool(h.sum() > 100.0):
            return h
        h = h * 2
        if both:
            h = h + x
        return h.exp() if bool(h[0] > 100.0) else h.sin()

    net, x = weft.batched(fn), torch.randn(4, 4)
    for both in ([False] * 4, [False, True] * 2, [True] * 4, [False] * 4):
        for _ in range(2):
            wanted = torch.stack([fn(row, flag) for row, flag in zip(x, both, strict=True)])
            torch.testing.assert_close(net(x, both), wanted)


def test_results_are_found_in_a_plan_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, net, x = after_three_calls()
    found = counted(monkeypatch, calls, "_wanted_groups")
    check_equal(model, net, x, [2, 2, 2])
    assert not found


def test_one_call_may_use_thousands_of_results() -> None:
    linear = nn.Linear(2, 2).double()

    def fn(x: Tensor) -> Tensor:
        steps = [linear(x) * 1.0 for _ in range(17000)]
        if bool(steps[-1].sum() > 100.0):
            return steps[0]
        return torch.stack(steps).sum(0) if bool(torch.stack(steps).mean(0).sum() < 100.0) else steps[0]

    x = torch.ones(1, 2, dtype=torch.float64)
    with torch.no_grad():
        net = weft.batched(fn)
        for _ in range(2):
            torch.testing.assert_close(net(x), 17000 * linear(x))


def test_what_is_left_for_the_last_flush_may_differ_from_call_to_call() -> None:
    torch.manual_seed(0)
    step, late = nn.Linear(4, 4), nn.Linear(4, 4)

    def fn(x: Tensor, rounds: int) -> Tensor:
        kept = []
        for _ in range(rounds):
            x = torch.tanh(step(x))
            kept.append(late(x))
            assert bool(x.sum() < 100.0)
        return torch.stack(kept).sum(0)

    net = weft.batched(fn)
    for rounds in ([1, 2, 2, 4], [1, 2, 2, 4], [3, 3, 3, 5], [1, 2, 2, 4]):
        x = torch.randn(4, 4)
        wanted = torch.stack([fn(row, count) for row, count in zip(x, rounds, strict=True)])
        torch.testing.assert_close(net(x, rounds), wanted)


def test_the_cells_of_a_flush_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model, net, x = after_three_calls()
    looked = counted(monkeypatch, Trace, "holds")
    check_equal(model, net, x, [2, 2, 2])
    assert not looked
    model.step = nn.Linear(4, 4)
    check_equal(model, net, x, [2, 2, 2])
    seen: list[Any] = []
    model.score.register_forward_hook(lambda *given: seen.append(given))
    with pytest.warns(weft.FallbackWarning, match="a module in it carries hooks"):
        check_equal(model, net, x, [2, 2, 2])
    assert seen


def test_a_flush_makes_a_bounded_number_of_calls() -> None:
    """Of Python functions and of functions in C, where its structure was seen before."""
    torch.manual_seed(0)
    net, x = weft.batched(Rounds()), torch.randn(2, 4)

    def calls(rounds: int) -> int:
        for _ in range(4):
            net(x, [rounds, rounds])
        made = 0

        def profile(frame: Any, event: str, _: Any) -> None:
            nonlocal made
            made += event in ("call", "c_call")

        sys.setprofile(profile)
        try:
            net(x, [rounds, rounds])
        finally:
            sys.setprofile(None)
        return made

    assert (calls(8) - calls(3)) / 5 < 900
