"""Parameters on which no result depends get no gradient, though numbers that were asked for depend on them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import weft
from weft.lazy import native
from weft.lazy.reached import reach

X = torch.linspace(-1, 1.5, 12, dtype=torch.float64).reshape(4, 3)


def grown(v: Tensor) -> Tensor:
    return torch.tanh(v)


def decided(x: Tensor, decides: Tensor, counts: Tensor) -> Tensor:
    h, s = grown(x * decides), grown(x * counts)
    return (s + 1 if h.sum() > 0 else s).sum()


def followed(x: Tensor, decides: Tensor, counts: Tensor) -> Tensor:
    h, s = x * decides, x * counts
    while h.sum() < 3:
        h, s = grown(h) + 1, grown(s)
    return s.sum()


def detached(x: Tensor, decides: Tensor, counts: Tensor) -> Tensor:
    h, s = grown(x * decides), grown(x * counts)
    return (s * h.detach()).sum() if h.sum() > 0 else s.sum()


def gradients(fn: Callable[..., Tensor], run: Callable[[Callable[[Tensor], Tensor]], Tensor]) -> list[Tensor | None]:
    decides, counts = nn.Parameter(torch.ones(3).double()), nn.Parameter(torch.full((3,), 2.0).double())
    run(lambda x: fn(x, decides, counts)).sum().backward()
    return [decides.grad, counts.grad]


@pytest.mark.parametrize("fn", [decided, followed, detached])
def test_what_only_decides_has_no_gradient(fn: Callable[..., Tensor]) -> None:
    expected = gradients(fn, lambda one: torch.stack([one(x) for x in X]))
    found = gradients(fn, lambda one: weft.batched(one)(X))
    assert found[0] is None and expected[0] is None
    assert found[1] is not None and expected[1] is not None and torch.allclose(found[1], expected[1])


def test_it_has_one_where_the_result_depends_on_it_in_one_example_alone() -> None:
    def fn(x: Tensor, decides: Tensor, counts: Tensor) -> Tensor:
        h, s = grown(x * decides), grown(x * counts)
        return (s + h if h.sum() > 1 else s).sum()

    expected = gradients(fn, lambda one: torch.stack([one(x) for x in X]))
    found = gradients(fn, lambda one: weft.batched(one)(X))
    assert all(map(torch.allclose, found, expected))


def test_it_has_one_where_the_code_takes_the_tensor() -> None:
    def fn(x: Tensor, decides: Tensor, counts: Tensor) -> Tensor:
        h, s = grown(x * decides), grown(x * counts)
        taken = weft.value(h)
        return (s + 1 if h.sum() > 0 else s).sum() + taken.sum()

    expected = gradients(lambda x, d, c: decided(x, d, c) + grown(x * d).sum(), lambda one: torch.stack([one(x) for x in X]))
    found = gradients(fn, lambda one: weft.batched(one)(X))
    assert all(map(torch.allclose, found, expected))


def test_calls_of_rare_sizes_beside_it_run_one_by_one() -> None:
    decides, linear = nn.Parameter(torch.ones(3).double()), nn.Linear(3, 3).double()

    def fn(x: Tensor) -> Tensor:
        s = torch.tanh(linear(x))
        return (s * 2 if (x[0] * decides).sum() > 0 else s).sum(0)

    net = weft.batched(fn)
    for sizes in ((1, 2, 3), (4, 5, 6, 7), (1, 4, 8)):
        xs = [torch.linspace(-1, 1, 3 * size, dtype=torch.float64).reshape(size, 3).flip(0) for size in sizes]
        found: list[list[Tensor | None]] = []
        for out in (net(xs), torch.stack([fn(x) for x in xs])):
            found.append([*torch.autograd.grad(out.sum(), [decides, *linear.parameters()], allow_unused=True)])
        assert found[0][0] is None and found[1][0] is None
        assert all(torch.allclose(one, other) for one, other in zip(found[0][1:], found[1][1:], strict=True))


def test_c_and_its_twin_reach_the_same() -> None:
    made = native.functions("weave", "weft_reach")
    if made is None:
        pytest.skip("no C compiler")
    rng = np.random.default_rng(0)
    for calls in (1, 7, 200):
        counts = rng.integers(0, 4, calls)
        counts[0] = 0
        ends = np.cumsum(counts)
        producer = np.concatenate([rng.integers(-1, at, count) for at, count in enumerate(counts.tolist())]).astype(np.int64)
        passes, found = rng.random(calls) < 0.8, rng.random(calls) < 0.1
        other = found.copy()
        reach(ends, producer, passes, found)
        made[0]((ends, producer, passes, other))
        assert (found == other).all()
