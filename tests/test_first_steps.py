"""A first step that takes leaves from where they are fed: the same numbers, by one call and by the recipe in Python."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.nn
from cpu_driver import Driver, install
from kernel_parts import NEEDS_INTERPRETER, poison_memory, recipes_of
from onecall_parts import trees, watch
from weft.run.gpu import apart, firststep
from weft.run.gpu.execution import GpuExecution

pytestmark = NEEDS_INTERPRETER
D = 4


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    poison_memory(monkeypatch)
    monkeypatch.setattr(firststep, "LEAST", 2)
    return install(monkeypatch)


def full_tree(leaves: int) -> weft.Graph:
    children = [[] if v < leaves else [2 * (v - leaves), 2 * (v - leaves) + 1] for v in range(2 * leaves - 1)]
    return weft.Graph(children, types=[int(bool(each)) for each in children])


def full_trees(*leaves: int) -> weft.Graph:
    return weft.Graph.batch([full_tree(n) for n in leaves])


def chains(many: int, length: int) -> weft.Graph:
    """The first vertex of each hands on what it is fed."""
    one = weft.Graph([[], *[[v] for v in range(length - 1)]], types=[0] + [1] * (length - 1))
    return weft.Graph.batch([one] * many)


def found(model: nn.Module, graph: weft.Graph, x: Tensor, backend: str = "triton", again: bool = False) -> dict[str, Tensor]:
    """Outputs and gradients of parameters; of a second pass back through a kept graph, too."""
    model.zero_grad()
    out = model(graph, x, backend=backend)
    gradient = torch.linspace(-1, 1, out.numel()).view_as(out)
    out.backward(gradient, retain_graph=again)
    if again:
        out.backward(gradient)
    return {"out": out.detach().clone(), **{name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}}


def check(model: nn.Module, graphs: list[weft.Graph], monkeypatch: pytest.MonkeyPatch, learns: bool = False) -> None:
    for number, graph in enumerate(graphs):
        x = torch.randn(graph.num_vertices, D, generator=torch.Generator().manual_seed(number), requires_grad=learns)
        expected = found(model, graph, x, "eager")
        with monkeypatch.context() as recipes:
            if number % 2:
                recipes.setattr(GpuExecution, "_whole", lambda *given: None)
            again = found(model, graph, x)
        assert again.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.allclose(again[name], tensor, rtol=1e-5, atol=1e-6), name


def has_first_step(model: Any) -> list[bool]:
    return [bool(recipe.about.first_steps) for recipe in recipes_of(model) if recipe.about is not None]


class OneChild(weft.VertexFunction):
    """A chain of a product, a sum and a tanh."""

    def __init__(self) -> None:
        super().__init__(state={"h": D})
        self.next = nn.Linear(D, D)

    def forward(self, v: Any) -> None:
        h = v.pull() if v.type == 0 else torch.tanh(self.next(v.gather(0)["h"]) + v.pull())
        v.scatter(h=h)
        if v.type:
            v.push(h)


GRAPHS = [*[full_trees(4, 4)] * 3, full_trees(8, 8, 8), *[full_trees(16)] * 3]


@pytest.mark.parametrize("least", [1000, 3])
def test_full_trees(least: int, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """By kernels, and with wide steps apart."""
    torch.manual_seed(0)
    monkeypatch.setattr(apart, "rates", lambda device: SimpleNamespace(rows=lambda operations: least))
    seen, model = watch(monkeypatch), weft.nn.TreeFC(D)
    check(model, GRAPHS, monkeypatch)
    assert True in seen and all(one is True for one in seen)
    assert has_first_step(model) and all(has_first_step(model))


def test_chains_of_one_length(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = OneChild()
    check(model, [chains(3, 4), chains(3, 4), chains(5, 3), chains(2, 5)], monkeypatch)
    assert all(has_first_step(model))


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_parameters_that_do_not_learn(frozen: str, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = weft.nn.TreeFC(D)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.endswith(frozen))
    check(model, [full_trees(4, 4)] * 3, monkeypatch)
    assert all(has_first_step(model))


def test_a_graph_that_is_kept_goes_back_twice(driver: Driver) -> None:
    torch.manual_seed(0)
    model, graph = weft.nn.TreeFC(D), full_trees(4, 4)
    x = torch.randn(graph.num_vertices, D)
    expected = found(model, graph, x, "eager", again=True)
    for _ in range(3):
        for name, tensor in found(model, graph, x, again=True).items():
            assert torch.allclose(tensor, expected[name], rtol=1e-5, atol=1e-6), name


def test_the_general_way_back_finds_leaves_in_the_arena(driver: Driver) -> None:
    """After calls that were never gone back from there is no recipe for the way back."""
    torch.manual_seed(0)
    for graph in (full_trees(4, 4), full_trees(8)):  # leaves are the first rows of the second
        model, x = weft.nn.TreeFC(D), torch.randn(graph.num_vertices, D)
        model(graph, x, backend="triton")
        assert has_first_step(model) == [True]
        expected = found(model, graph, x, "eager")
        for name, tensor in found(model, graph, x).items():
            assert torch.allclose(tensor, expected[name], rtol=1e-5, atol=1e-6), name


def test_other_plans_have_their_leaves_in_the_arena(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees of which some inner step reads leaves; few rows; leaves that learn; leaves of which the caller wants rows."""
    torch.manual_seed(0)
    model = weft.nn.TreeFC(D)
    check(model, [trees(4, 3), trees(4, 3), full_trees(8, 2, 4), full_trees(2)], monkeypatch)
    assert not any(has_first_step(model))
    check(model, [full_trees(4, 4)], monkeypatch)
    assert any(has_first_step(model))
    for other in (weft.nn.TreeFC(D), weft.nn.GatedTree(D)):
        check(other, [full_trees(4, 4)] * 2, monkeypatch, learns=isinstance(other, weft.nn.TreeFC))
        assert has_first_step(other) and not any(has_first_step(other))


def test_states_are_kept_in_the_result_and_autograd_watches_over_them(driver: Driver) -> None:
    torch.manual_seed(0)
    model, graph = weft.nn.TreeFC(D), full_trees(4, 4)
    x = torch.randn(graph.num_vertices, D)
    for _ in range(2):
        found(model, graph, x)
    out = model(graph, x, backend="triton")
    out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_recipes_under_autocast(driver: Driver) -> None:
    """What is pushed is in bfloat16, and so is its gradient, which is not the state's. (The interpreter has no bfloat16:
    numbers are compared in `tests/gpu`.)"""
    for graph in (full_trees(4, 4), trees(4, 3)):
        model, x = weft.nn.TreeFC(D), torch.randn(graph.num_vertices, D)
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert found(model, graph, x)["out"].dtype is torch.bfloat16
        assert has_first_step(model)


def test_inference(driver: Driver) -> None:
    torch.manual_seed(0)
    model, graph = weft.nn.TreeFC(D), full_trees(8, 8)
    x = torch.randn(graph.num_vertices, D)
    with torch.no_grad():
        expected = model(graph, x, backend="eager")
        for _ in range(3):
            assert torch.allclose(model(graph, x, backend="triton"), expected, rtol=1e-5, atol=1e-6)
    assert has_first_step(model) == [True]


class Read(OneChild):
    """Pushes what is read off its state, too."""

    def __init__(self) -> None:
        super().__init__()
        self.off = nn.Linear(D, 2)

    def forward(self, v: Any) -> None:
        h = v.pull() if v.type == 0 else torch.tanh(self.next(v.gather(0)["h"]))
        v.scatter(h=h)
        if v.type:
            v.push((h, self.off(h)))


def test_states_that_more_than_steps_read_on_the_way_back(driver: Driver) -> None:
    torch.manual_seed(0)
    model, graph = Read(), chains(3, 4)
    for _ in range(3):
        x, gradients = torch.randn(graph.num_vertices, D), []
        for backend in ("eager", "triton"):
            h, read = model(graph, x, backend=backend)
            gradients.append(torch.autograd.grad(h.sum() + read.square().sum(), [*model.parameters()]))
        assert all(torch.allclose(one, other, rtol=1e-5, atol=1e-6) for one, other in zip(*gradients, strict=True))
