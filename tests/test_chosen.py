"""Calls that return rows of some nodes are one call of C, too, and can be replayed; here by a driver without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import weft
import weft.nn
from chosen_parts import CASES, PAIRS, Pairs, assert_close, step
from cpu_driver import Driver, poisoned_driver
from kernel_parts import NEEDS_INTERPRETER, tree
from onecall_parts import watch
from weft.run.gpu import chosen
from weft.run.somerows import SomeRows

pytestmark = NEEDS_INTERPRETER
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    with poisoned_driver() as found:
        yield found


@pytest.mark.parametrize("case", CASES)
def test_one_call_does_what_the_reference_does(case: str, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    model, call = CASES[case](CPU)
    expected, ways = step(model, call, backend="reference"), watch(monkeypatch)
    for _ in range(3):
        assert_close(step(model, call, backend="triton"), expected)
    assert ways == [True] * 4


@pytest.mark.parametrize("case", CASES)
def test_a_step_that_comes_again_is_two_replays(case: str, driver: Driver) -> None:
    model, call = CASES[case](CPU)
    step(model, call, backend="triton")
    before = driver.captures, driver.replays
    for seen in range(4):
        for parameter in model.parameters():
            parameter.data.mul_(0.9)
        expected = step(model, call, backend="triton")
        for name, tensor in step(model, call, backend="triton", graph=True).items():
            assert torch.equal(tensor, expected[name]), name
        assert driver.replays - before[1] == 2 * max(seen - 1, 0)
    assert driver.captures - before[0] == 2


def test_recorded_inference_is_replayed(driver: Driver) -> None:
    net = weft.batched(Pairs(), backend="triton", graph=True)
    with torch.no_grad():
        expected = [net(PAIRS) for _ in range(3)][-1]
        before = driver.replays
        found = net(PAIRS)
    assert driver.replays - before == 1
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_other_nodes_of_one_plan_are_captured_anew(driver: Driver) -> None:
    model, graph = weft.nn.NaryTreeLSTM(3, 4), tree(5)
    x = torch.randn(graph.num_vertices, 3)
    with torch.no_grad():
        every, before = model(graph, x, backend="triton"), driver.captures
        for nodes in ([8, 7], [7, 8], [8, 7], [7, 8], [8, 7], [7, 8]):
            found = model(graph, x, at=nodes, backend="triton", graph=True)
            assert torch.allclose(found, every[nodes], atol=1e-6)
    assert driver.captures - before == 2


def test_only_some_choices_of_a_plan_are_kept(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture holds what it reads."""
    monkeypatch.setattr(chosen, "MOST_CHOICES", 1)
    model, graph = weft.nn.NaryTreeLSTM(3, 4), tree(5)
    x = torch.randn(graph.num_vertices, 3)
    with torch.no_grad():
        every = model(graph, x, backend="triton")
        for nodes in ([8, 7], [8, 7], [8, 7], [5, 6], [8, 7]):
            found = model(graph, x, at=nodes, backend="triton", graph=True)
            assert torch.allclose(found, every[nodes], atol=1e-6)
    assert [len(one) for one in _kept_choices(model)] == [1]


def test_many_results_are_one_copy(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a call that comes again none."""
    made, many = list[int](), chosen.MOST_CHOICES + 4
    layers = nn.ModuleList([nn.Linear(3, 4 + at % 2) for at in range(many)])
    net = weft.batched(lambda x: [layer(x) * at for at, layer in enumerate(layers)], backend="triton")
    right = chosen._brought
    monkeypatch.setattr(chosen, "_brought", lambda arrays, indices: (made.append(len(arrays)), right(arrays, indices))[1])
    x = torch.randn(2, 3)
    with torch.no_grad():
        for _ in range(4):
            found = net(x)
        assert len(made) == 1
        assert all(
            torch.allclose(one, layer(x) * at, atol=1e-5) for at, (one, layer) in enumerate(zip(found, layers, strict=True))
        )


def _kept_choices(model: Any) -> Iterator[Any]:
    for plan in model.__dict__["_weft"].plans._plans.values():
        for indices in plan._derived.values():
            if "chosen" in getattr(indices, "_kept", ()):
                yield indices._kept["chosen"]


def test_gradients_of_one_row_are_added_in_order() -> None:
    """The same bits at every call, wherever the rows are."""
    rows = torch.tensor([[1e8], [1.0], [-1e8], [2.0], [1.0]])
    some = SomeRows(torch.tensor([3, 3, 3, 0, 3]).numpy(), rows, 5)
    assert some.dense().flatten().tolist() == [2, 0, 0, 1, 0]
