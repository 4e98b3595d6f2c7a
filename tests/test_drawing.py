"""Random numbers inside `map` over children: traced, drawn anew for every edge, the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import weft
from weft.testing import assert_equivalent

KIDS = 64
STARS = weft.Graph.batch([weft.Graph([*([] for _ in range(KIDS)), list(range(KIDS))])] * 4)


class Draws(weft.VertexFunction):
    """Every vertex with children pushes one number for each of them, at the place that the edge's row names."""

    def __init__(self, draw: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__(state={"h": (8,)})
        self.draw, self.drop = draw, nn.Dropout(0.5)
        self.ones = nn.Parameter(torch.ones(8))

    def forward(self, v: Any) -> None:
        v.scatter(h=v.pull())
        v.push(v.gather().map(lambda k: k.edge[:, None] * self.draw(self, k["h"])).sum())


def drawn(draw: Callable[[Any, Tensor], Tensor]) -> Tensor:
    """The numbers of all edges, [edges, 8]."""
    x, edges = torch.ones(STARS.num_vertices, 8), torch.eye(KIDS).repeat(4, 1)
    return Draws(draw)(STARS, x, edges=edges)[STARS.roots].reshape(-1, 8).detach()


def writes_uniform(m: Any, h: Tensor) -> Tensor:
    noise = torch.empty_like(h)
    noise.uniform_()
    return noise * h


UNIFORM = {
    "rand": lambda m, h: torch.rand(8) * h,
    "rand of a size": lambda m, h: torch.rand(size=(2, 4)).reshape(8) * h,
    "rand like": lambda m, h: torch.rand_like(h),
    "uniform in place": writes_uniform,
    "randint": lambda m, h: torch.randint(0, 1000, (8,)) / 1000 * h,
    "randint up to": lambda m, h: torch.randint(1000, (8,)) / 1000 * h,
    "normal": lambda m, h: torch.special.ndtr(torch.normal(0.0, 1.0, (8,))) * h,
    "randperm": lambda m, h: torch.randperm(1000)[:8] / 1000 * h,
}
HALVES = {
    "dropout": lambda m, h: m.drop(h) / 2,
    "dropout of a parameter": lambda m, h: m.drop(m.ones) / 2 * h,
    "dropout in place": lambda m, h: functional.dropout(h * 1, 0.5, True, inplace=True) / 2,
    "bernoulli": lambda m, h: torch.bernoulli(h / 2),
    "hard gumbel": lambda m, h: functional.gumbel_softmax(h[:2] * 1, hard=True)[:1].expand(8),
}


@pytest.mark.parametrize("name", UNIFORM)
def test_every_edge_draws_its_own_numbers(name: str) -> None:
    numbers = drawn(UNIFORM[name])
    assert len(numbers.unique(dim=0)) == len(numbers)
    assert abs(float(numbers.mean()) - 0.5) < 0.03
    between = torch.corrcoef(numbers)  # of edges with each other
    assert float(between.fill_diagonal_(0).mean().abs()) < 0.02


@pytest.mark.parametrize("name", HALVES)
def test_every_edge_keeps_or_drops_for_itself(name: str) -> None:
    numbers = drawn(HALVES[name])
    assert set(numbers.unique().tolist()) == {0.0, 1.0}
    assert abs(float(numbers[:, 0].mean()) - 0.5) < 0.12
    per_star = numbers[:, 0].reshape(4, KIDS)
    assert len({tuple(star.tolist()) for star in per_star}) == 4


def test_the_same_seed_draws_the_same_numbers() -> None:
    model, x, edges = Draws(UNIFORM["rand"]), torch.ones(STARS.num_vertices, 8), torch.eye(KIDS).repeat(4, 1)

    def call() -> Tensor:
        torch.manual_seed(3)
        return model(STARS, x, edges=edges)

    assert torch.equal(call(), call()) and not torch.equal(call(), model(STARS, x, edges=edges))


class Drops(weft.VertexFunction):
    """A recurrence whose messages lose numbers in training."""

    def __init__(self) -> None:
        super().__init__(state={"h": (8,)})
        self.each, self.drop = nn.Linear(8, 8), nn.Dropout(0.3)

    def forward(self, v: Any) -> None:
        h = torch.tanh(v.pull() + v.gather().map(lambda k: self.drop(self.each(k["h"]))).sum())
        v.scatter(h=h)
        v.push(h)


def test_gradients_pass_what_was_kept() -> None:
    model, graph = Drops(), weft.Graph.full_binary_tree(8)
    x = torch.randn(15, 8, requires_grad=True)
    model(graph, x).sum().backward()  # warnings are errors: it is traced
    assert x.grad is not None and x.grad.ne(0).all()
    assert_equivalent(model.eval(), graph, x)


class Constants(weft.VertexFunction):
    """Of its children it looks at how many there are."""

    def __init__(self, code: Callable[[Any, Any], Tensor]) -> None:
        super().__init__(state={"h": (4,)})
        self.a, self.b, self.code = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(())), code

    def forward(self, v: Any) -> None:
        h = torch.tanh(v.pull() + self.code(self, v.gather()) + v.gather().sum())
        v.scatter(h=h)
        v.push(h)


CONSTANTS = {
    "sum": lambda m, kids: kids.map(lambda k: m.a).sum(),
    "mean": lambda m, kids: kids.map(lambda k: m.a).mean(),
    "max of a nest": lambda m, kids: kids.map(lambda k: {"a": m.a, "b": m.b}).max("a"),
    "softmax": lambda m, kids: kids.softmax_sum(lambda k: m.b, lambda k: m.a),
    "softmax of states": lambda m, kids: kids.softmax_sum(lambda k: m.b),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_parameter_is_what_a_child_maps_to(name: str) -> None:
    graph = weft.Graph.batch([weft.Graph.full_binary_tree(4), weft.Graph.chain(3)])
    assert_equivalent(Constants(CONSTANTS[name]), graph, torch.randn(graph.num_vertices, 4))
