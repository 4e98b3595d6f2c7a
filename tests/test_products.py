"""Products of rows that are taken from places: the kernel beside what it stands for, and its part in one call."""

from __future__ import annotations

from threading import Thread

import pytest
import torch

import weft
import weft.nn
from cpu_driver import Driver, install
from kernel_parts import NEEDS_INTERPRETER, fast_products, poison_memory
from onecall_parts import compare, trees, watch
from weft.run.gpu import products

pytestmark = NEEDS_INTERPRETER
CPU = torch.device("cpu")
ROWS = 0, 1, 2, 63, 127, 1000


def naive(a: torch.Tensor, places: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    there = torch.cat([a, a.new_zeros(1, a.shape[1])])
    return there[places.long().clamp(max=len(a))] @ weight.T


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("inner, columns", [(4, 3), (300, 96), (36, 130)])
def test_the_kernel_multiplies_what_it_takes(rows: int, inner: int, columns: int) -> None:
    torch.manual_seed(0)
    a, weight, out = torch.randn(37, inner), torch.randn(columns, inner), torch.full((rows, columns), torch.nan)
    places = torch.randint(0, 40, (rows,), dtype=torch.int32)  # some are not there
    expected = naive(a, places, weight)
    torch.testing.assert_close(products.multiplied(a, places, weight, out), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", ROWS)
def test_rows_in_order(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    poison_memory(monkeypatch)
    torch.manual_seed(0)
    a, weight, out = torch.randn(rows, 36), torch.randn(130, 36), torch.full((rows, 130), torch.nan)
    with fast_products():
        torch.testing.assert_close(products.product(a, weight.t()), a @ weight.T, rtol=1e-5, atol=1e-5)
        assert products.product(a, weight.t(), out) is out
    torch.testing.assert_close(out, a @ weight.T, rtol=1e-5, atol=1e-5)


def test_other_products_are_the_library_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact ones, large ones, and those of matrices that lie otherwise."""
    monkeypatch.setattr(products, "multiplied", lambda *given: pytest.fail("ours"))
    torch.manual_seed(0)
    a, weight = torch.randn(9, 8), torch.randn(5, 8)
    assert torch.equal(products.product(a, weight.t()), a @ weight.T)
    with fast_products():
        for one, other in ((a.t().contiguous().t(), weight.t()), (a, weight.t().contiguous()), (a[:, :3], weight.t()[:3])):
            torch.testing.assert_close(products.product(one, other), one @ other)
        out = torch.empty(5, 9).t()
        torch.testing.assert_close(products.product(a, weight.t(), out), a @ weight.T)
        monkeypatch.setattr(products, "MOST", 9 * 5 * 8)
        torch.testing.assert_close(products.product(a, weight.t()), a @ weight.T)


@pytest.mark.parametrize("tile", products.TILES)
@pytest.mark.parametrize("taken", [True, False])
def test_all_tiles_do_the_same(tile: products.Tile, taken: bool) -> None:
    torch.manual_seed(0)
    a, weight, places = torch.randn(180, 40), torch.randn(300, 40), torch.arange(179, -1, -1, dtype=torch.int32)
    out = torch.full((180, 300), torch.nan)
    products.multiplier(a.dtype, tile, taken, 40, 300).go(180, 180, *products.parts(40, 300), out, a, places, weight)
    torch.testing.assert_close(out, (a.flip(0) if taken else a) @ weight.T, rtol=1e-5, atol=1e-5)


def test_ranges_of_rows_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (1, 64, 450, 768, 100_000):
        for most in (0, 1, 100, 10_000):
            monkeypatch.setattr(products, "MOST", most * columns * 8)
            found = products.ranges(8, columns, CPU)
            bounds = [least for least, _, _ in found] + [most] * bool(found)
            assert bounds == sorted(set(bounds)) and (bounds or [0])[0] == 0
            assert [end for _, end, _ in found] == bounds[1:]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    poison_memory(monkeypatch)
    return install(monkeypatch)


def test_rows_are_taken_by_the_product(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves' inputs lie among those of others. From some number of rows on, the library multiplies."""
    monkeypatch.setattr(products, "MOST", 4 * 12 * 20)  # rows of a product of this size
    torch.manual_seed(0)
    ways = watch(monkeypatch)
    model = weft.nn.NaryTreeLSTM(4, 4)
    many, few = trees(9, 11), trees(8, 11)
    with fast_products():
        compare(model, [few, few, trees(3, 7), many, trees(9, 30)], CPU, monkeypatch, width=4)
        assert ways[-2:] == [True, True]
        counts: list[tuple[int, int]] = []
        with torch.no_grad():
            model(few, torch.randn(few.num_vertices, 4), backend="triton")
            for graph in (few, many):
                before = driver.products, driver.launches
                model(graph, torch.randn(graph.num_vertices, 4), backend="triton")
                counts.append((driver.products - before[0], driver.launches - before[1]))
    assert counts[0] == (0, counts[1][1]) and counts[1][0] == 1  # one launch in the place of another


def test_a_thread_is_known_to_the_driver_without_the_library(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all products are ours, nobody asks for the library's handle."""
    torch.manual_seed(0)
    ways, model, graph, found = watch(monkeypatch), weft.nn.NaryTreeLSTM(4, 4), trees(4, 5), list[torch.Tensor]()
    x = torch.randn(graph.num_vertices, 4)
    with fast_products(), torch.no_grad():
        for _ in range(2):
            expected = model(graph, x, backend="triton")
        assert not driver.products

        def infer() -> None:
            with torch.no_grad():
                found.append(model(graph, x, backend="triton"))

        thread = Thread(target=infer)
        thread.start()
        thread.join()
    assert ways == [True, True] and torch.equal(found[0], expected)


def test_exact_products_are_the_library_s(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "multiplier", lambda *given: pytest.fail("ours"))
    torch.manual_seed(0)
    model = weft.nn.NaryTreeLSTM(4, 4)
    compare(model, [trees(4, 5), trees(4, 5)], CPU, monkeypatch, width=4)
    assert driver.products
