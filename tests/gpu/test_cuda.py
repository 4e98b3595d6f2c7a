"""On a GPU: every backend beside float64 on a CPU, every gradient by name; the same bits twice; no waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import weft
import weft.nn
from weft.run.gpu import apart, replay
from weft.testing import random_program, random_structure
from weft.testing.programs import SAMPLES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
CUDA = torch.device("cuda")

D_IN = 30
BACKENDS = ["eager", "triton"]
NOT_HERE = ("dropout", "captured", "three types")
"""Sample cells that draw random numbers, which differ between devices, or hold tensors that no `.to` moves."""


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


def results(model: nn.Module, graph: weft.Graph, x: Tensor, **options: Any) -> dict[str, Tensor]:
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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("d", [32, 150])
@pytest.mark.parametrize("name", CELLS)
def test_cells_are_exact(name: str, d: int, backend: str) -> None:
    model, exact, graph, x = case(name, d)
    truth = results(exact, graph, x.double(), backend="eager")
    exact = exact.to(CUDA)
    for _ in range(2):  # the first call writes recipes, the second goes by them
        assert_close(results(model, graph, x.to(CUDA), backend=backend), truth, 1e-5)
        assert_close(results(exact, graph, x.double().to(CUDA), backend=backend), truth, 1e-12)


@pytest.mark.parametrize("d", [150, 256])
@pytest.mark.parametrize("name", CELLS)
def test_fast_products_are_near_and_repeat_bit_for_bit(name: str, d: int) -> None:
    model, exact, graph, x = case(name, d)
    truth = results(exact, graph, x.double(), backend="eager")
    torch.set_float32_matmul_precision("high")
    try:
        first, second = (results(model, graph, x.to(CUDA), backend="triton") for _ in range(2))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert_close(first, truth, 5e-3)
    assert all(torch.equal(first[key], second[key]) for key in first)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for _ in range(2):
            assert_close(results(model, graph, x.to(CUDA), backend="triton"), truth, 5e-2)


@pytest.mark.filterwarnings("ignore::weft.FallbackWarning")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sample", [name for name in SAMPLES if name not in NOT_HERE])
def test_random_programs_agree_with_the_cpu(sample: str, backend: str) -> None:
    structure = random_structure(3, "dag", types=SAMPLES[sample].types)
    program, inputs = random_program(3, sample=sample, structure=structure)
    expected = _leaves(program(*inputs, backend="eager"))
    program.model.to(CUDA)
    moved = torch.utils._pytree.tree_map(lambda leaf: leaf.to(CUDA) if isinstance(leaf, Tensor) else leaf, inputs)
    for _ in range(2):
        found = _leaves(program(*moved, backend=backend))
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            a, b = a.cpu().double(), b.double()
            assert (a - b).abs().max().item() <= 1e-12 * max(1.0, b.abs().max().item())


def _leaves(nest: Any) -> list[Tensor]:
    return [leaf.detach() for leaf in torch.utils._pytree.tree_leaves(nest) if isinstance(leaf, Tensor)]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_step_never_waits_for_the_device() -> None:
    model, _, graph, x = case("n-ary tree-lstm", 32)
    x = x.to(CUDA)
    cotangent = torch.ones(graph.num_vertices, 5, device=CUDA)
    model(graph, x).backward(cotangent)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for seed in (1, 2):
            other = binary_trees(8, seed)
            model(other, x[:1].expand(other.num_vertices, -1)).backward(cotangent[:1].expand(other.num_vertices, -1))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_kernels_run_on_the_current_stream() -> None:
    model, _, graph, x = case("tree-gru", 32)
    x = x.to(CUDA)
    expected = model(graph, x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = model(graph, x)
    stream.synchronize()
    assert torch.equal(found, expected)


def test_the_sweep_of_narrow_steps_is_one_launch_each_way() -> None:
    from torch.profiler import ProfilerActivity, profile

    model, _, _, x = case("n-ary tree-lstm", 32)
    graph = binary_trees(4)
    x, cotangent = x[: graph.num_vertices].to(CUDA), torch.ones(graph.num_vertices, 5, device=CUDA)
    model(graph, x).backward(cotangent)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as trace:
        model(graph, x).backward(cotangent)
        torch.cuda.synchronize()
    assert sum(event.name == "sweep" and event.device_type.name == "CUDA" for event in trace.events()) == 2


def test_calls_that_come_again_are_replayed() -> None:
    model, _, graph, x = case("n-ary tree-lstm", 64)
    other, x = binary_trees(12, 5), x.to(CUDA)
    with torch.no_grad():
        for structure in (graph, other, graph, other):
            for scale in (1.0, 0.5, -1.0, 2.0):
                rows = scale * x[:1].expand(structure.num_vertices, -1)
                assert torch.equal(model(structure, rows, graph=True), model(structure, rows))
        for parameter in model.parameters():
            parameter.mul_(0.5)
        assert torch.equal(model(graph, x, graph=True), model(graph, x))


def test_only_the_last_captures_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "MOST_REPLAYS", 2)
    model = case("tree-gru", 32)[0]
    with torch.no_grad():
        for seed in range(4):
            structure = parents(seed)
            rows = torch.randn(structure.num_vertices, D_IN, device=CUDA)
            found = [model(structure, rows, graph=True) for _ in range(3)]
            assert all(torch.equal(one, model(structure, rows)) for one in found)
    assert len(replay._captured) <= 2


@pytest.mark.parametrize("name", ["n-ary tree-lstm", "tree-fc", "lstm", "grid"])
def test_wide_steps_run_apart_from_narrow_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library multiplies for steps of eight rows and more; kernels walk the others."""

    class Few:
        def rows(self, operations: float) -> int:
            return 8

    monkeypatch.setattr(apart, "rates", lambda device: Few())
    model, exact, graph, x = case(name, 150)
    truth = results(exact, graph, x.double(), backend="eager")
    for _ in range(3):
        assert_close(results(model, graph, x.to(CUDA), backend="triton"), truth, 1e-5)
