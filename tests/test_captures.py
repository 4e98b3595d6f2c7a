"""`graph=True`: calls that come again replay what an earlier one launched, here by a driver without a GPU."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.nn
from cpu_driver import Driver, install
from kernel_parts import NEEDS_INTERPRETER, poison_memory
from onecall_parts import CASES, trees
from weft.run.gpu import replay
from weft.run.gpu.replays import Replays

pytestmark = NEEDS_INTERPRETER


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    poison_memory(monkeypatch)
    monkeypatch.setattr(replay, "_replays", Replays())
    return install(monkeypatch)


def step(model: nn.Module, graph: weft.Graph, x: Tensor, /, **options: Any) -> dict[str, Tensor]:
    """Outputs and all gradients of one training step, by name."""
    model.zero_grad()
    x = x.detach().requires_grad_()
    out = model(graph, x, backend="triton", **options)
    out.backward(torch.linspace(-1, 1, out.numel()).view_as(out))
    found = {"out": out.detach(), "x": x.grad, **{name: p.grad for name, p in model.named_parameters()}}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def assert_replays(driver: Driver, many: int, model: nn.Module, graph: weft.Graph, x: Tensor) -> None:
    """A training step replays so many passes and gives what it gives without."""
    expected, before = step(model, graph, x), driver.replays
    assert_same(step(model, graph, x, graph=True), expected)
    assert driver.replays - before == many


def trained(driver: Driver) -> tuple[nn.Module, weft.Graph]:
    """A model with a graph whose passes are captured."""
    torch.manual_seed(0)
    model, graph = weft.nn.NaryTreeLSTM(3, 4, classes=2), trees(2, 3)
    for _ in range(3):
        step(model, graph, torch.randn(graph.num_vertices, 3), graph=True)
    assert driver.captures == 2
    return model, graph


@pytest.mark.parametrize("case", ["n-ary", "lstm", "child-sum", "grid"])
def test_a_training_step_that_comes_again_is_two_replays(case: str, driver: Driver) -> None:
    torch.manual_seed(0)
    make, graphs = CASES[case]
    model, graph = make(), graphs[1]
    step(model, graph, torch.randn(graph.num_vertices, 3))
    for seen in range(3):
        x = torch.randn(graph.num_vertices, 3)
        for parameter in model.parameters():
            parameter.data.mul_(0.9)  # in place, as optimisers do
        assert_replays(driver, 2 * (seen == 2), model, graph, x)
    assert driver.captures == 2


def test_results_are_the_callers_own(driver: Driver) -> None:
    model, graph = trained(driver)
    first = step(model, graph, torch.ones(graph.num_vertices, 3), graph=True)
    kept = {name: tensor.clone() for name, tensor in first.items()}
    second = step(model, graph, -torch.ones(graph.num_vertices, 3), graph=True)
    assert_same(first, kept)
    assert not torch.equal(first["out"], second["out"])
    for tensor in second.values():
        tensor.zero_()
    assert_replays(driver, 2, model, graph, torch.ones(graph.num_vertices, 3))


def test_gradients_are_added_to_those_that_are_there(driver: Driver) -> None:
    model, graph = trained(driver)
    x = torch.randn(graph.num_vertices, 3, requires_grad=True)
    once = step(model, graph, x)
    step(model, graph, x, graph=True)
    model(graph, x, backend="triton", graph=True).backward(torch.linspace(-1, 1, once["out"].numel()).view_as(once["out"]))
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.equal(parameter.grad, 2 * once[name]), name


def test_a_call_before_the_backward_pass_of_another_runs_without(driver: Driver) -> None:
    """What the first one keeps is not written over."""
    model, graph = trained(driver)
    xs = [torch.randn(graph.num_vertices, 3, requires_grad=True) for _ in range(2)]
    expected = [step(model, graph, x) for x in xs]
    before = driver.replays
    outs = [model(graph, x, backend="triton", graph=True) for x in xs]
    assert driver.replays - before == 1
    for out, one in zip(outs, expected, strict=True):
        model.zero_grad()
        out.backward(torch.linspace(-1, 1, out.numel()).view_as(out))
        assert torch.equal(out, one["out"])
        assert all(torch.equal(p.grad, one[name]) for name, p in model.named_parameters() if p.grad is not None)
    assert driver.replays - before == 2


def test_a_call_that_has_no_backward_pass_makes_room_when_it_is_gone(driver: Driver) -> None:
    model, graph = trained(driver)
    x = torch.randn(graph.num_vertices, 3, requires_grad=True)
    out = model(graph, x, backend="triton", graph=True)
    assert_replays(driver, 0, model, graph, x)
    del out
    assert_replays(driver, 2, model, graph, x)


def test_a_graph_that_is_kept_can_be_walked_twice(driver: Driver) -> None:
    model, graph = trained(driver)
    x = torch.randn(graph.num_vertices, 3, requires_grad=True)
    once = step(model, graph, x)
    model.zero_grad()
    out = model(graph, x, backend="triton", graph=True)
    cotangent = torch.linspace(-1, 1, out.numel()).view_as(out)
    out.backward(cotangent, retain_graph=True)
    assert_replays(driver, 0, model, graph, x)
    model.zero_grad()
    out.backward(cotangent)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.allclose(parameter.grad, once[name], rtol=1e-5, atol=1e-6), name
    assert_replays(driver, 2, model, graph, x)


def test_hooks_see_what_is_kept(driver: Driver) -> None:
    model, graph = trained(driver)
    x = torch.randn(graph.num_vertices, 3)
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (packed.append(tensor), tensor)[1], lambda tensor: tensor):
        assert_replays(driver, 0, model, graph, x)
    assert len(packed) > 2 * len([*model.parameters(), x])
    assert_replays(driver, 2, model, graph, x)


def test_other_modes_and_moved_parameters_are_captured_anew(driver: Driver) -> None:
    model, graph = trained(driver)
    x = torch.randn(graph.num_vertices, 3)
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            model(graph, x, backend="triton")
            for _ in range(3):
                assert torch.equal(model(graph, x, backend="triton", graph=True), model(graph, x, backend="triton"))
    assert driver.captures == 4
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    for _ in range(2):
        assert_replays(driver, 0, model, graph, x)
    assert_replays(driver, 2, model, graph, x)


def test_rows_that_do_not_lie_side_by_side_run_without(driver: Driver) -> None:
    model, graph = trained(driver)
    before, x = driver.replays, torch.randn(1, 3).expand(graph.num_vertices, 3)
    for _ in range(3):
        found = model(graph, x, backend="triton", graph=True)
        assert torch.equal(found, model(graph, x, backend="triton"))
    assert driver.replays == before


class Dropped(weft.VertexFunction):
    """Draws random numbers in the recurrence."""

    def __init__(self) -> None:
        super().__init__(state={"h": 4})
        self.linear, self.drop = nn.Linear(3, 4), nn.Dropout(0.5)

    def forward(self, v: weft.Vertex) -> None:
        h = torch.tanh(self.linear(v.pull()) + self.drop(v.gather().sum("h")))
        v.scatter(h=h)
        v.push(h)


def test_random_numbers_are_drawn_by_every_call(driver: Driver) -> None:
    model, graph = Dropped(), trees(4, 3)
    x = torch.randn(graph.num_vertices, 3)
    found = [model(graph, x, backend="triton", graph=True) for _ in range(4)]
    assert driver.captures == 0
    assert not torch.equal(found[-1], found[-2])


def test_what_cannot_be_captured_runs_without(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals: list[Any] = []

    def refused(device: Any, work: Any) -> Any:
        refusals.append(work)
        raise RuntimeError("CUDA refused")

    monkeypatch.setattr(replay, "captured", refused)
    model, graph = weft.nn.NaryTreeLSTM(3, 4), trees(2, 3)
    for _ in range(4):
        assert_replays(driver, 0, model, graph, torch.randn(graph.num_vertices, 3))
    assert len(refusals) == 1  # it is not tried again
    assert replay._replays.held() == 0


def test_where_only_the_backward_pass_cannot_be_captured_it_runs_without(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = driver.captured

    def refused(device: Any, work: Any) -> Any:
        if driver.captures:
            raise RuntimeError("CUDA refused")
        return right(device, work)

    monkeypatch.setattr(replay, "captured", refused)
    model, graph = weft.nn.NaryTreeLSTM(3, 4), trees(2, 3)
    for seen in range(3):
        assert_replays(driver, int(seen == 2), model, graph, torch.randn(graph.num_vertices, 3))


def test_captures_go_with_the_model(driver: Driver) -> None:
    model: Any = trained(driver)[0]
    assert replay._replays.held() == 1
    del model
    gc.collect()
    assert replay._replays.held() == 0
