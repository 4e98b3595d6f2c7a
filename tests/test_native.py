"""Fused kernels: the functions they use, that they are used, and what happens where they cannot be."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft import cc
from weft.run import native, parallel
from weft.run.ctext import PRELUDE
from weft.testing import assert_equivalent, random_structure

COMPILER = cc.compiler()


@pytest.fixture(autouse=True)
def needs_a_compiler() -> None:
    assert COMPILER is not None, "these tests need a C compiler: cc, gcc or clang"


class Gated(weft.VertexFunction):
    """A little of everything that fuses: gates, slices, scalars, rows and row-less vectors."""

    def __init__(self, d: int = 5) -> None:
        super().__init__(state={"h": (d,), "c": (d,)})
        self.w, self.u, self.shift = nn.Linear(d, 3 * d), nn.Linear(d, 3 * d), nn.Parameter(torch.randn(d))

    def forward(self, v: Any) -> None:
        i, f, g = (self.w(v.pull()) + self.u(v.gather().sum("h"))).chunk(3)
        c = i.sigmoid() * g.tanh() + f.sigmoid() * v.gather().sum("c") - self.shift * 0.25
        h = torch.relu(c) * c[:1] + torch.cat([c[2:], -c[:2]]) / 3
        v.scatter(h=h, c=c)
        v.push((h, c.tanh()))


def sources(model: weft.VertexFunction) -> str:
    cells = [cell for kept in model.__dict__["_weft"].cells.values() for cell in kept]
    return "".join(piece.source for cell in cells for code in cell.codes.values() for piece in code.codes.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_the_functions_of_kernels_are_exact_to_a_few_units_in_the_last_place(name: str, dtype: torch.dtype) -> None:
    text = (
        PRELUDE[dtype] + f"void each(long n, const real *x, real *y) {{ for (long i = 0; i < n; i++) y[i] = {name}_(x[i]); }}\n"
    )
    assert COMPILER is not None
    function = cc.build(COMPILER, text).each
    function.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    special = torch.tensor([0.0, torch.nan, torch.inf, -torch.inf, 1e-8, -1e-8, 1e-30, 88.5, -88.5, 710.0, -710.0], dtype=dtype)
    x = torch.cat([torch.linspace(-40, 40, 200_001, dtype=dtype), torch.linspace(-1, 1, 200_001, dtype=dtype), special])
    y = torch.empty_like(x)
    function(len(x), x.data_ptr(), y.data_ptr())
    expected = getattr(torch, name)(x.double()).to(dtype)
    assert torch.equal(y.isnan(), expected.isnan()) and bool(y.isnan().any())
    # Below the normal numbers torch may give zero where a kernel gives a denormal number.
    normal = expected.abs() > 2 * torch.finfo(dtype).tiny
    error = (y[normal] - expected[normal]).abs() / expected[normal].abs()
    assert float(error.max()) < 4 * torch.finfo(dtype).eps
    assert float(y[~normal & ~y.isnan()].abs().max()) <= 2 * torch.finfo(dtype).tiny


def test_pointwise_operations_run_in_kernels_and_agree() -> None:
    model = Gated().double()
    graph = weft.Graph.batch([random_structure(seed, "tree", size=12) for seed in range(4)])
    assert_equivalent(model, graph, torch.randn(graph.num_vertices, 5, dtype=torch.float64), policies=["auto"])
    assert "kernel0(" in sources(model)


def test_without_a_compiler_the_same_pieces_run_as_torch_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "compiler", lambda: None)
    model, graph = Gated().double(), weft.Graph.chain(6)
    assert_equivalent(model, graph, torch.randn(6, 5, dtype=torch.float64), policies=["auto"])
    assert "kernel0(" not in sources(model)


def test_a_kernel_that_does_not_compile_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "kernel_text", lambda *args: "this is not C\n")
    model, graph = Gated().double(), weft.Graph.chain(6)
    assert_equivalent(model, graph, torch.randn(6, 5, dtype=torch.float64), policies=["auto"])
    assert "kernel0(" not in sources(model)


def test_rows_are_shared_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "WORTH", 16)
    calls: list[tuple[int, int]] = []
    shared = parallel.over_rows(lambda first, last, *pointers: calls.append((first, last)), numbers=4)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for n in (0, 1, 2, 3, 7, 64, 1001):
            calls.clear()
            shared(n)
            covered = sorted(row for first, last in calls for row in range(first, last))
            assert covered == list(range(n))
        assert len(calls) == 2
        model, graph = Gated().double(), weft.Graph.batch([weft.Graph.full_binary_tree(8)] * 40)
        assert_equivalent(model, graph, torch.randn(graph.num_vertices, 5, dtype=torch.float64), policies=["auto"])
    finally:
        torch.set_num_threads(threads)


def test_inputs_of_any_layout_are_read_right() -> None:
    model, graph = Gated().double(), weft.Graph.from_parents([2, 2, 3, -1])
    base = torch.randn(5, 4, dtype=torch.float64)
    for x in (base.t(), base.t().contiguous().repeat(1, 2)[:, ::2], base[:, :1].t().expand(4, 5)):
        expected = model(graph, x, backend="reference")
        for got, wanted in zip(model(graph, x), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
