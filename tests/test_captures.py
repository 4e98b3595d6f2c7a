"""`graph=True`: calls that come again replay what an earlier one launched, here by a driver without a GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.nn
from cpu_driver import Driver, poisoned_driver
from kernel_parts import NEEDS_INTERPRETER, recipes_of
from weft.run.gpu import firststep, replay

pytestmark = NEEDS_INTERPRETER


class Chain(weft.VertexFunction):
    """Few and small kernels."""

    def __init__(self) -> None:
        super().__init__(state={"h": 4})
        self.input, self.hidden = nn.Linear(3, 4), nn.Linear(4, 4, bias=False)

    def forward(self, v: weft.Vertex) -> None:
        h = torch.tanh(self.input(v.pull()) + self.hidden(v.gather(0)["h"]))
        v.scatter(h=h)
        v.push(h)


CHAINS = weft.Graph.batch([weft.Graph.chain(2), weft.Graph.chain(1)])


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    with poisoned_driver() as found:
        yield found


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


def trained(model: nn.Module) -> nn.Module:
    """After so many steps on these chains that their passes are captured."""
    for _ in range(3):
        step(model, CHAINS, rows(), graph=True)
    return model


def rows(**options: Any) -> Tensor:
    return torch.randn(CHAINS.num_vertices, 3, **options)


@pytest.fixture(scope="module")
def model(driver: Driver) -> nn.Module:
    """Its training steps are captured."""
    torch.manual_seed(0)
    before, found = driver.captures, trained(Chain())
    assert driver.captures - before == 2
    return found


def test_a_training_step_that_comes_again_is_two_replays(driver: Driver) -> None:
    torch.manual_seed(0)
    model, before = Chain(), driver.captures
    step(model, CHAINS, rows())
    for seen in range(3):
        for parameter in model.parameters():
            parameter.data.mul_(0.9)  # in place, as optimisers do
        assert_replays(driver, 2 * (seen == 2), model, CHAINS, rows())
    assert driver.captures - before == 2


def test_states_that_backward_reads_from_the_results(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full trees, whose first step takes the leaves from where they are fed."""
    monkeypatch.setattr(firststep, "LEAST", 2)
    torch.manual_seed(0)
    model = weft.nn.TreeFC(3)
    tree = weft.Graph([[], [], [], [], [0, 1], [2, 3], [4, 5]], types=[0, 0, 0, 0, 1, 1, 1])
    graph = weft.Graph.batch([tree, tree])
    model(graph, torch.randn(graph.num_vertices, 3), backend="triton").sum().backward()  # leaves recipes
    before = driver.replays
    for _ in range(3):
        x, found = torch.randn(graph.num_vertices, 3), []
        for options in ({}, {"graph": True}):
            model.zero_grad()
            out = model(graph, x, backend="triton", **options)
            out.backward(torch.linspace(-1, 1, out.numel()).view_as(out))
            found.append({"out": out.detach(), **{name: p.grad for name, p in model.named_parameters() if p.grad is not None}})
        assert_same(*found)
    assert any(recipe.about.first_steps for recipe in recipes_of(model) if recipe.about is not None)
    assert driver.replays - before == 2


def test_results_are_the_callers_own(driver: Driver, model: nn.Module) -> None:
    first = step(model, CHAINS, torch.ones_like(rows()), graph=True)
    kept = {name: tensor.clone() for name, tensor in first.items()}
    second = step(model, CHAINS, -torch.ones_like(rows()), graph=True)
    assert_same(first, kept)
    assert not torch.equal(first["out"], second["out"])
    for tensor in second.values():
        tensor.zero_()
    assert_replays(driver, 2, model, CHAINS, torch.ones_like(rows()))


def test_gradients_are_added_to_those_that_are_there(model: nn.Module) -> None:
    x = rows(requires_grad=True)
    once = step(model, CHAINS, x)
    step(model, CHAINS, x, graph=True)
    model(CHAINS, x, backend="triton", graph=True).backward(torch.linspace(-1, 1, once["out"].numel()).view_as(once["out"]))
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.equal(parameter.grad, 2 * once[name]), name


def test_a_call_before_the_backward_pass_of_another_runs_without(driver: Driver, model: nn.Module) -> None:
    """What the first one keeps is not written over."""
    xs = [rows(requires_grad=True) for _ in range(2)]
    expected = [step(model, CHAINS, x) for x in xs]
    before = driver.replays
    outs = [model(CHAINS, x, backend="triton", graph=True) for x in xs]
    assert driver.replays - before == 1
    for out, one in zip(outs, expected, strict=True):
        model.zero_grad()
        out.backward(torch.linspace(-1, 1, out.numel()).view_as(out))
        assert torch.equal(out, one["out"])
        assert all(torch.equal(p.grad, one[name]) for name, p in model.named_parameters() if p.grad is not None)
    assert driver.replays - before == 2


def test_a_call_that_has_no_backward_pass_makes_room_when_it_is_gone(driver: Driver, model: nn.Module) -> None:
    x = rows(requires_grad=True)
    out = model(CHAINS, x, backend="triton", graph=True)
    assert_replays(driver, 0, model, CHAINS, x)
    del out
    assert_replays(driver, 2, model, CHAINS, x)


def test_a_graph_that_is_kept_can_be_walked_twice(driver: Driver, model: nn.Module) -> None:
    x = rows(requires_grad=True)
    once = step(model, CHAINS, x)
    model.zero_grad()
    out = model(CHAINS, x, backend="triton", graph=True)
    cotangent = torch.linspace(-1, 1, out.numel()).view_as(out)
    out.backward(cotangent, retain_graph=True)
    assert_replays(driver, 0, model, CHAINS, x)
    model.zero_grad()
    out.backward(cotangent)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.allclose(parameter.grad, once[name], rtol=1e-5, atol=1e-6), name
    assert_replays(driver, 2, model, CHAINS, x)


def test_hooks_see_what_is_kept(driver: Driver, model: nn.Module) -> None:
    x = rows()
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (packed.append(tensor), tensor)[1], lambda tensor: tensor):
        assert_replays(driver, 0, model, CHAINS, x)
    assert len(packed) > 2 * len([*model.parameters(), x])
    assert_replays(driver, 2, model, CHAINS, x)


def test_other_modes_and_moved_parameters_are_captured_anew(driver: Driver, model: nn.Module) -> None:
    x, before = rows(), driver.captures
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            model(CHAINS, x, backend="triton")
            for _ in range(3):
                assert torch.equal(model(CHAINS, x, backend="triton", graph=True), model(CHAINS, x, backend="triton"))
    assert driver.captures - before == 2
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    for replayed in (0, 0, 2):
        assert_replays(driver, replayed, model, CHAINS, x)


def test_rows_that_do_not_lie_side_by_side_run_without(driver: Driver, model: nn.Module) -> None:
    before, x = driver.replays, torch.randn(1, 3).expand(CHAINS.num_vertices, 3)
    for _ in range(3):
        found = model(CHAINS, x, backend="triton", graph=True)
        assert torch.equal(found, model(CHAINS, x, backend="triton"))
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
    torch.manual_seed(0)
    model, before = Dropped(), driver.captures
    x = torch.randn(5, 3)
    found = [model(weft.Graph.chain(5), x, backend="triton", graph=True) for _ in range(4)]
    assert driver.captures == before
    assert not torch.equal(found[-1], found[-2])


def test_what_cannot_be_captured_runs_without(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals: list[Any] = []

    def refused(device: Any, work: Any) -> Any:
        refusals.append(work)
        raise RuntimeError("CUDA refused")

    monkeypatch.setattr(replay, "captured", refused)
    gc.collect()  # captures go with their models
    held, model = replay._replays.held(), Chain()
    step(model, CHAINS, rows())
    for _ in range(3):
        assert_replays(driver, 0, model, CHAINS, rows())
    assert len(refusals) == 1  # it is not tried again
    assert replay._replays.held() == held


def test_where_only_the_backward_pass_cannot_be_captured_it_runs_without(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, before = driver.captured, driver.captures

    def refused(device: Any, work: Any) -> Any:
        if driver.captures > before:
            raise RuntimeError("CUDA refused")
        return right(device, work)

    monkeypatch.setattr(replay, "captured", refused)
    model = Chain()
    step(model, CHAINS, rows())
    for seen in range(3):
        assert_replays(driver, int(seen == 2), model, CHAINS, rows())


def test_captures_go_with_the_model(driver: Driver) -> None:
    gc.collect()
    held = replay._replays.held()
    model = trained(Chain())
    assert replay._replays.held() == held + 1
    del model
    gc.collect()
    assert replay._replays.held() == held
