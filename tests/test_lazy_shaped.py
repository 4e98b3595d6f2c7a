"""Masks, `nonzero` and `unique`: what has a shape that depends on numbers is computed for all waiting examples at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.lazy import shaped
from weft.lazy.varying import FEW

LINEAR = nn.Linear(5, 5).double()
X = torch.linspace(-2, 2, 35, dtype=torch.float64).reshape(7, 5).sin()

FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "v[v > 0]": lambda v: v[v > 0].square().sum(),
    "m[mask of rows]": lambda v: torch.outer(v, v)[v > 0].sum(0),
    "m[mask of entries]": lambda v: (m := torch.outer(v, v))[m > 0.1].sum(),
    "v[other mask]": lambda v: v[v.flip(0) > 0].sum(),
    "given": lambda v: LINEAR(v)[v > 0].sum(),
    "masked_select": lambda v: torch.masked_select(v, v > 0.1).exp().sum(),
    "masked_select, broadcast": lambda v: torch.outer(v, v)[:2, :2].masked_select(v[:2] > 0).sum(),
    "nonzero": lambda v: torch.nonzero(v > 0).sum() * v.sum(),
    "nonzero of a matrix": lambda v: torch.outer(v, v).gt(0.1).nonzero().sum(0),
    "argwhere": lambda v: torch.argwhere(v.clamp(min=0)).numel(),
    "unique": lambda v: torch.unique((v * 2).round().detach()).numel(),
    "a single number": lambda v: v.sum()[v.sum() > 0].numel(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_equals_the_loop(name: str) -> None:
    def fn(x: Tensor) -> Any:
        return FUNCTIONS[name](torch.tanh(LINEAR(x)))

    for _ in range(2):
        weft.testing.assert_equivalent(fn, X)


def test_one_mask_serves_all_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[torch.Size] = []

    def noted(rows: Tensor, mask: Tensor) -> Any:
        sizes.append(rows.shape)
        return shaped._masked(rows, mask)

    monkeypatch.setitem(shaped.BY_ALL, Tensor.__getitem__, noted)
    weft.batched(lambda x: (h := torch.tanh(LINEAR(x)))[h > 0].sum())(X)
    assert sizes == [(7, 5)]


def test_what_comes_out_may_be_written_into() -> None:
    def fn(x: Tensor) -> Tensor:
        h = LINEAR(x)
        chosen = h[h > 0]
        chosen += 1
        return chosen.sum() + h.sum()

    weft.testing.assert_equivalent(fn, X)


def test_a_row_that_was_written_into_is_seen() -> None:
    def fn(x: Tensor) -> Tensor:
        h = (LINEAR(x) * 2).detach()
        weft.value(h).fill_(1.0)
        return h[h.detach() > -100].sum()

    with pytest.raises(weft.TraceError, match="written into"):
        weft.batched(fn)(X)


def test_gradients_off_in_some_examples_stay_off_there() -> None:
    def fn(x: Tensor) -> Tensor:
        h = torch.tanh(LINEAR(x))
        with torch.set_grad_enabled(bool(x[0] > 0)):
            return h[h > 0].sum()

    found = weft.batched(fn, stack=False)(X)
    assert [each.requires_grad for each in found] == [bool(x[0] > 0) for x in X]


def test_what_was_detached_stays_so() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(LINEAR(x))
        return h.detach()[h > 0].sum(), h[h > 0].sum()

    detached, trained = weft.batched(fn)(X)
    assert (detached.requires_grad, trained.requires_grad) == (False, True)


def test_no_size_that_a_mask_gives_is_a_kind_of_call_by_itself() -> None:
    torch.manual_seed(0)
    wide, rows = nn.Linear(12, 12).double(), torch.linspace(-3, 3, 12, dtype=torch.float64)

    def fn(shift: int) -> Tensor:
        v = torch.tanh(wide(rows * 1.0)) + rows + shift * 0.5 - 3
        for _ in range(8):
            v = torch.sin(v) + v
        chosen = v[torch.nonzero(v > 0).squeeze(1)]
        return wide(torch.outer(chosen, rows)).sum()

    net = weft.batched(fn)
    for _ in range(2):
        assert torch.allclose(net(list(range(12))), torch.stack([fn(shift) for shift in range(12)]))
    for name in ("getitem", "Linear"):
        assert len([op for op in net.state.fines if op.name == name and op.feeds]) <= FEW


def test_nothing_is_said_of_an_empty_selection() -> None:
    torch.manual_seed(0)
    wide = nn.Linear(5, 5).double()

    def fn(x: Tensor) -> Tensor:
        v = torch.tanh(LINEAR(x))
        for _ in range(20):
            v = torch.sin(v)
        return wide(torch.outer(v[v > 2], v)).sum()

    weft.testing.assert_equivalent(fn, X)


@pytest.mark.filterwarnings("ignore:setitem.*boolean mask:weft.errors.FallbackWarning")
def test_writing_into_an_empty_selection_is_writing_into_no_other() -> None:
    def fn(x: Tensor) -> Tensor:
        v = x * 1
        v[v > 5] *= 2
        return v

    assert torch.equal(weft.batched(fn)(X), X)
