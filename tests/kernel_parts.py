"""What tests of kernels and recipes share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.run import spare
from weft.run.gpu.launch import has_triton, interpreted
from weft.run.recipe import Recipe

NEEDS_TRITON = [
    pytest.mark.skipif(not has_triton(), reason="the package triton is not installed"),
    pytest.mark.filterwarnings("ignore:(invalid|divide|overflow):RuntimeWarning"),  # of rows that do not exist
]
NEEDS_INTERPRETER = [
    *NEEDS_TRITON,
    pytest.mark.skipif(not interpreted(), reason="Triton compiles for a GPU here; tests/gpu checks that"),
]


def recipes_of(model: weft.VertexFunction) -> list[Recipe]:
    """By what later calls of a model run."""
    cells = [cell for kept in model.__dict__["_weft"].cells.values() for cell in kept]
    lists = [found for cell in cells for codes in cell.kept.values() for found in codes.recipes.values()]
    return [recipe for found in lists for recipe in found if recipe is not None]


def tree(leaves: int) -> weft.Graph:
    """Leaves joined from left to right; one leaf is a tree of its own."""
    children: list[list[int]] = [[] for _ in range(leaves)]
    top = 0
    for leaf in range(1, leaves):
        children.append([top, leaf])
        top = len(children) - 1
    return weft.Graph(children, types=[int(bool(each)) for each in children])


def results(model: nn.Module, graph: weft.Graph, x: Tensor, backend: str) -> dict[str, Tensor]:
    """Outputs and all gradients, by name."""
    model.zero_grad()
    x = x.detach().clone().requires_grad_()
    out = model(graph, x, backend=backend)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).view_as(out)).sum().backward()
    found = {"out": out.detach(), "x": x.grad, **{name: p.grad for name, p in model.named_parameters()}}
    return {name: tensor.clone() for name, tensor in found.items() if tensor is not None}


@contextmanager
def fast_products() -> Iterator[None]:
    """Products may use TF32."""
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


def poison_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory is full of NaN from here on: what is read before it is written is noticed."""

    def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def nan(*args: Any, **options: Any) -> Tensor:
            made = make(*args, **options)
            return made.fill_(torch.nan) if made.is_floating_point() else made

        return nan

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(spare, "laid_out", poisoned(spare.laid_out))


def assert_in_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter raises where an assertion in a kernel does not hold, as kernels with `asserts` do; else it is silent."""
    from triton.runtime import interpreter

    options = replace(interpreter.interpreter_builder.options, debug=True, sanitize_overflow=False)
    monkeypatch.setattr(interpreter.interpreter_builder, "options", options)


def recipe_texts(model: nn.Module) -> list[str]:
    """The source of every recipe that calls of a model left."""
    cells = [cell for kept in model.__dict__["_weft"].cells.values() for cell in kept]
    lists = [found for cell in cells for codes in cell.kept.values() for found in codes.recipes.values()]
    return [recipe.source for found in lists for recipe in found if recipe is not None]


def watch_recipes(monkeypatch: pytest.MonkeyPatch, execution: type) -> list[bool]:
    """For every forward pass of a class of executions from here on, whether it goes by a recipe."""
    seen: list[bool] = []
    right = execution.forward

    def forward(self: Any, tensors: Any) -> list[Tensor]:
        found = right(self, tensors)
        seen.append(self.recipe is not None)
        return found

    monkeypatch.setattr(execution, "forward", forward)
    return seen
