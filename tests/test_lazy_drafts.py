"""Numbers written into what was made of nothing are data, written at once; all else is as when they are recorded."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import weft
import weft.lazy.inplace
from lazy_parts import assert_equals_loop

LINEAR = nn.Linear(3, 3).double()


def inputs(n: int = 4) -> Tensor:
    return torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float64)


def adjacency(x: Tensor) -> Any:
    edges = zeros(3, 3)
    for a, b in ((0, 1), (1, 2), (2, 0)):
        edges[a, b] = 1.0
    return edges @ LINEAR(x), edges


def used_in_between(x: Tensor) -> Any:
    mask, found = zeros(3), []
    for at in range(3):
        mask[at] = at + 0.5
        found.append((LINEAR(x) + mask).cumsum(0))
    return found, mask


def seen_under_two_names(x: Tensor) -> Any:
    one = zeros(2, 3)
    other = one
    one[0, 1] = 2
    other[1] = 3
    return one, other, one + x


def with_views(x: Tensor) -> Any:
    whole = zeros(2, 3)
    row, turned = whole[1], whole.t()
    whole[1, 2] = 4.0
    row[0] = 5.0
    return whole, row, turned, whole @ x


def views_afterwards(x: Tensor) -> Any:
    whole = zeros(2, 3)
    whole[1, 2] = 4.0
    row = whole[1]
    whole[1, 0] = 2.0
    row[1] = 7.0
    return whole, row, row @ x


def values_and_numbers(x: Tensor) -> Any:
    out = zeros(3, 3)
    out[0, 0] = 1.0
    out[1] = LINEAR(x)
    out[2, 1] = 6.0
    return out, out.sum()


def all_kinds_of_indices(x: Tensor) -> Any:
    a, b, c = torch.zeros(4, 3, dtype=torch.int64), torch.ones(3, dtype=torch.bool), torch.full((2, 2), 7.5)
    a[1:3] = 2
    a[..., -1] = 9
    a[0] = True
    b[1] = False
    c[:, 1] = 3
    return a, b, c, x * b


def numbers_that_are_asked_for(x: Tensor) -> Any:
    seen = zeros(3)
    seen[1] = 2.0
    return x * (seen[1].item() + float(seen.sum()))


def of_each_example(x: Tensor) -> Any:
    kept = zeros(3)
    if float(x.detach().sum()) > 0:
        kept[0] = 1.0
    kept[2] = 2.0
    return kept * x


FUNCTIONS = [
    adjacency,
    used_in_between,
    seen_under_two_names,
    with_views,
    views_afterwards,
    values_and_numbers,
    all_kinds_of_indices,
    numbers_that_are_asked_for,
    of_each_example,
]


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_writes_equal_the_loop(fn: Callable[[Tensor], Any]) -> None:
    for _ in range(2):
        assert_equals_loop(fn, inputs())
    with torch.no_grad():
        assert_equals_loop(fn, inputs())


@pytest.mark.parametrize("fn", [adjacency, used_in_between, seen_under_two_names, values_and_numbers])
def test_recordings_that_are_kept_hold_them(fn: Callable[[Tensor], Any]) -> None:
    net = weft.batched(fn, cache=lambda x: float(x[0]), stack=False)
    expected = tree_leaves([fn(x) for x in inputs()])
    for _ in range(3):
        found = tree_leaves(net(inputs()))
        assert all(torch.allclose(one, other, rtol=0, atol=1e-12) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("seed", range(40))
def test_random_writes_equal_the_loop(seed: int) -> None:
    dice = random.Random(seed)
    script = [(dice.choice(["number", "number", "number", "row", "use", "view", "item"]), dice.randrange(3)) for _ in range(9)]

    def fn(x: Tensor) -> Any:
        out, found = zeros(3, 3), list[Any]()
        for step, (what, at) in enumerate(script):
            if what == "number":
                out[at, step % 3] = step + 1.0
            elif what == "row":
                out[at] = LINEAR(x)
            elif what == "use":
                found.append(out.sum(0) + x)
            elif what == "view":
                found.append(out[at])
            else:
                found.append(out.detach()[at, 0].item())
        return out, found

    assert_equals_loop(fn, inputs(3))


def test_a_large_matrix_is_not_copied_for_every_number(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Any] = []
    right = weft.lazy.inplace.record
    monkeypatch.setattr(weft.lazy.inplace, "record", lambda *given: (recorded.append(given[1]), right(*given))[1])

    def fn(x: Tensor) -> Tensor:
        edges = zeros(300, 300)
        for at in range(300):
            edges[at, at * 7 % 300] = 1.0
        return edges.sum() * x

    assert torch.equal(weft.batched(fn)(inputs()), inputs() * 300)
    assert recorded == []


def test_a_place_that_is_not_there_names_its_example() -> None:
    def fn(x: Tensor) -> Tensor:
        mask = zeros(3)
        mask[3 if float(x[0]) > 0.5 else 0] = 1.0
        return mask * x

    with pytest.raises(IndexError, match="index 3 is out of bounds") as caught:
        weft.batched(fn)(torch.tensor([[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]))
    assert "in example 1" in caught.value.__notes__
