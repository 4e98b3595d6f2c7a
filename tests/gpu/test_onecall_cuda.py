"""On a GPU: recipes as one call of C, beside the same recipes in Python."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import pytest
import torch

import chosen_parts
import weft
import weft.nn
from kernel_parts import results
from onecall_parts import CASES, compare, trees, watch
from weft.run.gpu.execution import GpuExecution

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize("case", CASES)
def test_one_call_does_what_the_recipe_does(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    ways = watch(monkeypatch)
    make, graphs = CASES[case]
    compare(make().to(CUDA), [graphs[0], *graphs], CUDA, monkeypatch)
    assert ways[-2:] == [True, True]


@pytest.fixture(params=["highest", "high"])
def precision(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("hidden", [64, 150])
def test_the_same_bits(hidden: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is given the same products, torch's settings included."""
    torch.manual_seed(0)
    ways = watch(monkeypatch)
    model = weft.nn.NaryTreeLSTM(3, hidden).to(CUDA)
    for sizes in ((5, 9, 30), (5, 9, 30), (40, 2, 7, 7), (2, 3, 90)):
        graph = trees(*sizes)
        x = torch.randn(graph.num_vertices, 3, device=CUDA)
        found = results(model, graph, x, "triton")
        with monkeypatch.context() as recipes:
            recipes.setattr(GpuExecution, "_whole", lambda *given: None)
            expected = results(model, graph, x, "triton")
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor), name
    assert ways[-2:] == [True, True]


@pytest.mark.parametrize("case", chosen_parts.CASES)
def test_calls_that_return_some_rows(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, call = chosen_parts.CASES[case](CUDA)
    expected, ways = chosen_parts.step(model, call, backend="reference"), watch(monkeypatch)
    found = [chosen_parts.step(model, call, backend="triton") for _ in range(4)]
    for one in found:
        chosen_parts.assert_close(one, expected)
    assert ways[-2:] == [True, True]
    assert all(torch.equal(found[-1][name], tensor) for name, tensor in found[-2].items())


def test_brain_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    ways = watch(monkeypatch)
    model, graph = weft.nn.NaryTreeLSTM(3, 64).to(CUDA, torch.bfloat16), trees(5, 9, 30)
    x = torch.randn(graph.num_vertices, 3, device=CUDA, dtype=torch.bfloat16)
    for _ in range(3):
        found = results(model, graph, x, "triton")
    expected = results(model.float(), graph, x.float(), "eager")
    assert ways[-2:] == [True, True]
    for name, tensor in expected.items():
        assert torch.allclose(found[name].float(), tensor, rtol=0.1, atol=0.05 * float(tensor.abs().max())), name


def test_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is called in threads that have not met it yet."""
    torch.manual_seed(0)
    ways = watch(monkeypatch)
    model, graph = weft.nn.NaryTreeLSTM(3, 64).to(CUDA), trees(5, 9, 30)
    x = torch.randn(graph.num_vertices, 3, device=CUDA)
    for _ in range(2):
        expected = results(model, graph, x, "triton")
    found: list[dict[str, torch.Tensor]] = []
    thread = Thread(target=lambda: found.append(results(model, weft.Graph.batch([graph]), x, "triton")))
    thread.start()
    thread.join()
    assert ways[-2:] == [True, True]
    assert all(torch.equal(found[0][name], tensor) for name, tensor in expected.items())
