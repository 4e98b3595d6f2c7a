"""What a forward pass keeps for backward on a GPU: rows that the gradient of the same width is written over, and no more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import weft
import weft.nn
from kernel_parts import NEEDS_INTERPRETER
from weft.run.gpu import counts
from weft.run.gpu.counts import counter
from weft.run.gpu.execution import GpuExecution
from weft.run.gpu.totals import COLUMNS, column_sums

pytestmark = NEEDS_INTERPRETER

D = 20  # two tiles of columns


class Allocations(TorchDispatchMode):
    """The shapes of all memory that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.empty.memory_format, torch.ops.aten.new_empty.default):
            self.shapes.append(tuple(found.shape))
        return found


def chains() -> tuple[weft.Graph, Tensor]:
    graph = weft.Graph.batch([weft.Graph.chain(n) for n in (4, 3, 2)])
    return graph, torch.randn(graph.num_vertices, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def gradients(model: nn.Module, out: Tensor, **options: Any) -> dict[str, Tensor]:
    model.zero_grad()
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    (out * weights).sum().backward(**options)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, rtol=0, atol=1e-12 * max(1.0, float(tensor.abs().max()))), name


def test_an_lstm_keeps_its_states_and_one_row_of_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tanh(c)` is computed again; the four gates of the vertices behind the first of each chain lie side by side."""
    kept: list[tuple[int, ...]] = []
    right = GpuExecution.pack

    def pack(self: GpuExecution) -> list[Tensor]:
        found = right(self)
        every = (*found, *self.kept)
        kept[:] = [tuple(one.shape) for one in every if one.untyped_storage().nbytes() == one.nbytes]  # no part of an arena
        return found

    monkeypatch.setattr(GpuExecution, "pack", pack)
    graph, x = chains()
    model = weft.nn.LSTM(3, D).double()
    for _ in range(2):  # the general way, then by recipe
        gradients(model, model(graph, x, backend="triton"))
        behind = graph.num_vertices - graph.num_graphs
        assert kept.count((behind, 4 * D)) == 1
        assert not [shape for shape in kept if shape == (behind, D)], "single gates"


def test_the_gradient_of_the_gates_is_written_over_them_unless_the_graph_is_kept() -> None:
    graph, x = chains()
    model = weft.nn.LSTM(3, D).double()
    expected = gradients(model, model(graph, x, backend="eager"))
    gates = (graph.num_vertices - graph.num_graphs, 4 * D)
    for _ in range(3):
        out = model(graph, x, backend="triton")
        with torch.autograd.set_multithreading_enabled(False):
            with Allocations() as first:
                assert_same(gradients(model, out, retain_graph=True), expected)
            with Allocations() as second:
                assert_same(gradients(model, out), expected)
    assert first.shapes.count(gates) == 1
    assert second.shapes.count(gates) == 0


def test_gates_are_written_over_what_was_in_front_of_them() -> None:
    graph, x = chains()
    model = weft.nn.LSTM(3, D).double()
    for _ in range(3):
        with Allocations() as forward:
            out = model(graph, x, backend="triton")
        out.sum().backward()
    assert (graph.num_vertices - graph.num_graphs, 4 * D) not in forward.shapes


class OneForAll(weft.VertexFunction):
    """The first number of a gate multiplies the whole row: written over, it would be gone for the other columns."""

    def __init__(self) -> None:
        super().__init__(state={"h": (D,)})
        self.x, self.hidden = nn.Linear(3, D), nn.Linear(D, 2 * D)

    def forward(self, v: Any) -> None:
        gate, fresh = self.hidden(v.gather(0)["h"]).chunk(2)
        gate = torch.sigmoid(gate)
        h = gate[0].detach() * torch.tanh(fresh + self.x(v.pull())) + gate
        v.scatter(h=h)
        v.push(h)


def test_a_number_that_serves_a_whole_row_is_not_written_over() -> None:
    graph, x = chains()
    torch.manual_seed(0)
    model = OneForAll().double()
    expected = gradients(model, model(graph, x, backend="reference"))
    for _ in range(2):
        assert_same(gradients(model, model(graph, x, backend="triton")), expected)


def test_rows_apart_are_written_over_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide steps, whose products are the library's, read and write the same rows."""
    from weft.run.gpu import apart, cost

    monkeypatch.setattr(apart, "rates", lambda device: cost.Rates(host=0.0))
    monkeypatch.setattr(cost.Rates, "rows", lambda self, operations: 2)
    graph, x = chains()
    model = weft.nn.LSTM(3, D).double()
    expected = gradients(model, model(graph, x, backend="eager"))
    for _ in range(3):
        assert_same(gradients(model, model(graph, x, backend="triton")), expected)


def test_gradients_of_other_outputs_alone_find_what_was_kept() -> None:
    """Forward keeps the same whichever outputs get a gradient."""

    class Two(weft.VertexFunction):
        def __init__(self) -> None:
            super().__init__(state={"h": (D,), "c": (D,)})
            self.hidden = nn.Linear(D, 3 * D)

        def forward(self, v: Any) -> None:
            old = v.gather(0)
            a, b, c = self.hidden(old["h"] + v.pull().sum()).chunk(3)
            new = torch.sigmoid(a) * old["c"] + torch.tanh(b)
            h = torch.sigmoid(c) * torch.tanh(new)
            v.scatter(h=h, c=new)
            v.push({"h": h, "c": new})

    graph, x = chains()
    torch.manual_seed(0)
    model = Two().double()
    for key in ("h", "c"):
        expected = gradients(model, model(graph, x, backend="reference")[key])
        for _ in range(2):
            assert_same(gradients(model, model(graph, x, backend="triton")[key]), expected)


@pytest.mark.parametrize("rows", [0, 1, 2, 63, 127, 1000, 1025, 2048, 3001])
def test_sums_over_rows_take_no_memory_but_their_result(rows: int) -> None:
    """Of many rows, a thousandth of them; and no count is left behind."""
    x = torch.randn(rows, 300, dtype=torch.float64)
    with Allocations() as made:
        found = column_sums(x)
    parts = [(rows // 1024 + 1, 300)] * (rows >= 1024)
    assert [shape for shape in made.shapes if 0 not in shape] == [*parts, (1, 300)]
    assert torch.allclose(found, x.sum(0, keepdim=True), rtol=0, atol=1e-12)
    assert not counter(x.device, 0).any()


def test_sums_over_rows_that_are_wider_than_there_are_counts() -> None:
    x = torch.randn(1100, COLUMNS * counts.COLUMNS + 1)
    assert torch.allclose(column_sums(x), x.sum(0, keepdim=True), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [5, 2500])
def test_sums_over_rows_of_halves_are_rounded_once(rows: int) -> None:
    x = torch.randn(rows, 256, generator=torch.Generator().manual_seed(0)).to(torch.float16)
    assert torch.equal(column_sums(x), x.double().sum(0, keepdim=True).to(torch.float16))


@pytest.mark.parametrize("d", [2, 64])
def test_gradients_of_biases_are_such_sums(d: int) -> None:
    """Of narrow ones, too: torch adds up in another order, and equal calls must give equal bits."""
    graph, x = chains()
    model = weft.nn.LSTM(3, d).double()
    expected = gradients(model, model(graph, x, backend="eager"))
    assert_same(gradients(model, model(graph, x, backend="triton")), expected)
    codes = [code for kept in model.__dict__["_weft"].cells.values() for cell in kept for code in cell.codes.values()]
    sums = [code.codes["sums"].source for code in codes if code.role.backend == "triton" and "sums" in code.codes]
    assert sums and all("column_sums(" in source and "torch.sum(" not in source for source in sums)
