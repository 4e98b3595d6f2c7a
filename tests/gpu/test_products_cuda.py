"""On a GPU: products of rows that are taken from places, alone and as part of one call."""

from __future__ import annotations

import pytest
import torch

import weft.nn
from kernel_parts import fast_products, results
from onecall_parts import trees, watch
from weft.run.gpu import products
from weft.run.gpu.execution import GpuExecution

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
CUDA = torch.device("cuda", 0)
ROWS = 0, 1, 2, 63, 127, 1000, 5000
CLOSE = {torch.float32: 2e-3, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("inner, columns", [(8, 3), (304, 768), (64, 450)])
def test_the_kernel_multiplies_what_it_takes(dtype: torch.dtype, inner: int, columns: int) -> None:
    torch.manual_seed(0)
    a, weight = (torch.randn(rows, inner, device=CUDA).to(dtype) for rows in (6000, columns))
    for rows in ROWS:
        places = torch.randint(0, 6001, (rows,), dtype=torch.int32, device=CUDA)  # the last is not there
        taken = torch.cat([a, a.new_zeros(1, inner)])[places.long()]
        expected = taken.double() @ weight.double().T
        found = products.multiplied(a, places, weight, taken.new_full((rows, columns), torch.nan))
        assert torch.allclose(found.double(), expected, rtol=CLOSE[dtype], atol=CLOSE[dtype] * inner**0.5), rows
        with fast_products():
            assert torch.equal(products.product(taken, weight.t()), found), rows


@pytest.mark.parametrize("tile", products.TILES)
def test_all_tiles_do_the_same(tile: products.Tile) -> None:
    torch.manual_seed(0)
    a, weight = torch.randn(700, 300, device=CUDA), torch.randn(600, 300, device=CUDA)
    places, out = torch.randperm(700, device=CUDA).int(), torch.full((700, 600), torch.nan, device=CUDA)
    products.multiplier(a.dtype, tile, True, 300, 600).go(700, 700, *products.parts(300, 600), out, a, places, weight)
    expected = a.double()[places.long()] @ weight.double().T
    assert torch.allclose(out.double(), expected, rtol=2e-3, atol=2e-3 * 300**0.5)


@pytest.mark.parametrize("most", [products.MOST, 0])
def test_one_call_does_what_the_recipe_does(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever multiplies: from no row on the library, or up to many rows the kernel."""
    torch.manual_seed(0)
    monkeypatch.setattr(products, "MOST", most)
    ways, model = watch(monkeypatch), weft.nn.NaryTreeLSTM(8, 64).to(CUDA)
    with fast_products():
        for sizes in ((5, 9), (5, 9), (40, 2, 7), [30] * 40):
            graph = trees(*sizes)
            x = torch.randn(graph.num_vertices, 8, device=CUDA)
            found = results(model, graph, x, "triton")
            with monkeypatch.context() as recipes:
                recipes.setattr(GpuExecution, "_whole", lambda *given: None)
                expected = results(model, graph, x, "triton")
            for name, tensor in expected.items():
                assert torch.equal(found[name], tensor), name
    assert ways[-2:] == [True, True]
