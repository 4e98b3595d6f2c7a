"""Stacks of values: lists for as long as they can be, so that different lengths batch together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.testing
from lazy_parts import assert_equals_loop

WEIGHT = nn.Parameter(torch.tensor([2.0, 3.0]))


def test_lists_of_different_lengths_batch_together() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(3, 3).double()

    def fn(n: int, x: Tensor) -> Any:
        rows = [linear(x * (i + 1)) for i in range(n)]
        keys = torch.stack(rows)
        weights = torch.softmax(keys @ x, 0)
        return {
            "sum": torch.stack(rows).sum(0),
            "mean": keys.mean(dim=0),
            "max": torch.amax(keys, 0),
            "min": keys.amin(0),
            "context": weights @ keys,
            "weighted": (weights.unsqueeze(-1) * keys).sum(0),
            "columns": (weights[:, None] * keys).sum(0),
            "log": torch.logsumexp(keys, 0),
            "ragged": weft.ragged(rows).softmax_sum(lambda row: row.sum()),
            "maximum": weft.ragged(rows).max(),
            "first": keys[0],
            "last": keys[-1] + torch.log_softmax(keys, 0)[n - 1],
        }

    counts = [1, 3, 2, 3]
    assert_equals_loop(fn, counts, torch.randn(4, 3, dtype=torch.float64))
    state = weft.lazy.state.state_of(fn)
    reductions = [kind for kind in state.library.types if kind.many is not None]
    assert reductions and not [kind for kind in state.library.types if kind.name == "stack"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda items: torch.stack(items).sum(0),
        lambda items: torch.stack(items).mean(0),
        lambda items: torch.stack(items).amax(0),
        lambda items: weft.ragged(items).sum(),
    ],
    ids=["sum", "mean", "amax", "ragged"],
)
def test_a_reduction_may_be_all_that_is_done_to_trained_data(fn: Any) -> None:
    lists = [[torch.randn(2, dtype=torch.float64, requires_grad=True) for _ in range(n)] for n in (1, 3, 2)]
    weft.testing.assert_equivalent(fn, lists)
    for _ in range(2):  # and when it is known
        out = weft.batched(fn)(lists)
        torch.testing.assert_close(out, torch.stack([fn(items) for items in lists]))
        out.sum().backward()
    assert all(item.grad is not None for items in lists for item in items)


def test_a_stack_that_is_needed_as_a_whole_is_made() -> None:
    def fn(n: int, x: Tensor) -> Tensor:
        rows = torch.stack([x * i for i in range(n)])
        return rows.flatten().sum() + rows.cumsum(0)[-1].sum() + rows.max(0).values.sum() + len(rows) + rows.T.sum()

    assert_equals_loop(fn, [1, 3, 2], torch.randn(3, 2, dtype=torch.float64))


def test_stacks_do_what_tensors_do() -> None:
    lin, column = nn.Linear(3, 3), torch.randn(3, 1)
    rules = (
        lambda s: 2 - s,
        lambda s: 3 * s,
        lambda s: 2 / s.exp(),
        lambda s: column.squeeze() - s,
        lambda s: s.clamp(min=column.repeat(len(s) // 3, 1), max=column.repeat(len(s) // 3, 1) + 1),
        lambda s: (s - torch.inf).logsumexp(0),
        lambda s: (s + torch.inf).logsumexp(0),
        lambda s: s.log_softmax(0),
        lambda s: s.mv(column.squeeze()),
        lambda s: torch.mv(s, lin.weight[0]),
    )
    xs = torch.randn(4, 3)
    for rule, times in [(rule, times) for rule in rules for times in (1, 3)]:  # a few rows, and more

        def f(x: Any, rule: Any = rule, times: int = times) -> Any:
            h = lin(x)
            return rule(torch.stack([h, h * 2, h.tanh()] * times))

        torch.testing.assert_close(weft.batched(f)(xs), torch.stack([f(x) for x in xs]))


def test_numbers_that_vary_do_not_make_a_kind_of_call_each() -> None:
    weight = nn.Parameter(torch.randn(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))

    def fn(i: int) -> Tensor:
        rows = weight * 1
        return rows[i] * (i + 0.5) - i

    assert_equals_loop(fn, list(range(30)))
    state = weft.lazy.state.state_of(fn)
    assert len(state.library.types) < 20


def test_a_stack_that_is_first_needed_without_gradients_keeps_them() -> None:
    def fn(x: Tensor) -> Tensor:
        rows = torch.stack([x[0] * WEIGHT, x[1] * WEIGHT])
        with torch.no_grad():
            seen = rows.t() + 1
        return rows.t() * seen

    weft.testing.assert_equivalent(fn, torch.arange(6.0).reshape(3, 2))


def test_a_stack_that_is_made_without_gradients_has_none() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        scaled = [x[0] * WEIGHT, x[1] * WEIGHT]
        with torch.no_grad():
            rows = torch.stack(scaled)
        return rows.sum(0) + scaled[0], rows.tanh().sum(0)

    weft.testing.assert_equivalent(fn, torch.arange(6.0).reshape(3, 2))
    assert not weft.batched(fn)(torch.arange(6.0).reshape(3, 2))[1].requires_grad


def test_a_cell_whose_class_is_that_of_a_layer_sees_the_whole_stack() -> None:
    class Attention(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).softmax(0)

    cell, layer = weft.cell(Attention(3, 3).double()), weft.cell(nn.Linear(3, 3).double())

    def fn(n: int, x: Tensor) -> Any:
        stack = torch.stack([x * (i + 1) for i in range(n)])
        return cell(stack).sum(0), layer(stack).sum(0)

    assert_equals_loop(fn, [2, 9, 8], torch.randn(3, 3, dtype=torch.float64))
