"""Batched calls inside transforms of torch run one example after the other, and give what the loop gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import weft

torch.manual_seed(0)
LAYER = nn.Linear(4, 4).double()
ROWS = torch.randn(3, 4, dtype=torch.float64)
POINT = torch.randn(4, dtype=torch.float64)


def energy(row: Tensor, point: Tensor) -> Tensor:
    return torch.tanh(LAYER(row) * point).sum()


def batched(point: Tensor) -> Tensor:
    found: Tensor = weft.batched(energy, in_dims=(0, None))(ROWS, point)
    return found


def loop(point: Tensor) -> Tensor:
    return torch.stack([energy(row, point) for row in ROWS])


def scope(point: Tensor) -> Tensor:
    with weft.batching():
        found = torch.stack([energy(row, point) for row in ROWS])
    value: Tensor = weft.value(found)
    return value


def tangent(fn: Callable[[Tensor], Tensor]) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(fn(forward_ad.make_dual(POINT, POINT * 2))).tangent


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor]], Any]] = {
    "grad": lambda fn: torch.func.grad(lambda point: fn(point).sum())(POINT),
    "jacrev": lambda fn: torch.func.jacrev(fn)(POINT),
    "vmap": lambda fn: torch.vmap(fn)(torch.stack([POINT, POINT * 2])),
    "forward mode": tangent,
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own, in forward mode
@pytest.mark.parametrize("fn", [batched, scope])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_around_a_batched_call_give_what_they_give_around_the_loop(transform: str, fn: Any) -> None:
    torch.testing.assert_close(TRANSFORMS[transform](fn), TRANSFORMS[transform](loop), rtol=1e-12, atol=1e-12)


def test_results_are_put_together_there_as_elsewhere() -> None:
    net = weft.batched(lambda row, point: {"sum": (row * point).sum(), "at": 3}, in_dims=(0, None))
    found = torch.vmap(lambda point: net(ROWS, point)["sum"])(POINT[None])
    torch.testing.assert_close(found[0], ROWS @ POINT)
    assert len(torch.vmap(lambda point: weft.batched(lambda row: row * point, stack=False)(ROWS))(POINT[None])) == 3


def test_an_error_there_names_the_example() -> None:
    def fails(row: Tensor, at: int) -> Tensor:
        if at == 2:
            raise KeyError("no")
        return row

    with pytest.raises(KeyError) as error:
        torch.vmap(lambda rows: weft.batched(fails)(rows, [0, 1, 2]))(ROWS[None])
    assert error.value.__notes__ == ["in example 2"]


def test_a_cell_may_make_a_batched_call() -> None:
    inner = weft.batched(lambda row: torch.tanh(LAYER(row)).sum())

    @weft.cell
    def outer(row: Tensor) -> Tensor:
        found: Tensor = inner(torch.stack([row, row * 2]))
        return found

    expected = torch.stack([torch.stack([torch.tanh(LAYER(row * k)).sum() for k in (1, 2)]) for row in ROWS])
    torch.testing.assert_close(weft.batched(outer)(ROWS), expected, rtol=1e-12, atol=1e-12)


def test_cotangents_come_one_at_a_time() -> None:
    result = weft.batched(lambda row: torch.tanh(LAYER(row)))(ROWS)
    with pytest.raises(weft.WeftError) as error:
        torch.autograd.grad(result, [LAYER.weight], torch.ones(2, 3, 4, dtype=torch.float64), is_grads_batched=True)
    assert str(error.value) == (
        "a batched call takes one cotangent at a time: leave out is_grads_batched=True and vectorize=True"
    )
