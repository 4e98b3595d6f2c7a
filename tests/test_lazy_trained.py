"""What requires gradients in the loop requires them in the batch, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.lazy import gradients
from weft.lazy.nests import flatten

torch.manual_seed(0)
LINEAR = nn.Linear(3, 3)
X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))


@weft.cell
def partly(x: Tensor) -> Any:
    with torch.no_grad():
        without = LINEAR(x)
    return without, x.sum(), LINEAR(x).detach(), LINEAR(x)


def from_numbers(x: Tensor) -> Any:
    return LINEAR(x), x.sum(), torch.zeros_like(LINEAR(x)) + 1, (LINEAR(x) > 0).float() * 2


def some_examples(x: Tensor) -> Any:
    return torch.zeros(3) if x[0] > 0 else LINEAR(x)


def of_a_cell(x: Tensor) -> Any:
    return partly(x)


def after_a_flush(x: Tensor) -> Any:
    h = LINEAR(x)
    cut, mask = h.detach(), (h > 0).float()
    with torch.no_grad():
        without = h * 2
    steps = 1 if h.sum() > 0 else 2
    return h, cut, mask, without, cut * 2, mask * steps, without + 1, h * mask, (h * mask).detach()


def asked_on_the_way(x: Tensor) -> Any:
    h = LINEAR(x)
    mask, seen = (h > 0).float(), []
    for _ in range(3):
        if h.sum() > 0:
            seen.append((h.requires_grad, mask.requires_grad, h.detach().requires_grad, (mask * h).requires_grad))
        h = h * 2
    return h, mask * 2, mask.numpy().sum().item(), str(seen)


def deep(x: Tensor) -> Any:
    h, g = LINEAR(x), x
    for _ in range(40):
        h, g = h * 0.9, g * 0.9
    return h, g, h + g


FUNCTIONS = [from_numbers, some_examples, of_a_cell, after_a_flush, asked_on_the_way, deep]


def leaves_of(nest: Any) -> list[Any]:
    found: list[Any] = []
    flatten(nest, found)
    return found


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_results_require_gradients_as_in_the_loop(fn: Callable[..., Any]) -> None:
    wanted = leaves_of([fn(x) for x in X])
    net = weft.batched(fn, stack=False)
    for _ in range(3):
        found = leaves_of(net(X))
        for one, other in zip(found, wanted, strict=True):
            if isinstance(one, Tensor):
                assert one.requires_grad == other.requires_grad and torch.allclose(one, other, atol=1e-5)
            else:
                assert one == (pytest.approx(other) if isinstance(other, float) else other)


def test_stacked_results_require_gradients_where_one_of_them_does() -> None:
    found = weft.batched(from_numbers)(X)
    assert [part.requires_grad for part in found] == [True, False, False, False]
    assert weft.batched(some_examples)(X).requires_grad
    found[0].sum().backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        found[1].sum().backward()


def test_what_is_frozen_and_trained_again_is_looked_at_in_every_call() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)

    @weft.cell
    def both(x: Tensor) -> Any:
        return first(x), second(x)

    net = weft.batched(lambda x: both(x))
    for trained in ([True, True], [False, True], [True, False], [True, True]):
        first.requires_grad_(trained[0])
        second.requires_grad_(trained[1])
        assert [part.requires_grad for part in net(X)] == trained


def test_a_tensor_that_is_no_parameter_may_be_trained() -> None:
    model = nn.Identity()
    model.scale = torch.ones(3, requires_grad=True)
    net = weft.batched(weft.cell(lambda x: model(x) * model.scale))
    net(X).sum().backward()
    assert model.scale.grad is not None and torch.allclose(model.scale.grad, X.sum(0))


P, Q = nn.Parameter(torch.tensor([0.5, -0.3, 0.2])), nn.Parameter(torch.tensor([1.0, 0.2, -0.4]))


def until_large(x: Tensor) -> Tensor:
    steps = 0
    while (x * P).norm() < 1.5 and steps < 3:
        x, steps = LINEAR(x) + x, steps + 1
    return LINEAR(x)


def held(x: Tensor) -> Tensor:
    h = LINEAR(x)
    scored = h * Q
    return h * 2 if scored.sum() > 0 else h


def asked_twice(x: Tensor) -> Tensor:
    h = torch.tanh(LINEAR(x))
    scored = h * P
    if torch.sigmoid(h @ P) > 0.5:
        h = h + 1
    again = scored * Q
    return h * 2 if again.sum() > 0 else h


@pytest.mark.parametrize("fn", [until_large, held, asked_twice], ids=lambda fn: fn.__name__)
def test_a_parameter_that_only_decides_has_no_gradient(fn: Callable[..., Tensor]) -> None:
    net = weft.batched(fn)
    for _ in range(3):
        for tensor in (P, Q, *LINEAR.parameters()):
            tensor.grad = None
        net(X).sum().backward()
        found = [tensor.grad for tensor in (P, Q, *LINEAR.parameters())]
        for tensor in (P, Q, *LINEAR.parameters()):
            tensor.grad = None
        torch.stack([fn(x) for x in X]).sum().backward()
        assert P.grad is None and Q.grad is None
        assert found[:2] == [None, None] and LINEAR.weight.grad is not None and found[2] is not None
        assert torch.allclose(found[2], LINEAR.weight.grad, atol=1e-5)


def unused_in_a_block(x: Tensor, n: int) -> Tensor:
    """The same straight code, of which a part is used for some numbers alone."""
    a, b = x * P, LINEAR(x)
    for _ in range(n):
        b = x * 2
    return a + b


def unused_after_a_flush(x: Tensor, n: int) -> Tensor:
    a, b = x * P, LINEAR(x)
    while a.sum() < n:
        a = a + 1
    b = (b + 1).abs()
    return a * 2


def unused_to_the_end(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    a, b = x * P, x
    for _ in range(n):
        a = a * 2
        b = torch.tanh(LINEAR(b))
    return a, b


def used_without_gradients(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The rows of both are handed on together; of the second nothing is learned."""
    a, b = x * P, LINEAR(x)
    if a.sum() + b.sum() > n:
        a = a + 1
    with torch.no_grad():
        c = torch.tanh(b)
    return a * 2, c


def by_identity(x: Tensor, n: int) -> tuple[int, int]:
    return id(x), n


@pytest.mark.parametrize("cache", [None, by_identity])
@pytest.mark.parametrize("fn", [unused_in_a_block, unused_to_the_end, unused_after_a_flush, used_without_gradients])
def test_what_a_result_is_not_made_of_has_no_gradient(fn: Callable[..., Any], cache: Any) -> None:
    """And not zeros, which an optimiser with momentum or weight decay takes for a gradient."""
    xs = list(X)
    net = weft.batched(fn, stack=False, cache=None if fn in (unused_after_a_flush, used_without_gradients) else cache)
    for numbers in ([0, 1, 2, 0], [1, 2, 1, 2], [3, 3, 2, 1]):
        grads = []
        for found in ([fn(x, n) for x, n in zip(xs, numbers, strict=True)], net(xs, numbers)):
            for leaf in (P, *LINEAR.parameters()):
                leaf.grad = None
            firsts = [each[0] if isinstance(each, tuple) else each for each in found]
            torch.stack(firsts).sum().backward()
            grads.append([P.grad, LINEAR.weight.grad, LINEAR.bias.grad])
        assert [grad is None for grad in grads[1]] == [grad is None for grad in grads[0]]
        for batched, looped in zip(grads[1], grads[0], strict=True):
            torch.testing.assert_close(batched, looped)


def test_tensors_that_are_taken_one_by_one_are_told_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    found = gradients.are_trained
    monkeypatch.setattr(gradients, "are_trained", lambda *given: asked.append(given) or found(*given))

    def masked(x: Tensor) -> Tensor:
        h = torch.tanh(LINEAR(x))
        return h[h > 0].sum()

    results = weft.batched(masked, stack=False)(X.repeat(4, 1))
    assert len(asked) < 4 and [each.requires_grad for each in results] == [True] * 16
