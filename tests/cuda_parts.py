"""What tests on a GPU share: cells, structures, and their results beside those of a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import weft
import weft.nn

CUDA = torch.device("cuda", 0)
D_IN = 30


class Normed(weft.VertexFunction):
    """Layer normalisation inside the recurrence, and a product after it."""

    def __init__(self, d: int) -> None:
        super().__init__(state={"h": (d,)})
        self.w, self.u, self.norm, self.out = nn.Linear(D_IN, d), nn.Linear(d, d), nn.LayerNorm(d), nn.Linear(d, d)

    def forward(self, v: Any) -> None:
        h = self.out(self.norm(self.w(v.pull()) + self.u(v.gather().sum("h"))).tanh())
        v.scatter(h=h)
        v.push(h)


def binary_trees(count: int, seed: int = 0) -> weft.Graph:
    random = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        children: list[list[int]] = [[] for _ in range(int(random.integers(2, 30)))]
        open_ends = list(range(len(children)))
        while len(open_ends) > 1:
            at = int(random.integers(len(open_ends) - 1))
            children.append(open_ends[at : at + 2])
            open_ends[at : at + 2] = [len(children) - 1]
        graphs.append(weft.Graph(children, types=[int(bool(kids)) for kids in children]))
    return weft.Graph.batch(graphs)


def parents(seed: int = 0) -> weft.Graph:
    random = np.random.default_rng(seed)
    sizes = random.integers(3, 40, 20)
    return weft.Graph.batch(
        [weft.Graph.from_parents([-1, *(int(random.integers(0, i)) for i in range(1, int(n)))]) for n in sizes]
    )


def chains() -> weft.Graph:
    return weft.Graph.batch([weft.Graph.chain(n) for n in (1, 7, 3, 12, 12, 30)])


def grids() -> weft.Graph:
    return weft.Graph.batch([weft.Graph.grid(5, 7), weft.Graph.grid(6, 3)])


CELLS: dict[str, tuple[Callable[[int], nn.Module], Callable[[], weft.Graph]]] = {
    "n-ary tree-lstm": (lambda d: weft.nn.NaryTreeLSTM(D_IN, d, classes=5), lambda: binary_trees(30)),
    "tree-fc": (lambda d: weft.nn.TreeFC(d), lambda: binary_trees(30)),
    "child-sum tree-lstm": (lambda d: weft.nn.ChildSumTreeLSTM(D_IN, d), parents),
    "tree-gru": (lambda d: weft.nn.TreeGRU(D_IN, d), parents),
    "lstm": (lambda d: weft.nn.LSTM(D_IN, d), chains),
    "gru": (lambda d: weft.nn.GRU(D_IN, d), chains),
    "layer norm": (Normed, parents),
    "grid": (lambda d: weft.nn.GridCell(D_IN, d), grids),
}


def results(model: nn.Module, graph: weft.Graph, x: Tensor, /, **options: Any) -> dict[str, Tensor]:
    """Outputs and all gradients, by name."""
    model.zero_grad()
    x = x.detach().clone().requires_grad_()
    out = model(graph, x, **options)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    (out * cotangent).sum().backward()
    found = {"out": out.detach(), "x": x.grad, **{name: p.grad for name, p in model.named_parameters()}}
    return {name: tensor.clone() for name, tensor in found.items() if tensor is not None}


def assert_close(found: dict[str, Tensor], truth: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == truth.keys()
    for name, expected in truth.items():
        difference = (found[name].double().cpu() - expected).abs().max().item()
        assert difference <= tolerance * max(1.0, expected.abs().max().item()), name


def case(name: str, d: int) -> tuple[nn.Module, nn.Module, weft.Graph, Tensor]:
    """A model on the device, its twin in float64 on the CPU, a graph, and rows for it."""
    torch.manual_seed(0)
    make, structure = CELLS[name]
    model, exact, graph = make(d), make(d).double(), structure()
    exact.load_state_dict({key: tensor.double() for key, tensor in model.state_dict().items()})
    x = torch.randn(graph.num_vertices, d if name == "tree-fc" else D_IN)
    return model.to(CUDA), exact, graph, x
