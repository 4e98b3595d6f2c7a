"""Batched functions beside the other front ends, and cells whose code looks at gradients itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.blocks as wb
import weft.nn

torch.manual_seed(0)
LAYER = nn.Linear(4, 4).double()
ROWS = torch.randn(3, 4, dtype=torch.float64)
TREE = weft.Graph([[], [], [0, 1]], types=["leaf", "leaf", "node"])
MODEL = weft.nn.NaryTreeLSTM(4, 4, classes=2).double()


def leaves(row: Tensor) -> Tensor:
    return torch.stack([row, row * 2, row * 3])


def test_a_vertex_function_runs_by_itself_in_a_batched_function() -> None:
    def fn(row: Tensor) -> Any:
        return MODEL(TREE, weft.value(leaves(torch.tanh(LAYER(row))))) * row[0]

    found, expected = weft.batched(fn)(ROWS), torch.stack([fn(row) for row in ROWS])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = [*LAYER.parameters(), *MODEL.parameters()]
    ours, theirs = (torch.autograd.grad(result.square().sum(), weights) for result in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_vertex_function_takes_no_values() -> None:
    with pytest.raises(weft.TraceError) as error:
        weft.batched(lambda row: MODEL(TREE, leaves(row)))(ROWS)
    assert str(error.value) == (
        "NaryTreeLSTM batches its own work, and insists on real tensors; pass weft.value(v), which waits for them, or call it "
        "outside of the batched function"
    )


def test_what_is_kept_of_recordings_is_no_affair_of_a_vertex_function() -> None:
    model = weft.nn.NaryTreeLSTM(4, 4, classes=2)
    weight, given = next(model.parameters()), torch.ones(3, 4)
    for _ in range(2):
        assert weft.batched(lambda k: weight.sum() * k + next(model.parameters()).sum())([1.0, 2.0]).shape == (2,)
        assert model(TREE, given).shape == (3, 2)
        assert weft.batched(lambda k: model(TREE, given)[0] * k)([1.0, 2.0]).shape == (2, 2)


def test_a_vertex_function_in_a_cell_says_what_to_do() -> None:
    with pytest.raises(weft.TraceError, match=r"a batched call cannot be inside torch\.func transforms"):
        weft.batched(weft.cell(lambda row: MODEL(TREE, leaves(row))))(ROWS)


def test_blocks_run_by_themselves_in_a_batched_function() -> None:
    words = wb.Vector(3) >> wb.Function(nn.Linear(3, 2))

    def fn(scale: float) -> Any:
        return weft.batched(words)([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]).sum(0) * torch.tensor(scale)

    torch.testing.assert_close(weft.batched(fn)([1.0, 2.0]), torch.stack([fn(1.0), fn(2.0)]))


@pytest.mark.parametrize("asks", [True, False])
def test_hooks_on_the_tensors_of_a_cell_see_the_gradients_of_rows(asks: bool) -> None:
    def reversed_gradient(row: Tensor) -> Tensor:
        h = LAYER(row)
        if not asks or h.requires_grad:
            h.register_hook(lambda gradient: -2 * gradient)
        return torch.tanh(h)

    found = _slope(weft.batched(weft.cell(reversed_gradient)), warned=True)
    expected = _slope(lambda rows: torch.stack([reversed_gradient(row) for row in rows]), warned=False)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def _slope(fn: Callable[[Tensor], Tensor], warned: bool) -> Tensor:
    if warned:
        with pytest.warns(weft.FallbackWarning, match="it registers a hook on a tensor, .* it runs row by row"):
            result = fn(ROWS)
    else:
        result = fn(ROWS)
    return torch.autograd.grad(result.sum(), LAYER.weight)[0]


class Halved(weft.VertexFunction):
    """Hands on half of the gradient."""

    def __init__(self) -> None:
        super().__init__(state={"h": (4,)})

    def forward(self, v: Any) -> None:
        h = torch.tanh(LAYER(v.pull() + v.gather().sum("h")))
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient / 2)
        v.scatter(h=h)
        v.push(h)


def test_hooks_on_the_tensors_of_a_vertex_function() -> None:
    net, chain = Halved(), weft.Graph.chain(3)
    with pytest.warns(weft.FallbackWarning, match="it registers a hook on a tensor, .* it runs row by row"):
        found = net(chain, ROWS)
    slopes = [torch.autograd.grad(each.sum(), LAYER.weight)[0] for each in (found, net(chain, ROWS, backend="reference"))]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-12)


def test_a_cell_may_ask_whether_its_tensors_are_trained() -> None:
    frozen = nn.Linear(4, 4).double().requires_grad_(False)

    @weft.cell
    def scaled(row: Tensor) -> Tensor:
        h = LAYER(row)
        return h * (2 if h.requires_grad else 1) * (5 if frozen.weight.requires_grad else 3)

    torch.testing.assert_close(weft.batched(scaled)(ROWS), LAYER(ROWS) * 6, rtol=1e-12, atol=1e-12)
