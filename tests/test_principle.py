"""Only what is on a cycle runs level by level: every matrix product of a training step, by shape, and nothing else.

Products are written (m, k, n) for [m, k] @ [k, n]. Of a recurrent weight there is one product per level forward and one per
level backward, and one for its gradient over all rows; every other weight has one product forward and one for its gradient, for
each type of vertex that uses it (vertices without children are a type of their own).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import weft
import weft.nn
from weft.testing import random_structure

torch.set_num_threads(1)

ROOT = Path(__file__).parents[1]
D_IN, D, CLASSES = 7, 5, 3
Products = Counter[tuple[int, int, int]]


class Counting(TorchDispatchMode):
    """Notes the shape of every matrix product; other operations that multiply matrices are refused."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Products = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.rstrip("_")
        if name in ("mm", "addmm"):
            left, right = args[-2:]
            self.found[left.shape[0], left.shape[1], right.shape[1]] += 1
        assert name not in ("bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "linear", "matmul", "einsum"), name
        return func(*args, **(kwargs or {}))


def products_of(step: Callable[[], Any]) -> Products:
    """The products of a step whose structure and cells are known already."""
    step()
    with Counting() as counting:
        step()
    return counting.found


def trees(count: int = 24) -> weft.Graph:
    """Random binary trees, leaves of type 0 and inner vertices of type 1."""
    graphs = [random_structure(seed, "binary tree", size=50) for seed in range(count)]
    return weft.Graph.batch([weft.Graph((g.children, g.offsets), types=(np.diff(g.offsets) > 0).astype(int)) for g in graphs])


def level_sizes(graph: weft.Graph) -> list[int]:
    """How many vertices there are at each level above the leaves."""
    sizes: list[int] = np.bincount(np.asarray(graph.depth))[1:].tolist()
    return sizes


def once(rows: int, d_in: int, d_out: int, *, is_input: bool = True) -> Products:
    """A weight outside the recurrence: forward, its gradient, and the gradient of its rows if they are not just given."""
    found = Counter({(rows, d_in, d_out): 1})
    found[d_out, rows, d_in] += 1
    if not is_input:
        found[rows, d_out, d_in] += 1
    return found


def recurrent(sizes: list[int], d_in: int, d_out: int) -> Products:
    """A recurrent weight: at each level once forward and once backward, and its gradient once over all rows."""
    found: Products = Counter()
    for rows in sizes:
        found[rows, d_in, d_out] += 1
        found[rows, d_out, d_in] += 1
    found[d_out, sum(sizes), d_in] += 1
    return found


@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_a_step_of_a_tree_lstm_with_a_classifier(backend: str) -> None:
    graph, model = trees(), weft.nn.NaryTreeLSTM(D_IN, D, classes=CLASSES)
    x, y = torch.randn(graph.num_vertices, D_IN), torch.randint(0, CLASSES, (graph.num_vertices,))
    leaves, sizes = len(graph.leaves), level_sizes(graph)

    def step() -> None:
        F.cross_entropy(model(graph, x, backend=backend), y).backward()

    found = products_of(step)
    expected = recurrent(sizes, 2 * D, 5 * D) + once(leaves, D_IN, 3 * D)
    expected += once(leaves, D, CLASSES, is_input=False) + once(sum(sizes), D, CLASSES, is_input=False)
    assert found == expected
    assert found.total() == 2 * len(sizes) + 1 + 2 + 2 * 3
    assert len(sizes) > 8


def of_zeros(d: int, out: int) -> Counter[tuple[int, int, int]]:
    """What vertices without children make of a recurrent weight: one row of zeros times it, for all of them, and its gradient.

    It is zeros unless the weight is not finite; then NaN shows at these vertices, as it does one by one.
    """
    return Counter({(1, d, out): 1, (out, 1, d): 1})


@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_a_step_of_a_child_sum_tree_lstm(backend: str) -> None:
    graph = weft.Graph.batch([random_structure(seed, "tree", size=40) for seed in range(24)])
    model, x = weft.nn.ChildSumTreeLSTM(D_IN, D), torch.randn(graph.num_vertices, D_IN)
    leaves, sizes = len(graph.leaves), level_sizes(graph)
    above = np.repeat(np.asarray(graph.depth), np.diff(graph.offsets))
    edges = np.bincount(above)[1:].tolist()

    def step() -> None:
        model(graph, x, backend=backend).square().sum().backward()

    expected = recurrent(sizes, D, 3 * D) + recurrent(edges, D, D)
    expected += once(leaves, D_IN, 3 * D) + once(sum(sizes), D_IN, 3 * D) + once(sum(sizes), D_IN, D)
    expected += of_zeros(D, 3 * D)
    assert products_of(step) == expected
    assert sum(edges) == graph.num_edges and len(sizes) > 8


@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_a_step_of_an_lstm_over_chains_of_many_lengths(backend: str) -> None:
    lengths = [3, 9, 5, 9, 1, 7]
    graph = weft.Graph.batch([weft.Graph.chain(length) for length in lengths])
    model, x = weft.nn.LSTM(D_IN, D), torch.randn(graph.num_vertices, D_IN)
    sizes = level_sizes(graph)

    def step() -> None:
        model(graph, x, backend=backend).square().sum().backward()

    expected = recurrent(sizes, D, 4 * D) + once(len(lengths), D_IN, 4 * D) + once(sum(sizes), D_IN, 4 * D)
    expected += of_zeros(D, 4 * D)
    assert products_of(step) == expected
    assert sizes == [5, 5, 4, 4, 3, 3, 2, 2]


def test_inference_has_one_product_per_level_and_the_projections() -> None:
    graph, model = trees(), weft.nn.NaryTreeLSTM(D_IN, D, classes=CLASSES)
    x, leaves, sizes = torch.randn(graph.num_vertices, D_IN), len(graph.leaves), level_sizes(graph)

    @torch.no_grad()
    def step() -> Tensor:
        return model(graph, x)

    expected = Counter((rows, 2 * D, 5 * D) for rows in sizes)
    expected += Counter([(leaves, D_IN, 3 * D), (leaves, D, CLASSES), (sum(sizes), D, CLASSES)])
    assert products_of(step) == expected


def test_children_of_any_number_are_one_batch_per_level() -> None:
    """Ten vertices with 1 to 10 children, all at one level, above them one with ten."""
    families = [list(range(start, start + arity)) for arity in range(1, 11) for start in [arity * (arity - 1) // 2]]
    graph = weft.Graph([*([] for _ in range(55)), *families, list(range(55, 65))])
    model = weft.nn.ChildSumTreeLSTM(D_IN, D)
    planned = weft.plan(model, graph, torch.randn(66, D_IN))
    per_level = [(batch.stage, batch.rows) for batch in planned.pieces.batches() if batch.stage == "during"]
    assert per_level == [("during", 10), ("during", 1)]
    many = weft.Graph.batch([random_structure(seed, "tree", size=60) for seed in range(40)])
    assert len(set(np.diff(many.offsets).tolist())) > 6
    planned = weft.plan(model, many, torch.randn(many.num_vertices, D_IN))
    per_level = [(batch.stage, batch.rows) for batch in planned.pieces.batches() if batch.stage == "during"]
    assert per_level == [("during", rows) for rows in level_sizes(many)]
    numbers = planned.stats()
    assert numbers["batches"] == numbers["lower_bound"]


def typed_tree() -> weft.Graph:
    return weft.Graph([[], [], [0, 1], [], [2, 3]], types=["leaf", "leaf", "node", "leaf", "node"])


READY: dict[str, tuple[weft.VertexFunction, weft.Graph]] = {
    "GRU": (weft.nn.GRU(D_IN, D), weft.Graph.chain(5)),
    "LSTM": (weft.nn.LSTM(D_IN, D), weft.Graph.chain(5)),
    "ChildSumTreeLSTM": (weft.nn.ChildSumTreeLSTM(D_IN, D), typed_tree()),
    "GatedTree": (weft.nn.GatedTree(D_IN), typed_tree()),
    "GridCell": (weft.nn.GridCell(D_IN, D), weft.Graph.grid(3, 4)),
    "NaryTreeLSTM": (weft.nn.NaryTreeLSTM(D_IN, D, classes=CLASSES), typed_tree()),
    "TreeFC": (weft.nn.TreeFC(D_IN), typed_tree()),
    "TreeGRU": (weft.nn.TreeGRU(D_IN, D), typed_tree()),
}
PARTS = {"TreeFCLeaf", "TreeFCNode", "TreeLSTMLeaf", "TreeLSTMNode"}
"""Types of the models above."""


@pytest.mark.parametrize("name", READY)
def test_no_ready_model_falls_back(name: str) -> None:
    """The warning about a fallback would be an error here."""
    model, graph = READY[name]
    x = torch.randn(graph.num_vertices, D_IN)
    model(graph, x).square().sum().backward()
    assert weft.plan(model, graph, x).stats()["fallbacks"] == 0


def test_the_ready_models_are_all_there_are() -> None:
    assert set(weft.nn.__all__) == READY.keys() | PARTS


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks").rglob("*.py")), ids=lambda file: file.stem)
def test_benchmarks_use_ready_models_only(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    bases = {ast.unparse(base) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases}
    assert not {base for base in bases if base.endswith(("VertexFunction", "Typed"))}
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "weft.nn"]
    assert {alias.name for node in imports for alias in node.names} <= READY.keys() | PARTS
