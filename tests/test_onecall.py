"""Recipes as one call of C: the same launches with the same arguments, whatever the batch."""

from __future__ import annotations

import copy
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import weft
import weft.nn
from cpu_driver import Driver, install
from kernel_parts import NEEDS_INTERPRETER, fast_products, poison_memory, results
from onecall_parts import CASES, compare, trees, watch
from weft.run.gpu import apart
from weft.run.gpu.counts import counter
from weft.run.gpu.execution import GpuExecution
from weft.run.gpu.onecall.lowered import Lowered
from weft.run.gpu.onecall.numbers import Example, NotLowered, Number
from weft.run.gpu.onecall.record import Recorder

pytestmark = NEEDS_INTERPRETER
CPU = torch.device("cpu")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    poison_memory(monkeypatch)
    return install(monkeypatch)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return watch(monkeypatch)


@pytest.mark.parametrize("case", CASES)
def test_one_call_does_what_the_recipe_does(
    case: str, driver: Driver, ways: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    make, graphs = CASES[case]
    model = make()
    compare(model, [graphs[0], *graphs], CPU, monkeypatch)
    assert ways[-2:] == [True, True]
    assert driver.launches and driver.products


def test_turned_weights_are_part_of_one_call(driver: Driver, ways: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = weft.nn.NaryTreeLSTM(3, 4)
    with fast_products():
        compare(model, [trees(4, 5), trees(4, 5), trees(3, 7)], CPU, monkeypatch)
    assert ways[-2:] == [True, True]


def test_wide_steps_run_apart(driver: Driver, ways: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The library multiplies for them, step by step, within the one call."""
    monkeypatch.setattr(apart, "rates", lambda device: SimpleNamespace(rows=lambda operations: 3))
    torch.manual_seed(0)
    model = weft.nn.NaryTreeLSTM(3, 4)
    graphs = [trees(4, 4, 5, 6), trees(4, 4, 5, 6), trees(7, 2, 2, 2, 3), trees(3, 3, 3, 3, 3, 9)]
    compare(model, graphs, CPU, monkeypatch)
    assert ways[-2:] == [True, True]
    counts = []
    for leaves in (2, 3):
        graph = trees(*[leaves] * 5)
        for _ in range(2):
            before = driver.products
            results(model, graph, torch.randn(graph.num_vertices, 3), "triton")
        counts.append(driver.products - before)
    assert counts[1] == counts[0] + 2  # one more step, forward and back


def test_inference_is_one_call(driver: Driver, ways: list[Any]) -> None:
    torch.manual_seed(0)
    model, graph = weft.nn.NaryTreeLSTM(3, 4), trees(2, 5)
    x = torch.randn(graph.num_vertices, 3)
    with torch.no_grad():
        expected = model(graph, x, backend="eager")
        for _ in range(3):
            assert torch.allclose(model(graph, x, backend="triton"), expected, rtol=1e-5, atol=1e-6)
    assert ways == [True, True]


def test_a_graph_that_is_kept_goes_by_the_recipe(driver: Driver, ways: list[Any]) -> None:
    torch.manual_seed(0)
    model, graph = weft.nn.NaryTreeLSTM(3, 4), trees(2, 5)
    x = torch.randn(graph.num_vertices, 3)
    for _ in range(2):
        model(graph, x, backend="triton").sum().backward()
    model.zero_grad()
    out = model(graph, x, backend="triton").sum()
    out.backward(retain_graph=True)
    once = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    out.backward()
    for p, grad in zip(model.parameters(), once, strict=True):
        assert p.grad is not None and torch.allclose(p.grad, 2 * grad, rtol=1e-5, atol=1e-6)
    assert ways[-2:] == [True, True]  # the last forward pass and the last backward pass


def test_memory_between_multiples_of_16_bytes_goes_by_the_recipe(driver: Driver, ways: list[Any]) -> None:
    torch.manual_seed(0)
    model, graph = weft.nn.NaryTreeLSTM(3, 4), trees(2, 5)
    x = torch.randn(graph.num_vertices, 3)
    for _ in range(2):
        expected = model(graph, x, backend="triton")
    odd = torch.empty(x.numel() + 1)[1:].view_as(x).copy_(x)
    assert odd.data_ptr() % 16
    assert torch.allclose(model(graph, odd, backend="triton"), expected, rtol=1e-5, atol=1e-6)
    assert ways == [True, False]


class Added(weft.VertexFunction):
    """A cell without a product."""

    def __init__(self) -> None:
        super().__init__(state={"h": 4})

    def forward(self, v: weft.Vertex) -> None:
        h = torch.tanh(v.pull() + v.gather().sum("h"))
        v.scatter(h=h)
        v.push(h)


def test_without_products_a_thread_is_known_to_the_driver_all_the_same(
    driver: Driver, ways: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks for the library's handle then."""
    monkeypatch.setattr("weft.run.gpu.onecall.lowered.blas_handle", lambda: pytest.fail("asked for"))
    torch.manual_seed(0)
    model, graph, found = Added(), trees(4, 5), list[torch.Tensor]()
    x = torch.randn(graph.num_vertices, 4)

    def infer() -> None:
        with torch.no_grad():
            found.append(model(graph, x, backend="triton"))

    for _ in range(2):
        infer()
    thread = Thread(target=infer)
    thread.start()
    thread.join()
    assert ways == [True, True] and torch.equal(found[2], found[1]) and not driver.products


class Sorted(weft.VertexFunction):
    """A cell with an operation that no kernel expresses."""

    def __init__(self) -> None:
        super().__init__(state={"h": 4})
        self.linear = nn.Linear(3, 4)

    def forward(self, v: weft.Vertex) -> None:
        v.scatter(h=torch.tanh(self.linear(v.pull()).sort().values))


def test_what_cannot_be_lowered_says_why(driver: Driver, ways: list[Any]) -> None:
    torch.manual_seed(0)
    model, graph = Sorted(), weft.Graph([[], [], []])
    x = torch.randn(3, 3)
    for _ in range(3):
        found = model(graph, x, backend="triton")["h"]
        assert torch.allclose(found, model(graph, x, backend="eager")["h"], atol=1e-6)
    assert ways == ["aten.sort"] * 2


def test_what_a_call_must_know_is_read_from_the_numbers_of_the_plan(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """No object is made for it."""
    used: list[Lowered] = []
    right = Lowered.facts
    monkeypatch.setattr(Lowered, "facts", lambda self, indices: (used.append(self), right(self, indices))[1])
    model, graph = weft.nn.NaryTreeLSTM(3, 4), trees(2, 5)
    for _ in range(2):
        results(model, graph, torch.randn(graph.num_vertices, 3), "triton")
    assert [(len(one.told), len(one.rest)) for one in used] == [(12, 0), (10, 0)]


def test_what_is_decided_by_sizes_is_a_guard() -> None:
    example = Example({"f0": 3, "f1": 3, "f2": 4})
    one, two, three = (Number(name, example) for name in example.values)
    assert one == two
    assert one != three
    assert one * 2 < three * 3
    assert example.guards == ["f0 == f1", "f0 != f2", "(f0 * 2) < (f2 * 3)"]
    with pytest.raises(NotLowered, match=r"a decision that differs from step to step: lo >= 0"):
        bool(Number("lo", example) >= 0)


def test_a_call_that_a_guard_refuses_goes_by_the_recipe(
    driver: Driver, ways: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, graphs = CASES["lstm"]
    torch.manual_seed(0)
    model, fresh = make(), Recorder.fresh

    def guarded(self: Recorder, *given: Any) -> Any:
        self.example.decide("f0 == f0 + 1 - 1")
        self.example.guards[:] = ["f0 < 0"]
        return fresh(self, *given)

    monkeypatch.setattr(Recorder, "fresh", guarded)
    compare(model, [graphs[0], graphs[0], graphs[1]], CPU, monkeypatch)
    assert ways and not any(ways)


def test_what_sizes_decide_is_decided_for_each_version(
    driver: Driver, ways: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls with many rows and with few take turns, and all of them are one call."""
    decided, right = list[bool](), Recorder.sums
    monkeypatch.setattr(Recorder, "sums", lambda self, rows: (decided.append(rows.shape[0] >= 8), right(self, rows))[1])
    torch.manual_seed(0)
    model, few, many = weft.nn.NaryTreeLSTM(3, 4), trees(2, 3), trees(5, 4, 7)
    compare(model, [few, few, many, few, many], CPU, monkeypatch)
    assert ways == [True] * 8 and {*decided} == {True, False}


def test_sums_of_many_parts_are_part_of_one_call(driver: Driver, ways: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.run.gpu.totals.ROWS", 4)
    torch.manual_seed(0)
    model, few, many = weft.nn.NaryTreeLSTM(3, 4), trees(2, 3), trees(5, 4, 7)
    compare(model, [few, few, many, few, many], CPU, monkeypatch)
    assert ways == [True] * 8 and not counter(CPU, 0).any()


def test_threads_that_first_count_at_once_have_the_same_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would be let go of while kernels count in them."""
    others, right = list[torch.Tensor](), torch.zeros

    def zeros(*given: Any, **options: Any) -> torch.Tensor:
        monkeypatch.setattr(torch, "zeros", right)
        others.append(counter(CPU, -1))
        return right(*given, **options)

    monkeypatch.setattr("weft.run.gpu.counts._counters", {})
    monkeypatch.setattr(torch, "zeros", zeros)
    assert counter(CPU, -1) is others[0] is counter(CPU, -1)


def test_launches_that_need_nothing_of_each_other_are_one(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, graph, counts = weft.nn.NaryTreeLSTM(3, 4), trees(5, 9, 3), list[int]()
    x = torch.randn(graph.num_vertices, 3)
    for joined in (True, False):
        with monkeypatch.context() as patched:
            if not joined:
                patched.setattr("weft.run.gpu.onecall.note.in_fewer_launches", lambda operations, memory: list(operations))
            for _ in range(2):
                before = driver.launches
                found = results(model, graph, x, "triton")
            counts.append(driver.launches - before)
            for name, expected in results(model, graph, x, "eager").items():
                assert torch.allclose(found[name], expected, rtol=1e-5, atol=1e-6), name
        model = copy.deepcopy(model)
    assert counts[0] <= counts[1] - 2


def test_backward_uses_again_what_it_has_read(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless somebody else has it."""
    torch.manual_seed(0)
    model, graph, rooms = weft.nn.NaryTreeLSTM(3, 16), trees(5, 9, 3), list[int]()
    right, whole = Lowered.room, GpuExecution._whole
    x = torch.randn(graph.num_vertices, 3)
    monkeypatch.setattr(Lowered, "room", lambda self, given: (rooms.append(right(self, given)), rooms[-1])[1])
    for _ in range(2):
        results(model, graph, x, "triton")
    mine = results(model, graph, x, "triton")
    monkeypatch.setattr(GpuExecution, "_whole", lambda self, recipe, *given: whole(self, recipe, *given[:3]))
    others = results(model, graph, x, "triton")
    backward, careful = rooms[-3], rooms[-1]
    assert backward < careful
    assert all(torch.equal(mine[name], tensor) for name, tensor in others.items())
