"""Batched calls inside of batched functions and of scopes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import weft
from lazy_parts import assert_equals_loop, inputs


def _layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 3).double()


LAYER = _layer()
SEQUENCES = [inputs(8)[:3], inputs(8)[3:5], inputs(8)[5:]]
BRANCHES: dict[str, Callable[[Tensor], Tensor]] = {
    "on what was given": lambda row: row * 2 if row.sum() > 0 else row,
    "on a result": lambda row: LAYER(row) * 2 if LAYER(row).sum() > 0 else LAYER(row),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_an_inner_function_may_branch_on_numbers(name: str) -> None:
    inner = weft.batched(BRANCHES[name])
    assert_equals_loop(lambda rows: inner(rows).sum(0), SEQUENCES)
    assert_equals_loop(lambda rows: inner(LAYER(rows)).sum(0), SEQUENCES)
    assert_equals_loop(lambda rows: inner(list(LAYER(rows))).sum(0), SEQUENCES)


def test_a_stack_follows_what_was_left_for_the_last_flush() -> None:
    def fn(rows: Tensor) -> Tensor:
        parts = []
        for row in rows:
            parts.append(LAYER(row) if row.sum() > 99 else LAYER(row) * 2)
            if LAYER(row).sum() > 0:
                parts[-1] = parts[-1] + 1
        stack = torch.stack(parts)
        assert stack.requires_grad
        return stack.sum(0)

    assert_equals_loop(fn, SEQUENCES)


def test_a_batched_call_in_a_scope_takes_real_tensors() -> None:
    net = weft.batched(lambda row: torch.tanh(LAYER(row)))
    with weft.batching():
        found = net(SEQUENCES[0])
        total = found.sum() * 2
    expected = torch.tanh(LAYER(SEQUENCES[0]))
    assert torch.allclose(weft.value(found), expected)
    assert torch.allclose(weft.value(total), expected.sum() * 2)


def test_a_parameter_that_is_split_in_an_inner_call_gets_its_gradient() -> None:
    weight = nn.Parameter(inputs(2))
    inner = weft.batched(lambda row, x: row * x, in_dims=(0, None))
    assert_equals_loop(lambda x: inner(weight, x).sum(0), inputs())


def test_gradients_of_inner_results_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    known = weft.Value.requires_grad.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(weft.Value, "requires_grad", property(lambda value: asked.append(value) or known(value)))
    inner = weft.batched(lambda row: LAYER(row))
    weft.batched(lambda rows: inner(list(rows)).sum(0))(SEQUENCES)
    assert len(asked) == 1
