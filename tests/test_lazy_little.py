"""Functions with masks and little else run example by example: recording them would take longer than the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.lazy.little import AGAIN

X = torch.linspace(-2, 2, 42).sin().reshape(7, 6)


class Watched:
    """A function of one example, and whether it was recorded at each of its calls."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self.fn, self.recorded = fn, list[bool]()

    def __call__(self, x: Any) -> Any:
        self.recorded.append(isinstance(x["x"] if isinstance(x, dict) else x, weft.Value))
        return self.fn(x)


def recorded(fn: Callable[[Any], Any], calls: int = 3) -> list[bool]:
    """Which calls of the batched function record it."""
    watched = Watched(fn)
    for _ in range(calls):
        weft.batched(watched)(X)
    return watched.recorded[:: len(X)]


SMALL, LARGE = nn.Linear(6, 6), nn.Linear(6, 4000)


def positive(x: Tensor) -> Tensor:
    h = SMALL(x)
    return h[h > 0].sum()


def long(x: Tensor) -> Tensor:
    for _ in range(12):
        x = torch.tanh(SMALL(x))
    return x[x > 0].sum()


def test_little_work_is_recorded_once() -> None:
    assert recorded(positive) == [True, False, False]


@pytest.mark.parametrize(
    "fn",
    [
        long,
        lambda x: LARGE(x)[LARGE(x) > 0].sum(),
        lambda x: nn.functional.dropout(x, 0.5)[x > 0].sum(),
        lambda x: SMALL(x).sum(),
        lambda x: SMALL(x).sum() if x.sum() > 0 else x.sum(),
    ],
    ids=["many calls", "a large layer", "drawn numbers", "no mask", "a branch"],
)
def test_everything_else_is_recorded_always(fn: Callable[[Tensor], Tensor]) -> None:
    assert recorded(fn) == [True, True, True]


def test_it_is_recorded_again_every_now_and_then() -> None:
    assert recorded(positive, AGAIN + 3) == [True, *[False] * AGAIN, True, False]


def test_what_draws_numbers_in_training_draws_the_same_whatever_was_called_before() -> None:
    def masked(x: Tensor) -> Tensor:
        return x[x > 0].sum()

    def sized(x: Tensor) -> Tensor:
        return x.sum()

    class Dropping(nn.Module):
        def __init__(self, last: Callable[[Tensor], Tensor]) -> None:
            super().__init__()
            self.drop, self.last = nn.Dropout(0.5), last

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.drop(self.drop(x).tanh()))

    others = [torch.ones(n + 2) for n in range(9)]
    for last, before in ((masked, list(X)), (sized, others)):
        found = []
        for calls in (0, 2):
            model = Dropping(last).eval()
            for _ in range(calls):
                weft.batched(model)(before)
            torch.manual_seed(0)
            found.append(weft.batched(model.train())(X))
        torch.testing.assert_close(*found)


def test_whoever_asks_for_an_option_or_a_plan_gets_it() -> None:
    watched = Watched(positive)
    for _ in range(2):
        weft.batched(watched)(X)
    watched.recorded.clear()
    weft.batched(watched, backend="eager")(X)
    weft.plan(weft.batched(watched), X)
    assert all(watched.recorded)


def test_results_and_gradients_are_those_of_the_loop() -> None:
    net = weft.batched(positive)
    net(X)
    expected = torch.stack([positive(x) for x in X])
    wanted = torch.autograd.grad(expected.sum(), list(SMALL.parameters()))
    found = net(X)
    assert torch.equal(found, expected)
    assert all(map(torch.equal, torch.autograd.grad(found.sum(), list(SMALL.parameters())), wanted))


@pytest.mark.parametrize("given", [list(X), [{"x": x} for x in X], list(X.clone().requires_grad_().unbind(0))])
def test_what_the_function_writes_into_stays_as_it_was(given: list[Any]) -> None:
    def fn(example: Any) -> Tensor:
        x = example["x"] if isinstance(example, dict) else example
        if torch.is_grad_enabled() and x.requires_grad:
            x = x * 1
        x += 1
        return x[x > 0].sum()

    watched = Watched(fn)
    before = [(each["x"] if isinstance(each, dict) else each).detach().clone() for each in given]
    first, second = (weft.batched(watched)(given) for _ in range(2))
    assert watched.recorded[:: len(X)] == [True, False]
    assert torch.allclose(first, second)
    assert all(torch.equal(each["x"] if isinstance(each, dict) else each, x) for each, x in zip(given, before, strict=True))


def test_an_error_names_its_example() -> None:
    def fn(x: Tensor) -> Tensor:
        if bool(x[0] > 100):
            raise ValueError("too large")
        return x[x > 0].sum()

    net = weft.batched(fn)
    net(X)
    with pytest.raises(ValueError, match="too large") as caught:
        net([*X[:3], X[3] + 200])
    assert caught.value.__notes__ == ["in example 3"]


def test_results_of_other_shapes_are_refused_in_the_same_words() -> None:
    net = weft.batched(lambda x: x[x > 0])
    message = (
        r"result of examples 0 and \d: float32\[\d\] and float32\[\d\] cannot be stacked; use weft.batched\(fn, stack=False\)"
    )
    for _ in range(2):
        with pytest.raises(weft.ShapeError, match=message):
            net(X)


def test_a_meeting_point_is_passed_by() -> None:
    def fn(x: Tensor) -> Tensor:
        weft.sync("here")
        return x[x > 0].sum()

    first, second = (weft.batched(fn)(X) for _ in range(2))
    assert torch.allclose(first, second)
