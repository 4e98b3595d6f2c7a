"""Walks do what is done within a row or over all rows, too: softmax, maxima, comparisons, gradients of weights and biases."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft import cc
from weft.run.cpu.rowops import LONGEST
from weft.run.cpu.walk import Walk

D, CLASSES = 6, 5
F64 = torch.float64


@pytest.fixture(autouse=True)
def needs_a_compiler(one_thread: None) -> None:
    assert cc.compiler() is not None, "these tests need a C compiler: cc, gcc or clang"


class Deciding(weft.VertexFunction):
    """Scores, their softmax in two forms, and what a model would decide by them."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__({"h": (1,)})
        self.hidden, self.score = nn.Linear(D, D), nn.Linear(D, classes)

    def forward(self, v: Any) -> None:
        v.scatter(h=v.pull()[:1])
        scores = self.score(torch.relu(self.hidden(v.pull())))
        soft = torch.softmax(scores, 0)
        top, where = soft.max(0)
        v.push(
            {
                "log": scores.log_softmax(0),
                "soft": soft,
                "top": top,
                "where": where,
                "best": scores.argmax(0),
                "sure": top > 0.3,
            }
        )


def outcome(model: weft.VertexFunction, x: Tensor, backend: str) -> dict[str, Tensor]:
    """Results and gradients; a function of all that learns is differentiated."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    found = dict(model(weft.Graph([[] for _ in x]), x, backend=backend))
    total = sum(
        (found[name] * torch.linspace(-1, 1, found[name].numel(), dtype=x.dtype).view_as(found[name])).sum()
        for name in ("log", "soft")
    )
    assert isinstance(total, Tensor)
    total.backward()
    assert x.grad is not None
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {**{name: tensor.detach() for name, tensor in found.items()}, "x": x.grad, **gradients}


def walks(model: weft.VertexFunction) -> dict[str, Walk | None]:
    """By stage, of the pieces of a model with one cell."""
    cells = [cell for kept in model.__dict__["_weft"].cells.values() for cell in kept]
    codes = [code for cell in cells for role, code in cell.codes.items() if role.backend == "native"]
    return {stage: one.walk for code in codes for _, made in code._by_cotangents.values() for stage, one in made.items()}


@pytest.mark.parametrize("rows", [1, 3, 700])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_both_passes_are_one_function_each(rows: int, dtype: torch.dtype) -> None:
    model, x = Deciding().to(dtype), torch.randn(rows, D, dtype=dtype)
    expected = outcome(model, x, "eager")
    for _ in range(2):  # the second call goes by a recipe
        found = outcome(model, x, "auto")
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            torch.testing.assert_close(
                tensor, expected[name], rtol=1e-12 if dtype is F64 else 1e-4, atol=1e-12 if dtype is F64 else 1e-4, msg=name
            )
    made = walks(model)
    assert made["before"] is not None and made["late"] is not None
    assert made["before"].chunk > 0, "forward takes some hundred rows at a time"
    assert made["late"].chunk == 0, "sums over rows need all of them"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_rows_that_are_no_numbers_decide_as_in_torch(number: float) -> None:
    class Handed(weft.VertexFunction):
        def forward(self, v: Any) -> None:
            x = v.pull() * 1.0
            v.scatter(h=x[:1])
            top, where = x.max(0)
            v.push({"top": top, "where": where, "best": x.argmax(0), "soft": x.softmax(0), "sure": top > 0})

    x = torch.randn(4, CLASSES)
    x[0, 2], x[1], x[2, 1:3], x[3] = number, number, number, 1.0
    model = Handed({"h": (1,)})
    with torch.no_grad():
        found, right = (model(weft.Graph([[] for _ in x]), x, backend=backend) for backend in ("auto", "eager"))
    for name in right:
        torch.testing.assert_close(found[name], right[name], equal_nan=True, msg=name)
    assert walks(model)["before"] is not None


def test_long_rows_stay_with_torch() -> None:
    model, x = Deciding(LONGEST + 1), torch.randn(4, D)
    expected = outcome(model, x, "eager")
    for name, tensor in outcome(model, x, "auto").items():
        torch.testing.assert_close(tensor, expected[name], msg=name)
    assert walks(model)["before"] is None


def test_sums_over_many_rows_lose_no_more_than_torchs() -> None:
    class Shifted(weft.VertexFunction):
        def __init__(self) -> None:
            super().__init__({"h": (1,)})
            self.bias = nn.Parameter(torch.zeros(3))

        def forward(self, v: Any) -> None:
            v.scatter(h=v.pull()[:1])
            v.push(v.pull() + self.bias)

    model, x = Shifted(), torch.rand(40_000, 3)
    out = model(weft.Graph([[] for _ in x]), x)
    weights = torch.rand(40_000, 3)
    out.backward(weights)
    assert model.bias.grad is not None
    right = weights.double().sum(0)
    torch.testing.assert_close(model.bias.grad.double(), right, rtol=1e-6, atol=0)
