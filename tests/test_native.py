"""Fused kernels: the functions they use, that they are used, and what happens where they cannot be."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.nn
from kernel_parts import poison_memory
from weft import cc
from weft.graph.tape import Rows, Value
from weft.run import spare
from weft.run.cpu import kernel, parallel, pointwise, walktext
from weft.run.cpu.formulas import PRELUDE
from weft.run.cpu.native import Native
from weft.run.cpu.rowtypes import NativeTypeText
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


def by_c(name: str, x: torch.Tensor) -> torch.Tensor:
    """A function of kernels, taken of each number."""
    assert COMPILER is not None
    loop = f"void each(long n, const real *x, real *y) {{ for (long i = 0; i < n; i++) y[i] = {name}_(x[i]); }}\n"
    function = cc.build(COMPILER, PRELUDE[x.dtype] + loop).each
    function.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    y = torch.empty_like(x)
    function(len(x), x.data_ptr(), y.data_ptr())
    return y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tanh_of_large_numbers_is_one_and_never_more(dtype: torch.dtype) -> None:
    large = torch.cat([torch.linspace(20, 1000, 5001, dtype=dtype), torch.tensor([1e30, torch.inf], dtype=dtype)])
    if dtype is torch.float32:
        large = torch.cat([torch.linspace(10, 20, 5001), large])
    assert torch.equal(by_c("tanh", large), torch.ones_like(large))
    assert torch.equal(by_c("tanh", -large), -torch.ones_like(large))
    assert float(by_c("tanh", torch.linspace(-20, 20, 100_001, dtype=dtype)).abs().max()) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_the_functions_of_kernels_are_exact_to_a_few_units_in_the_last_place(name: str, dtype: torch.dtype) -> None:
    special = torch.tensor([0.0, torch.nan, torch.inf, -torch.inf, 1e-8, -1e-8, 1e-30, 88.5, -88.5, 710.0, -710.0], dtype=dtype)
    x = torch.cat([torch.linspace(-40, 40, 200_001, dtype=dtype), torch.linspace(-1, 1, 200_001, dtype=dtype), special])
    y = by_c(name, x)
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
    monkeypatch.setattr(pointwise, "compiler", lambda: None)
    model, graph = Gated().double(), weft.Graph.chain(6)
    assert_equivalent(model, graph, torch.randn(6, 5, dtype=torch.float64), policies=["auto"])
    assert "kernel0(" not in sources(model)


def test_a_kernel_that_does_not_compile_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pointwise, walktext):
        monkeypatch.setattr(module, "kernel_text", lambda *args: "this is not C\n")
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


LATE = """
import concurrent.futures.thread, threading, time, torch
from weft.run.cpu import parallel

def work():
    while not concurrent.futures.thread._shutdown:
        time.sleep(0.01)
    rows = []
    parallel.over_rows(lambda first, last: rows.extend(range(first, last)), numbers=1)(parallel.WORTH * 3)
    print(sorted(rows) == list(range(parallel.WORTH * 3)))

torch.set_num_threads(2)
threading.Thread(target=work).start()
"""


def test_a_thread_goes_on_after_the_main_one_has_ended() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", LATE], env=environment, capture_output=True, text=True)
    assert found.stdout == "True\n", found.stderr


def test_an_interrupt_waits_for_the_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """They write into memory that is freed after it."""
    monkeypatch.setattr(parallel, "WORTH", 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    done: list[int] = []

    def kernel(first: int, last: int) -> None:
        if not first:
            raise KeyboardInterrupt
        time.sleep(0.1)
        done.append(first)

    with pytest.raises(KeyboardInterrupt):
        parallel.over_rows(kernel, numbers=1)(10)
    assert done == [5]


def test_inputs_of_any_layout_are_read_right() -> None:
    model, graph = Gated().double(), weft.Graph.from_parents([2, 2, 3, -1])
    base = torch.randn(5, 4, dtype=torch.float64)
    for x in (base.t(), base.t().contiguous().repeat(1, 2)[:, ::2], base[:, :1].t().expand(4, 5)):
        expected = model(graph, x, backend="reference")
        for got, wanted in zip(model(graph, x), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


class Pair(weft.VertexFunction):
    """Slots, of which one state is only read number by number: kernels find it through the index."""

    def __init__(self, d: int = 5, push: bool = True, rate: float = 0.0) -> None:
        super().__init__(state={"h": (d,), "c": (d,)})
        self.w, self.x, self.push = nn.Linear(2 * d, 4 * d), nn.Linear(3, d), push
        self.drop = nn.Dropout(rate)

    def forward(self, v: Any) -> None:
        left, right = v.gather(0), v.gather(1)
        i, f, g, o = self.w(torch.cat([left["h"], right["h"]])).chunk(4)
        c = i.sigmoid() * g.tanh() + f.sigmoid() * (left["c"] - right["c"]) + self.x(v.pull())
        h = self.drop(o.sigmoid() * c.tanh())
        v.scatter(h=h, c=c)
        v.push(h if self.push else c * 2)


def shapes() -> dict[str, weft.Graph]:
    """No vertex, one, two, a tree of 63, empty slots, and one state read by several."""
    return {
        "none": weft.Graph([]),
        "one": weft.Graph([[]]),
        "two": weft.Graph([[], [0]]),
        "63": weft.Graph.full_binary_tree(32),
        "holes": weft.Graph([[-1, -1], [-1, 0], [0, -1], [1, 2]]),
        "shared": weft.Graph([[], [0, 0], [0, 1], [1, 2], [2, 0]]),
        "grid": weft.Graph.grid(4, 5),
    }


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory with unknown contents holds NaN, and a little of it is kept for the next time."""
    poison_memory(monkeypatch)
    monkeypatch.setattr(spare, "LEAST", 1)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("push", [True, False])
@pytest.mark.parametrize("shape", shapes())
def test_states_are_gathered_and_gradients_collected_inside_kernels(shape: str, push: bool) -> None:
    graph, model = shapes()[shape], Pair(push=push).double()
    x = torch.randn(graph.num_vertices, 3, dtype=torch.float64)
    for _ in range(2):
        assert_equivalent(model, graph, x, policies=["auto"])
    assert "rows_of_slots_c" in sources(model) or graph.num_vertices <= 2  # no state is read by one that is read


@pytest.mark.parametrize("d", [1, 2, 7, 8, 15, 16, 17, 33])
def test_rows_of_any_width_are_computed_right(d: int) -> None:
    model, graph = Pair(d).double(), weft.Graph.full_binary_tree(9)
    assert_equivalent(model, graph, torch.randn(graph.num_vertices, 3, dtype=torch.float64), policies=["auto"])
    single, x = Pair(d), torch.randn(graph.num_vertices, 3)
    torch.testing.assert_close(single(graph, x), single(graph, x, backend="reference"), rtol=1e-5, atol=1e-5)


def test_the_same_call_gives_the_same_bits_with_dropout_too() -> None:
    model, graph = Pair(rate=0.4), weft.Graph.batch([random_structure(seed, "tree", size=20) for seed in range(5)])
    x = torch.randn(graph.num_vertices, 3)

    def results() -> list[torch.Tensor]:
        torch.manual_seed(3)
        model.zero_grad()
        out = model(graph, x)
        out.square().sum().backward()
        return [out.detach(), *(parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None)]

    first, second = results(), results()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert bool((first[0] == 0).any()) and not bool((first[0] == 0).all())


def test_other_precisions_run_as_torch_calls() -> None:
    model, graph = Pair().bfloat16(), weft.Graph.full_binary_tree(4)
    x = torch.randn(graph.num_vertices, 3, dtype=torch.bfloat16)
    torch.testing.assert_close(model(graph, x), model(graph, x, backend="reference"), rtol=0.05, atol=0.05)
    assert "kernel0(" not in sources(model)


def test_rows_that_are_cut_too_often_run_as_torch_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "MOST_SEGMENTS", 3)
    model, graph = Pair().double(), weft.Graph.full_binary_tree(4)
    assert_equivalent(model, graph, torch.randn(graph.num_vertices, 3, dtype=torch.float64), policies=["auto"])
    assert "rows_of_slots_c" not in sources(model)


def joins(x: Tensor) -> Tensor:
    return torch.cat([x, x * 2]).tanh()


def reads_one_number_again(x: Tensor) -> Tensor:
    y = x + 1
    return (y + y[1]).sigmoid()


@pytest.mark.parametrize("width", [50, 100_000])
@pytest.mark.parametrize("fn", [joins, reads_one_number_again])
def test_wide_rows_are_not_put_on_the_stack(fn: Any, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    make = Native.__init__

    def keep(self: Native, path: str, head: str, text: str, arguments: Any) -> None:
        texts.append(text)
        make(self, path, head, text, arguments)

    monkeypatch.setattr(Native, "__init__", keep)
    x = torch.randn(3, width, dtype=torch.float64, requires_grad=True)
    assert_equivalent(weft.cell(fn), x, policies=["auto"])
    sizes = [[8 * int(size) for size in re.findall(r"real r\d+\[(\d+)\]", text)] for text in texts]
    assert any(map(sum, sizes)) == (width == 50)


def test_kernels_of_one_function_share_the_room_on_the_stack() -> None:
    stack = kernel.Stack(left=200)
    row = Value("row", None, shape=(Rows("n"), 20), dtype=torch.float64)
    assert stack.take(row) and stack.left == 8 and not stack.take(row)


class HandsOn(weft.VertexFunction):
    """The gradient of what is fed is that of the state as it is: it leaves the engine."""

    def __init__(self) -> None:
        super().__init__(state={"h": (4,)})
        self.w = nn.Linear(4, 4)

    def forward(self, v: Any) -> None:
        h = v.pull() + self.w(v.gather().sum("h")).tanh()
        v.scatter(h=h)
        v.push(h)


@pytest.mark.usefixtures("poisoned")
def test_memory_that_left_the_engine_is_not_used_again() -> None:
    model, graph = HandsOn().double(), weft.Graph.batch([random_structure(seed, "tree", size=9) for seed in range(3)])
    x = torch.randn(graph.num_vertices, 4, dtype=torch.float64, requires_grad=True)
    weights = [torch.randn(graph.num_vertices, 4, dtype=torch.float64) for _ in range(3)]
    kept = [torch.autograd.grad((model(graph, x) * weight).sum(), [x, *model.parameters()]) for weight in weights]
    for weight, gradients in zip(weights, kept, strict=True):
        expected = torch.autograd.grad((model(graph, x, backend="reference") * weight).sum(), [x, *model.parameters()])
        for got, wanted in zip(gradients, expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.usefixtures("poisoned")
def test_memory_is_shared_between_inference_and_other_modes() -> None:
    model, graph = Pair(), weft.Graph.full_binary_tree(6)
    x = torch.randn(graph.num_vertices, 3)
    with torch.inference_mode():
        expected = model(graph, x).clone()
    with torch.no_grad():
        assert torch.equal(model(graph, x), expected)
    model(graph, x).sum().backward()
    with torch.inference_mode():
        assert torch.equal(model(graph, x), expected)


def test_spare_memory_is_handed_out_once_and_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare, "LEAST", 64)
    monkeypatch.setattr(spare, "MOST", 1024)
    memory = spare.Spare()
    first = memory.take((4, 8), torch.float32)
    memory.give_back([first], [])
    again, other = memory.take((30,), torch.float32), memory.take((30,), torch.float32)
    assert again.data_ptr() == first.data_ptr() != other.data_ptr()
    memory.give_back([again, other], [other[3:]])
    assert memory.take((30,), torch.float32).data_ptr() == first.data_ptr()
    assert memory.take((30,), torch.float32).data_ptr() != other.data_ptr()
    memory.give_back([torch.empty(100), torch.empty(110), torch.empty(120)], [])
    assert sum(storage.nbytes() for storage in memory._kept) <= 1024


def test_what_is_only_handed_on_goes_straight_to_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    trees = [weft.Graph.full_binary_tree(n, types=[0] * n + [1] * (n - 1)) for n in (8, 4)]
    model, graph = weft.nn.TreeFC(6), weft.Graph.batch(trees)
    x = torch.randn(graph.num_vertices, 6)
    straight: list[str] = []
    feed_into = NativeTypeText.feed_into
    monkeypatch.setattr(NativeTypeText, "feed_into", lambda self, *args: (straight.append(args[1]), feed_into(self, *args))[1])
    with torch.no_grad():
        for _ in range(3):
            model(graph, x)
    assert straight
    assert_equivalent(model, graph, x.requires_grad_())
    with torch.no_grad():
        assert torch.allclose(model(graph, 2 * x), model(graph, 2 * x, backend="reference"), atol=1e-6)


@pytest.mark.parametrize("policy", ["depth", "agenda"])
def test_a_view_that_is_the_same_for_every_step_is_given_as_a_tensor_to_whoever_copies_it(policy: str) -> None:
    torch.manual_seed(0)
    linear, scale, weight = nn.Linear(3, 3), nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))

    def fn(row: Tensor) -> tuple[Tensor, ...]:
        h, zeros = torch.tanh(linear(row)) * scale, torch.zeros(2, 3)
        both = zeros.view(2, 3)
        both[0], both[1] = both[1].clone(), both[0].clone()
        return both[:], (weight * h).contiguous(), h, zeros.sum()

    assert_equivalent(fn, torch.randn(3, 3), policies=[policy], backends=["auto"])
