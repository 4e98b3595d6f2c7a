"""On a GPU: every backend beside float64 on a CPU, every gradient by name; the same bits twice; no waiting."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cuda_parts import CELLS, CUDA, assert_close, binary_trees, case, results
from weft.run.gpu import apart
from weft.testing import random_program, random_structure
from weft.testing.programs import SAMPLES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

BACKENDS = ["eager", "triton"]
NOT_HERE = ("dropout", "captured", "three types")
"""Sample cells that draw random numbers, which differ between devices, or hold tensors that no `.to` moves."""


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


def test_one_plan_on_two_streams_at_once() -> None:
    """Neither reads index arrays that the other is still copying."""
    model, _, _, x = case("n-ary tree-lstm", 64)
    graphs = [binary_trees(64, seed) for seed in range(8)]
    rows = [torch.randn(graph.num_vertices, x.shape[1], device=CUDA) for graph in graphs]
    with torch.no_grad():
        expected = [model(graph, some, backend="eager") for graph, some in zip(graphs, rows, strict=True)]
        model(graphs[0], rows[0])
        torch.cuda.synchronize()
        streams, found = [torch.cuda.Stream() for _ in range(2)], list[Tensor]()
        for graph, some in zip(graphs[1:], rows[1:], strict=True):
            for stream in streams:
                with torch.cuda.stream(stream):
                    found.append(model(graph, some))
        torch.cuda.synchronize()
    for at, one in enumerate(found):
        assert torch.allclose(one, expected[1 + at // 2], rtol=1e-5, atol=1e-5)


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
