"""Sweeps and pieces as single C functions, and recipes that call them: they are used, and the numbers are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import weft
import weft.nn
from kernel_parts import recipes_of
from weft import cc
from weft.run.code import CellCode
from weft.run.cpu.walk import Walk, dense
from weft.run.cpu.walktext import LEAST_ROWS, MANY_ROWS
from weft.testing import assert_equivalent, random_structure

D = 6


@pytest.fixture(autouse=True)
def needs_a_compiler(one_thread: None) -> None:
    assert cc.compiler() is not None, "these tests need a C compiler: cc, gcc or clang"


def trees(kind: str = "tree", many: int = 4) -> weft.Graph:
    return weft.Graph.batch([random_structure(seed, kind, size=30) for seed in range(many)])


def codes_of(model: weft.VertexFunction) -> list[CellCode]:
    cells = [cell for kept in model.__dict__["_weft"].cells.values() for cell in kept]
    return [code for cell in cells for code in cell.codes.values()]


def walks_of(model: weft.VertexFunction, stage: str) -> list[Walk]:
    return [code.codes[stage].walk for code in codes_of(model) if stage in code.codes and code.codes[stage].walk is not None]


class Summing(weft.VertexFunction):
    """A product over every edge, sums of children, a matrix that is used as it lies and one that is turned."""

    def __init__(self) -> None:
        super().__init__({"h": (D,)})
        self.x, self.edge, self.right = nn.Linear(D, D), nn.Linear(D, D), nn.Parameter(torch.randn(D, D))

    def forward(self, v: Any) -> None:
        mapped = v.gather().map(lambda child: torch.tanh(self.edge(child["h"])))
        h = torch.tanh(self.x(v.pull()) + mapped.sum() + v.gather().sum("h") @ self.right)
        v.scatter(h=h)
        v.push(h * 2)


@pytest.mark.parametrize("model", [weft.nn.ChildSumTreeLSTM(D, D), Summing()], ids=["child sum", "summing"])
def test_sweeps_are_walks_and_later_calls_go_by_a_recipe(model: weft.VertexFunction) -> None:
    graph = trees()
    x = torch.randn(graph.num_vertices, D)
    with torch.no_grad():
        first, second = model(graph, x), model(graph, x)
        other = trees(many=3)
        third = model(other, x[: other.num_vertices])
        expected = model(other, x[: other.num_vertices], backend="reference")
    assert len(walks_of(model, "during")) == 1 and len(recipes_of(model)) == 1
    assert "jobs" in recipes_of(model)[0].source
    assert torch.equal(first, second)
    torch.testing.assert_close(third, expected)
    assert_equivalent(model, graph, x)


@pytest.mark.parametrize(("width", "large"), [(32, False), (600, True)])
def test_rows_go_through_a_large_matrix_many_at_a_time(width: int, large: bool) -> None:
    model = weft.nn.TreeFC(width)
    with torch.no_grad():
        model(weft.Graph.full_binary_tree(4, types=[0] * 4 + [1] * 3), torch.randn(7, width))
    (walk,) = walks_of(model, "during")
    assert walk.chunk == MANY_ROWS if large else LEAST_ROWS <= walk.chunk != MANY_ROWS


def test_a_binary_tree_lstm_walks_in_both_directions() -> None:
    graph, model = trees("binary tree"), Binary()
    x = torch.randn(graph.num_vertices, D)
    model(graph, x).square().sum().backward()
    assert len(walks_of(model, "during")) == 1
    backward = [codes["back"] for code in codes_of(model) for _, codes in code._by_cotangents.values() if "back" in codes]
    assert any(code.walk is not None for code in backward)
    assert_equivalent(model, graph, x)


class Binary(weft.VertexFunction):
    def __init__(self) -> None:
        super().__init__({"h": (D,), "c": (D,)})
        self.x, self.hidden = nn.Linear(D, 5 * D), nn.Linear(2 * D, 5 * D, bias=False)

    def forward(self, v: Any) -> None:
        left, right = v.gather(0), v.gather(1)
        i, o, u, f, g = (self.x(v.pull()) + self.hidden(torch.cat([left["h"], right["h"]]))).chunk(5)
        c = i.sigmoid() * u.tanh() + f.sigmoid() * left["c"] + g.sigmoid() * right["c"]
        v.scatter(h=o.sigmoid() * c.tanh(), c=c)
        v.push(c)


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_who_watches_sees_every_product() -> None:
    graph, model = trees("binary tree"), Binary()
    x = torch.randn(graph.num_vertices, D)
    levels = int(graph.depth.max())
    with torch.no_grad():
        unseen = [model(graph, x) for _ in range(2)][1]
        with Seen() as seen:
            watched = model(graph, x)
        with FlopCounterMode(display=False) as counter:
            model(graph, x)
    assert seen.names.count("mm") >= levels
    inner = graph.num_vertices - len(graph.leaves)
    assert counter.get_total_flops() >= 2 * (graph.num_vertices * D * 5 * D + inner * 2 * D * 5 * D)
    torch.testing.assert_close(watched, unseen)


def test_wide_steps_are_shared_among_threads() -> None:
    graph, model = trees("star", 8), Summing()
    x = torch.randn(graph.num_vertices, D)
    with torch.no_grad():
        alone = [model(graph, x) for _ in range(2)][1]
        torch.set_num_threads(2)
        together = [model(graph, x) for _ in range(2)][1]
    torch.testing.assert_close(alone, together)


def test_a_weight_may_lie_in_memory_in_any_way() -> None:
    graph, model = trees(), Summing()
    x = torch.randn(graph.num_vertices, D)
    layouts: list[Callable[[Tensor], Tensor]] = [
        lambda w: w.t().contiguous().t(),
        lambda w: torch.zeros(D, 3 * D)[:, ::3].copy_(w),
        lambda w: torch.zeros(2 * D, 2 * D)[:D, :D].copy_(w),
        lambda w: w[:, :1].expand(D, D),
    ]
    with torch.no_grad():
        for layout in layouts:
            for _ in range(2):
                model.right.data, model.edge.weight.data = layout(model.right.data), layout(model.edge.weight.data)
                torch.testing.assert_close(model(graph, x), model(graph, x, backend="reference"))


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1), (3, 4)])
def test_how_a_matrix_lies(shape: tuple[int, int]) -> None:
    rows, columns = shape
    given = torch.randn(rows, columns)
    kinds: list[Tensor] = [
        given,
        given.t().contiguous().t(),
        torch.zeros(rows, columns + 2)[:, :columns].copy_(given),
        torch.zeros(rows, 2 * columns)[:, ::2].copy_(given),
        given[:1].expand(rows, columns),
    ]
    for matrix in kinds:
        found, turned, apart = dense(matrix)
        flat = torch.as_strided(found, shape, (1, apart) if turned else (apart, 1))
        assert torch.equal(flat, matrix)


def test_more_rows_than_go_through_at_a_time() -> None:
    model = Summing()
    graph = weft.Graph.batch([weft.Graph([[], [0]])] * 3000)
    x = torch.randn(graph.num_vertices, D)
    with torch.no_grad():
        torch.testing.assert_close([model(graph, x) for _ in range(2)][1], model(graph, x, backend="eager"))


def test_numbers_that_are_not_finite_go_through() -> None:
    graph, model = trees(), Summing()
    x = torch.randn(graph.num_vertices, D)
    x[3, 0], x[5, 1] = torch.nan, torch.inf
    with torch.no_grad():
        found = [model(graph, x) for _ in range(2)][1]
        torch.testing.assert_close(found, model(graph, x, backend="reference"), equal_nan=True)
    assert bool(found.isnan().any())
