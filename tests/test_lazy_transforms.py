"""Batched calls inside transforms of torch, and of blocks, run one example after the other, and give what the loop gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import weft
import weft.blocks as wb

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


class Energy(nn.Module):
    """The same of a point that is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Parameter(POINT.clone())

    def forward(self, row: Tensor) -> Tensor:
        return energy(row, self.point)


BLOCK = wb.Map(wb.Vector(4, "float64") >> wb.Function(Energy())) >> wb.Sum()
COMPILED = wb.compile(BLOCK)


def blocks(point: Tensor) -> Tensor:
    (name, _), *_ = COMPILED.named_parameters()
    found: Tensor = torch.func.functional_call(COMPILED, {name: point}, ([[row] for row in ROWS.tolist()],))
    return found


def block(point: Tensor) -> Tensor:
    (name, _), *_ = BLOCK.named_parameters()
    return torch.stack([torch.func.functional_call(BLOCK, {name: point}, ([row],)) for row in ROWS.tolist()])


def tangent(fn: Callable[[Tensor], Tensor]) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(fn(forward_ad.make_dual(POINT, POINT * 2))).tangent


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor]], Any]] = {
    "grad": lambda fn: torch.func.grad(lambda point: fn(point).sum())(POINT),
    "jacrev": lambda fn: torch.func.jacrev(fn)(POINT),
    "vmap": lambda fn: torch.vmap(fn)(torch.stack([POINT, POINT * 2])),
    "forward mode": tangent,
    "make_fx": lambda fn: make_fx(fn)(torch.ones_like(POINT))(POINT),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own, in forward mode
@pytest.mark.parametrize("fn", [batched, scope, blocks, block])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_around_a_batched_call_give_what_they_give_around_the_loop(transform: str, fn: Any) -> None:
    torch.testing.assert_close(TRANSFORMS[transform](fn), TRANSFORMS[transform](loop), rtol=1e-12, atol=1e-12)


def test_results_are_put_together_there_as_elsewhere() -> None:
    net = weft.batched(lambda row, point: {"sum": (row * point).sum(), "at": 3}, in_dims=(0, None))
    found = torch.vmap(lambda point: net(ROWS, point)["sum"])(POINT[None])
    torch.testing.assert_close(found[0], ROWS @ POINT)
    assert len(torch.vmap(lambda point: weft.batched(lambda row: row * point, stack=False)(ROWS))(POINT[None])) == 3


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_scripts_cannot_be_made_of_batched_calls() -> None:
    with pytest.raises(weft.TraceError) as error:
        torch.jit.trace(batched, POINT)
    assert str(error.value) == "torch.jit.trace cannot look into a batched call; trace the model for one example"
    torch.testing.assert_close(batched(POINT), loop(POINT), rtol=1e-12, atol=1e-12)


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
