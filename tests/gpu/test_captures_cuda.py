"""On a GPU: calls that come again, replayed as CUDA graphs, beside the same calls without: the same bits."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import chosen_parts
import weft
import weft.nn
from cuda_parts import CELLS, CUDA, D_IN, binary_trees, case, parents, results
from weft.run.gpu import replay, replays
from weft.run.gpu.capture import Graph, captured
from weft.run.gpu.replays import Replays

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(autouse=True)
def no_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_replays", Replays())


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The streams on which graphs are launched."""
    found, right = list[int](), Graph.launch
    monkeypatch.setattr(Graph, "launch", lambda self, stream: (found.append(stream), right(self, stream))[1])
    return found


@pytest.fixture
def fast_products() -> Iterator[None]:
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.usefixtures("fast_products")
@pytest.mark.parametrize("name", CELLS)
def test_training_steps_are_two_replays(name: str, launched: list[int]) -> None:
    model, _, graph, x = case(name, 64)
    x = x.to(CUDA)
    results(model, graph, x)
    for _ in range(5):
        x = x.flip(0).contiguous()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9)
        assert_same(results(model, graph, x, graph=True), results(model, graph, x))
    assert len(launched) == (0 if name == "layer norm" else 6)  # which stays Python around torch's own kernels


def trained(optimiser: Callable[..., torch.optim.Optimizer], **options: Any) -> dict[str, Tensor]:
    """Parameters after some steps on batches that come again."""
    torch.manual_seed(0)
    model = weft.nn.NaryTreeLSTM(D_IN, 64, classes=5).to(CUDA)
    graphs = [binary_trees(12, seed) for seed in range(3)]
    rows = [torch.randn(graph.num_vertices, D_IN, device=CUDA) for graph in graphs]
    steps = optimiser(model.parameters(), 0.01)
    for epoch in range(4):
        for graph, x in zip(graphs, rows, strict=True):
            steps.zero_grad(set_to_none=epoch % 2 == 0)
            for part in (x, -x):  # gradients of two calls are added
                nn.functional.cross_entropy(model(graph, part, **options), torch.arange(len(x), device=CUDA) % 5).backward()
            steps.step()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
def test_training_ends_with_the_same_parameters(optimiser: Any, launched: list[int]) -> None:
    assert_same(trained(optimiser, graph=True), trained(optimiser))
    assert launched


def test_a_call_before_the_backward_pass_of_another(launched: list[int]) -> None:
    model, _, graph, x = case("tree-gru", 64)
    x = x.to(CUDA).requires_grad_()
    for _ in range(3):
        model(graph, x, graph=True).sum().backward()
    pairs = []
    for options in ({"graph": True}, {}):
        model.zero_grad()
        outs = [model(graph, scale * x, **options) for scale in (1.0, -2.0)]
        (outs[0] * outs[1]).sum().backward()
        pairs.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert_same(*pairs)


def test_a_graph_that_is_kept_is_walked_again(launched: list[int]) -> None:
    model, _, graph, x = case("lstm", 64)
    x = x.to(CUDA).requires_grad_()
    for _ in range(3):
        model(graph, x, graph=True).sum().backward()
    out, parameters = model(graph, x, graph=True).sum(), [*model.parameters()]
    before = len(launched)
    first = torch.autograd.grad(out, parameters, retain_graph=True)
    second = torch.autograd.grad(out, parameters)
    assert len(launched) == before + 1
    for a, b in zip(first, second, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_inference_that_comes_again(launched: list[int]) -> None:
    model, _, graph, x = case("n-ary tree-lstm", 64)
    other, x = binary_trees(12, 5), x.to(CUDA)
    with torch.no_grad():
        for structure in (graph, other, graph, other):
            for scale in (1.0, 0.5, -1.0, 2.0):
                rows = (scale * x[:1]).repeat(structure.num_vertices, 1)
                assert torch.equal(model(structure, rows, graph=True), model(structure, rows))
        for parameter in model.parameters():
            parameter.mul_(0.5)
        assert torch.equal(model(graph, x, graph=True), model(graph, x))
    assert len(launched) == 12


@pytest.mark.parametrize("name", chosen_parts.CASES)
def test_calls_that_return_some_rows(name: str, launched: list[int]) -> None:
    torch.manual_seed(0)
    model, call = chosen_parts.CASES[name](CUDA)
    chosen_parts.step(model, call)
    for _ in range(5):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9)
        assert_same(chosen_parts.step(model, call, graph=True), chosen_parts.step(model, call))
    assert len(launched) == 6


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_replay_never_waits_for_the_device(launched: list[int]) -> None:
    model, _, graph, x = case("n-ary tree-lstm", 64)
    x, cotangent = x.to(CUDA), torch.ones(graph.num_vertices, 5, device=CUDA)
    for _ in range(3):
        model(graph, x, graph=True).backward(cotangent)
    torch.cuda.synchronize()
    before = len(launched)
    try:
        torch.cuda.set_sync_debug_mode("error")  # whoever waits raises
        model(graph, x, graph=True).backward(cotangent)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(launched) == before + 2  # forward and back


def test_every_stream_has_captures_of_its_own(launched: list[int]) -> None:
    model, _, graph, x = case("tree-gru", 64)
    x, streams = x.to(CUDA), [torch.cuda.Stream() for _ in range(2)]
    expected = [results(model, graph, scale * x) for scale in (1.0, -1.0)]
    torch.cuda.synchronize()
    found = []
    for _ in range(8):
        for stream, scale in zip(streams, (1.0, -1.0), strict=True):
            with torch.cuda.stream(stream):
                found.append(results(model, graph, scale * x, graph=True))
    torch.cuda.synchronize()
    assert set(launched) == {stream.cuda_stream for stream in streams}
    for at, one in enumerate(found[4:]):
        assert_same(one, found[2 + at % 2])
        assert all(torch.allclose(one[name], tensor, atol=1e-5) for name, tensor in expected[at % 2].items())


def test_within_a_capture_of_the_callers_own(launched: list[int]) -> None:
    model, _, graph, x = case("lstm", 64)
    x, capturing = x.to(CUDA), torch.cuda.CUDAGraph()
    with torch.no_grad():
        for _ in range(3):
            expected = model(graph, x, graph=True)
        before = len(launched)
        with torch.cuda.graph(capturing):
            found = model(graph, x, graph=True)
        assert len(launched) == before
    capturing.replay()
    assert torch.equal(found, expected)


def test_a_failed_capture_leaves_nothing_behind(launched: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def waits() -> None:
        torch.cuda.current_stream().synchronize()  # not allowed in a capture

    with pytest.raises(RuntimeError):
        captured(CUDA, waits)
    with pytest.raises(ZeroDivisionError):
        captured(CUDA, lambda: 1 // 0)
    monkeypatch.setattr(replay, "captured", lambda device, work: captured(device, lambda: (waits(), work())[1]))
    model, _, graph, x = case("lstm", 64)
    for _ in range(4):
        found = results(model, graph, x.to(CUDA), graph=True)
    assert_same(found, results(model, graph, x.to(CUDA)))
    assert not launched
    monkeypatch.setattr(replay, "captured", captured)
    model = case("lstm", 64)[0]
    for _ in range(4):
        found = results(model, graph, x.to(CUDA), graph=True)
    assert_same(found, results(model, graph, x.to(CUDA)))
    assert launched


def test_only_some_captures_are_kept_and_go_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "MOST", 2)
    monkeypatch.setattr(replays, "PATIENCE", 2)

    def used() -> int:
        model = case("tree-gru", 32)[0]
        for seed in range(4):
            structure = parents(seed)
            rows = torch.randn(structure.num_vertices, D_IN, device=CUDA)
            for _ in range(4):
                found = results(model, structure, rows, graph=True)
            assert_same(found, results(model, structure, rows))
        assert replay._replays.held() == 2
        held = torch.cuda.memory_allocated()
        del model, found, rows
        gc.collect()
        assert replay._replays.held() == 0
        return held - torch.cuda.memory_allocated()

    used()
    before = torch.cuda.memory_allocated()
    assert used() > 0
    assert torch.cuda.memory_allocated() == before
