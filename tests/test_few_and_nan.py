"""No vertices, one vertex, and NaN as data: everything works as it does one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import weft
import weft.nn
from weft.run.gpu.launch import has_triton, interpreted
from weft.testing import assert_equivalent, random_program, random_structure
from weft.testing.programs import SAMPLES

torch.set_num_threads(1)
BACKENDS = ("eager", "auto", "reference")


class Sum(weft.VertexFunction):
    """tanh of the row and the sum over the children; NaN goes through it both ways."""

    def __init__(self, pushes: bool = True) -> None:
        super().__init__({"h": (2,)})
        self.w, self.pushes = nn.Linear(2, 2).double(), pushes

    def forward(self, v: Any) -> None:
        h = torch.tanh(self.w(v.pull()) + v.gather().sum("h"))
        v.scatter(h=h)
        if self.pushes:
            v.push(h)


def noise(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def assert_empty_like_full(
    model: weft.VertexFunction, full: weft.Graph, empty: weft.Graph, backend: str, **keywords: Any
) -> None:
    """An empty batch gives what a full one gives, with no rows, and can be trained on."""
    expected = model(full, noise(full.num_vertices), backend=backend, **keywords)
    found = model(empty, noise(0), backend=backend, **keywords)
    assert isinstance(found, dict) == isinstance(expected, dict)
    for mine, theirs in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        assert mine.shape == (0, *theirs.shape[1:]) and mine.dtype == theirs.dtype
        mine.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("keywords", [{}, {"rounds": 2}], ids=["", "rounds"])
@pytest.mark.parametrize("pushes", [True, False])
def test_an_empty_batch(backend: str, keywords: dict[str, int], pushes: bool) -> None:
    for empty in (weft.Graph([]), weft.Graph.batch([]), weft.Graph.batch([weft.Graph([])] * 3)):
        assert_empty_like_full(Sum(pushes), weft.Graph.chain(3), empty, backend, **keywords)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_batch_of_types_of_which_the_first_pushes_nothing(backend: str) -> None:
    model = weft.Typed({"leaf": Sum(pushes=False), "node": Sum()})
    full = weft.Graph([[], [0]], types=["leaf", "node"])
    assert_empty_like_full(model, full, weft.Graph([], types=[]), backend)
    empty = weft.nn.TreeFC(4)(weft.Graph([], types=[]), torch.zeros(0, 4), backend=backend)
    assert empty.shape == (0, 4)


@pytest.mark.parametrize("sample", [name for name in SAMPLES if name != "dropout"])
def test_a_single_vertex(sample: str) -> None:
    graph = weft.Graph([[]], types=[0]) if SAMPLES[sample].types else weft.Graph([[]])
    program, inputs = random_program(3, sample=sample, structure=graph)
    assert_equivalent(program, *inputs, policies=["auto"])


def reaches(graph: weft.Graph) -> np.ndarray:
    """Whether vertex j's result depends on vertex i: a matrix [i, j]."""
    n = graph.num_vertices
    reached = np.eye(n, dtype=bool)
    for vertex in np.argsort(np.asarray(graph.depth), kind="stable").tolist():
        for child in graph.children[graph.offsets[vertex] : graph.offsets[vertex + 1]].tolist():
            if child >= 0:
                reached[:, vertex] |= reached[:, child]
    return reached


@pytest.mark.parametrize("policy", ["condense", "depth", "agenda"])
@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_nan_reaches_exactly_what_depends_on_it(backend: str, policy: str) -> None:
    """In outputs what is above it; in the gradients of rows, those from which something above it can be reached."""
    model = Sum()
    graph = weft.Graph.batch([random_structure(seed, "dag", size=12) for seed in range(6)])
    reached = reaches(graph)
    for bad in range(0, graph.num_vertices, 5):
        x = noise(graph.num_vertices, bad)
        x[bad, 0] = float("nan")
        x.requires_grad_()
        result = model(graph, x, backend=backend, policy=policy)
        (gradient,) = torch.autograd.grad(result.sum(), x)
        above = reached[bad]
        assert result.isnan().all(1).numpy().tolist() == above.tolist()
        assert result.isnan().any(1).numpy().tolist() == above.tolist()
        assert gradient.isnan().any(1).numpy().tolist() == (reached & above).any(1).tolist()


@pytest.mark.parametrize("sample", [name for name in SAMPLES if name not in ("words", "dropout")])
def test_nan_and_infinities_stay_in_their_graph_and_are_where_one_by_one_puts_them(sample: str) -> None:
    """Padding, empty slots, scratch memory and segments without rows must not carry them elsewhere."""
    chosen = SAMPLES[sample]
    parts = [random_structure(seed, kind, types=chosen.types) for seed, kind in enumerate(("dag", "holes", "tree"))]
    program, inputs = random_program(1, sample=sample, structure=weft.Graph.batch(parts))
    x = inputs[1].clone()
    x[parts[0].num_vertices // 2, 0], x[parts[0].num_vertices + 1, 1] = float("nan"), float("inf")
    given = (inputs[0], x, *inputs[2:])
    assert_equivalent(program, *given, policies=["auto", "depth"])
    last = parts[0].num_vertices + parts[1].num_vertices
    for leaf in tree_leaves(program(*given)):
        assert leaf[last:].isfinite().all()


class Extremes(weft.VertexFunction):
    """The largest and the smallest child, as states and mapped."""

    def __init__(self) -> None:
        super().__init__({"h": (2,)})

    def forward(self, v: Any) -> None:
        kids = v.gather()
        h = v.pull() + kids.max("h") - 0.5 * kids.map(lambda child: child["h"] * 2).min()
        v.scatter(h=h)
        v.push(h)


BATCHED = ["eager", "auto", *(["triton"] if has_triton() and interpreted() else [])]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of Triton's interpreter
@pytest.mark.parametrize("backend", BATCHED)
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_gradients_of_extremes_of_numbers_that_are_not_finite(number: float, backend: str) -> None:
    graph = weft.Graph.batch([weft.Graph([[], [], [0, 1], [], [2, 3, 0]]), weft.Graph([[], [], [0, 0, 1]])])
    for bad in ([0], [1], [0, 1], [3], [5], [5, 6]):
        x = noise(graph.num_vertices, 1)
        x[bad, 0] = number
        assert_equivalent(Extremes(), graph, x.requires_grad_(), policies=["auto"], backends=[backend])


def test_the_gradient_of_the_largest_where_an_item_is_no_number_is_that_of_torch() -> None:
    graph, x = (
        weft.Graph([[], [], [0, 1], [], [3]]),
        torch.tensor([[1.0], [float("nan")], [0.0], [2.0], [0.0]], requires_grad=True),
    )

    class Largest(weft.VertexFunction):
        def forward(self, v: Any) -> None:
            v.scatter(h=v.pull())
            v.push(v.gather().max("h"))

    for backend in BACKENDS:
        (gradient,) = torch.autograd.grad(Largest({"h": (1,)})(graph, x, backend=backend).sum(), x)
        assert str(gradient.flatten().tolist()) == "[nan, nan, 0.0, 1.0, 0.0]"
