"""Recipes: a call does what the first call of its kind did, whatever the batch, and gives the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import weft
import weft.nn
from kernel_parts import NEEDS_INTERPRETER, poison_memory, results, tree, watch_recipes
from weft.run.gpu import apart
from weft.run.gpu.execution import GpuExecution

pytestmark = NEEDS_INTERPRETER


@pytest.fixture
def by_recipe(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every forward pass, whether it went by a recipe."""
    return watch_recipes(monkeypatch, GpuExecution)


MODELS = {
    "n-ary": lambda: weft.nn.NaryTreeLSTM(3, 4, classes=2),
    "child-sum": lambda: weft.nn.ChildSumTreeLSTM(3, 4),
    "gru": lambda: weft.nn.TreeGRU(3, 4),
}


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_memory(monkeypatch)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("kind", MODELS)
def test_other_batches_go_by_the_same_recipe(kind: str, by_recipe: list[bool]) -> None:
    torch.manual_seed(0)
    model = MODELS[kind]().double()
    for leaves in ((2, 3), (5, 2, 4), (3,), (7, 7, 2)):
        graph = weft.Graph.batch([tree(n) for n in leaves])
        x = torch.randn(graph.num_vertices, 3, dtype=torch.float64)
        found, expected = results(model, graph, x, "triton"), results(model, graph, x, "eager")
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.allclose(found[name], tensor, rtol=0, atol=1e-12 * max(1.0, float(tensor.abs().max()))), name
    assert by_recipe[0] is False
    assert by_recipe[-1] is True


@pytest.mark.usefixtures("poisoned")
def test_a_plan_that_answers_otherwise_gets_another_recipe(by_recipe: list[bool]) -> None:
    """Trees of one leaf give nothing back to it: their gradient goes another way."""
    torch.manual_seed(0)
    model = MODELS["n-ary"]().double()
    for leaves in ((2, 3), (2, 3), (1, 4), (1, 4), (3, 1, 1, 2), (2, 2)):
        graph = weft.Graph.batch([tree(n) for n in leaves])
        x = torch.randn(graph.num_vertices, 3, dtype=torch.float64)
        found, expected = results(model, graph, x, "triton"), results(model, graph, x, "eager")
        for name, tensor in expected.items():
            assert torch.allclose(found[name], tensor, rtol=0, atol=1e-12), name


GRAPHS = {
    "n-ary": lambda: [tree(n) for n in (2, 3, 5, 4, 2)],
    "lstm": lambda: [weft.Graph.chain(n) for n in (1, 2, 4, 5, 5, 7)],
    "grid": lambda: [weft.Graph.grid(3, 4), weft.Graph.grid(2, 2)],
    "full": lambda: [weft.Graph([[], [], [], [], [0, 1], [2, 3], [4, 5]], types=[0, 0, 0, 0, 1, 1, 1])] * 3,
}
SLOTS: dict[str, Any] = {
    "n-ary": MODELS["n-ary"],
    "lstm": lambda: weft.nn.LSTM(3, 4),
    "grid": lambda: weft.nn.GridCell(3, 4),
    "full": lambda: weft.nn.TreeFC(3),
}


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("kind", SLOTS)
def test_wide_steps_run_apart_from_narrow_ones(kind: str, by_recipe: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """The library multiplies for steps of three rows and more, both ways; kernels walk the others."""

    class Few:
        def rows(self, operations: float) -> int:
            assert operations > 0
            return 3

    monkeypatch.setattr(apart, "rates", lambda device: Few())
    torch.manual_seed(0)
    model = SLOTS[kind]().double()
    graph = weft.Graph.batch(GRAPHS[kind]())
    x = torch.randn(graph.num_vertices, 3, dtype=torch.float64)
    expected = results(model, graph, x, "eager")
    for _ in range(2):
        found = results(model, graph, x, "triton")
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.allclose(found[name], tensor, rtol=0, atol=1e-12), name
    assert by_recipe == [False, True]


def test_equal_calls_give_equal_bits_with_and_without_a_recipe(by_recipe: list[bool]) -> None:
    torch.manual_seed(0)
    model = MODELS["n-ary"]()
    graph = weft.Graph.batch([tree(n) for n in (4, 6, 1)])
    x = torch.randn(graph.num_vertices, 3)
    first, second = results(model, graph, x, "triton"), results(model, graph, x, "triton")
    assert by_recipe == [False, True]
    for name, tensor in first.items():
        assert torch.equal(second[name], tensor), name


def test_a_graph_that_is_kept_can_be_differentiated_twice(by_recipe: list[bool]) -> None:
    torch.manual_seed(0)
    model = MODELS["n-ary"]().double()
    graph = weft.Graph.batch([tree(n) for n in (4, 6)])
    x = torch.randn(graph.num_vertices, 3, dtype=torch.float64)
    results(model, graph, x, "triton")
    model.zero_grad()
    out = model(graph, x.clone().requires_grad_(), backend="triton")
    out.sum().backward(retain_graph=True)
    once = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    out.sum().backward()
    again = [p.grad for p in model.parameters() if p.grad is not None]
    assert by_recipe == [False, True]
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_inference_goes_by_a_recipe_of_its_own(by_recipe: list[bool]) -> None:
    torch.manual_seed(0)
    model = MODELS["gru"]()
    graph = weft.Graph.batch([tree(n) for n in (4, 6)])
    x = torch.randn(graph.num_vertices, 3)
    expected = model(graph, x, backend="eager")
    with torch.no_grad():
        found = [model(graph, x, backend="triton") for _ in range(2)]
    assert by_recipe == [False, True]
    assert torch.allclose(found[0], expected, atol=1e-5)
    assert torch.equal(found[0], found[1])


class TreeNet(nn.Module):
    """Plain code for one tree: nested pairs of word numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.join, self.out = nn.Embedding(7, 4), weft.cell(nn.Linear(8, 4)), nn.Linear(4, 2)

    def encode(self, given: Any) -> Any:
        if isinstance(given, int):
            return self.embed(torch.tensor(given))
        left, right = given
        return self.join(torch.cat([self.encode(left), self.encode(right)])).tanh()

    def forward(self, given: Any) -> Any:
        return self.out(self.encode(given))


@pytest.mark.usefixtures("poisoned")
def test_plain_code_goes_by_recipes_too(by_recipe: list[bool]) -> None:
    torch.manual_seed(0)
    model = TreeNet().double()
    for examples in ([(1, 2), ((1, 3), 4), 5], [((0, 1), (2, 3)), (1, 1), 6], [(1, (2, (3, 4))), 0, (2, 2), (6, 5)]):
        expected = weft.batched(model, backend="eager")(examples)
        expected.square().sum().backward()
        wanted = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        found = weft.batched(model, backend="triton")(examples)
        found.square().sum().backward()
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)
        for name, parameter in model.named_parameters():
            assert torch.allclose(parameter.grad, wanted[name], rtol=0, atol=1e-12), name
        model.zero_grad()
    assert by_recipe[0] is False
    assert any(by_recipe)


class Converting(weft.VertexFunction):
    """Numbers change their kind on the way."""

    def __init__(self) -> None:
        super().__init__(state={"h": (3,)})
        self.lin = nn.Linear(3, 3)

    def forward(self, v: Any) -> None:
        before = self.lin(v.gather(0)["h"]) + v.pull()
        h = (before.float() * 0.1).double().tanh() + (before > 0.3).to(before.dtype) + before.bool().double()
        v.scatter(h=h)
        v.push(h)


def test_numbers_that_change_their_kind_are_rounded_as_torch_does() -> None:
    torch.manual_seed(0)
    model, graph = Converting().double(), weft.Graph.batch([weft.Graph.chain(n) for n in (3, 5)])
    x = torch.randn(8, 3, dtype=torch.float64)
    x[2, 1] = 0
    expected = results(model, graph, x, "eager")
    for _ in range(2):
        found = results(model, graph, x, "triton")
        for name, tensor in expected.items():
            assert torch.allclose(found[name], tensor, rtol=0, atol=1e-12), name
