"""What tests of recipes as one call share, with a GPU and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import weft
import weft.nn
from kernel_parts import results, tree
from weft.run.gpu.execution import GpuExecution
from weft.run.gpu.onecall.kept import Kept
from weft.run.gpu.onecall.lowered import Versions


def watch(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """For every pass by a recipe from here on: True where it ran as one call, else why not."""
    seen: list[Any] = []
    right = GpuExecution._whole

    def whole(self: GpuExecution, recipe: Any, *rest: Any, **memory: Any) -> Any:
        found = right(self, recipe, *rest, **memory)
        before = self.whole if rest[1:] else None
        versions = Versions.of(recipe, self.call.device, before, isinstance(rest[1] if rest[1:] else None, Kept))
        seen.append(found is not None if versions.kept else versions.refused)
        return found

    monkeypatch.setattr(GpuExecution, "_whole", whole)
    return seen


def trees(*leaves: int) -> weft.Graph:
    return weft.Graph.batch([tree(n) for n in leaves])


def chains(*lengths: int) -> weft.Graph:
    return weft.Graph.batch([weft.Graph.chain(n) for n in lengths])


def grids(*sizes: tuple[int, int]) -> weft.Graph:
    return weft.Graph.batch([weft.Graph.grid(*size) for size in sizes])


class Joined(weft.VertexFunction):
    """Leaves hand on their input; the others have one product of both children."""

    def __init__(self, d: int) -> None:
        super().__init__(state={"h": d})
        self.join = nn.Linear(2 * d, d)

    def forward(self, v: Any) -> None:
        h = v.pull() if v.type == 0 else torch.relu(self.join(torch.cat([v.gather(0)["h"], v.gather(1)["h"]])))
        v.scatter(h=h)
        v.push(h)


class Grid(weft.VertexFunction):
    """A recurrence over grids: two children, shared by two parents."""

    def __init__(self, d_in: int, d: int) -> None:
        super().__init__(state={"h": d})
        self.x, self.up, self.left = nn.Linear(d_in, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, v: Any) -> None:
        h = torch.tanh(self.x(v.pull()) + self.up(v.gather(0)["h"]) + self.left(v.gather(1)["h"]))
        v.scatter(h=h)
        v.push(h)


class Twice(weft.VertexFunction):
    """The same product twice: what is added up for the weight is one gradient and itself."""

    def __init__(self, d_in: int, d: int) -> None:
        super().__init__(state={"h": d})
        self.x, self.up = nn.Linear(d_in, d), nn.Linear(d, d)

    def forward(self, v: Any) -> None:
        h = torch.tanh(self.x(v.pull()) + self.x(v.pull()) + self.up(v.gather(0)["h"]))
        v.scatter(h=h)
        v.push(h)


CASES: dict[str, tuple[Callable[[], Any], list[weft.Graph]]] = {
    "n-ary": (lambda: weft.nn.NaryTreeLSTM(3, 4, classes=2), [trees(2, 3), trees(5, 2, 4), trees(3), trees(7, 7, 2)]),
    "n-ary, odd width": (lambda: weft.nn.NaryTreeLSTM(3, 5), [trees(2, 3), trees(5, 2, 4), trees(9, 2, 2)]),
    "lstm": (lambda: weft.nn.LSTM(3, 4), [chains(3, 2), chains(1, 4, 4), chains(6, 5, 1, 1)]),
    "gru": (lambda: weft.nn.GRU(3, 4), [chains(3, 2), chains(1, 4, 4), chains(6, 5, 1, 1)]),
    "child-sum": (lambda: weft.nn.ChildSumTreeLSTM(3, 4), [trees(2, 3), trees(5, 2, 4), trees(9, 2, 2)]),
    "tree gru": (lambda: weft.nn.TreeGRU(3, 4), [trees(2, 3), trees(5, 2, 4), trees(9, 2, 2)]),
    "joined": (lambda: Joined(3), [trees(2, 3), trees(5, 2, 4), trees(9, 2, 2)]),
    "grid": (lambda: Grid(3, 4), [grids((2, 3)), grids((3, 3), (2, 4)), grids((4, 2), (2, 2), (3, 2))]),
    "twice": (lambda: Twice(3, 4), [chains(3, 2), chains(1, 4, 4), chains(6, 5, 1, 1)]),
}


def compare(model: Any, graphs: list[weft.Graph], device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients by one call beside those by recipes in Python."""
    for graph in graphs:
        x = torch.randn(graph.num_vertices, 3, device=device)
        found = results(model, graph, x, "triton")
        with monkeypatch.context() as recipes:
            recipes.setattr(GpuExecution, "_whole", lambda *given: None)
            expected = results(model, graph, x, "triton")
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.allclose(found[name], tensor, rtol=1e-5, atol=1e-6), name
