"""Depth and width without limits: chains and stars of 100,000, and Python work that depends on the depth alone."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import weft
import weft.nn
from weft.testing import random_structure

torch.set_num_threads(1)
N = 100_000


@pytest.fixture(autouse=True)
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of this size are verified elsewhere; here the calls are as users make them."""
    monkeypatch.setattr(import_module("weft.plan.schedule"), "VERIFIES", False)


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def assert_close(found: Tensor | None, expected: Tensor) -> None:
    assert found is not None
    assert float((found - expected).abs().max()) <= 1e-12 * max(1.0, float(expected.abs().max()))


class Decay(weft.VertexFunction):
    """h = tanh(a h' + w(x)), number by number."""

    def __init__(self) -> None:
        super().__init__({"h": (2,)})
        self.a = nn.Parameter(torch.tensor([0.9, -1.3], dtype=torch.float64))
        self.w = nn.Linear(3, 2).double()

    def forward(self, v: Any) -> None:
        h = torch.tanh(self.a * v.gather(0)["h"] + self.w(v.pull()))
        v.scatter(h=h)
        v.push(h)


def decay_by_hand(a: list[float], u: Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor]:
    """The states, and the gradient of `u`, with plain numbers."""
    states, gradients = [], []
    for factor, given, seed in zip(a, u.T.tolist(), cotangent.T.tolist(), strict=True):
        h, column = 0.0, []
        for number in given:
            h = math.tanh(factor * h + number)
            column.append(h)
        behind, gradient = 0.0, []
        for h, outside in zip(reversed(column), reversed(seed), strict=True):
            behind = (outside + factor * behind) * (1 - h * h)
            gradient.append(behind)
        states.append(column)
        gradients.append(gradient[::-1])
    return torch.tensor(states, dtype=torch.float64).T, torch.tensor(gradients, dtype=torch.float64).T


@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_a_chain_of_100_000(backend: str) -> None:
    torch.manual_seed(0)
    model, x, cotangent = Decay(), noise(N, 3).requires_grad_(), noise(N, 2)
    h = model(weft.Graph.chain(N), x, backend=backend)
    h.backward(cotangent)
    with torch.no_grad():
        expected, gradient = decay_by_hand(model.a.tolist(), model.w(x), cotangent)
        assert_close(h, expected)
        assert_close(x.grad, gradient @ model.w.weight)
        assert_close(model.w.weight.grad, gradient.T @ x)
        assert_close(model.a.grad, (gradient[1:] * expected[:-1]).sum(0))


class Meeting(weft.VertexFunction):
    """Every way to reduce children at once."""

    def __init__(self) -> None:
        super().__init__({"h": (2,)})
        self.w = nn.Linear(3, 2).double()

    def forward(self, v: Any) -> None:
        kids = v.gather()
        seen = kids.softmax_sum(lambda k: k["h"].sum()) + kids.map(lambda k: k["h"] ** 3).mean()
        h = torch.tanh(self.w(v.pull())) + kids.sum("h") + kids.max() + seen
        v.scatter(h=h)
        v.push(h)


def met(own: Tensor, kids: Tensor) -> Tensor:
    """One vertex of `Meeting` whose children all stand in one tensor."""
    seen = kids.sum(1).softmax(0) @ kids + (kids**3).mean(0)
    return own + kids.sum(0) + kids.amax(0) + seen


def assert_equals_formula(model: Meeting, graph: weft.Graph, backend: str, expected: Callable[[Tensor], Tensor]) -> None:
    """Compare output and gradients on the graph with the formula, given tanh(w(x))."""
    x, cotangent = noise(graph.num_vertices, 3).requires_grad_(), noise(graph.num_vertices, 2)
    found = model(graph, x, backend=backend)
    by_formula = expected(torch.tanh(model.w(x)))
    assert_close(found.detach(), by_formula.detach())
    variables = [x, model.w.weight, model.w.bias]
    for mine, theirs in zip(
        torch.autograd.grad(found, variables, cotangent), torch.autograd.grad(by_formula, variables, cotangent), strict=True
    ):
        assert_close(mine, theirs)


@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_a_star_of_100_000_children(backend: str) -> None:
    star = weft.Graph((np.arange(N), np.array([0] * (N + 1) + [N])))
    assert_equals_formula(Meeting(), star, backend, lambda h: torch.cat([h[:-1], met(h[-1], h[:-1])[None]]))


@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_100_000_parents_of_one_child(backend: str) -> None:
    rays = weft.Graph((np.arange(N), np.array([0] * (N + 1) + [N]))).reversed()
    assert_equals_formula(Meeting(), rays, backend, lambda h: torch.cat([h[:-1] + 3 * h[-1] + h[-1] ** 3, h[-1:]]))


MOST_CALLS = 290
"""Python's own functions and builtins, of a call whose plan is known."""


def trees_of_depth(depth: int, count: int) -> list[weft.Graph]:
    """Different binary trees, all of one depth, with leaves of type 0 and inner vertices of type 1."""
    found: list[weft.Graph] = []
    seed = 0
    while len(found) < count:
        tree = random_structure(seed, "binary tree", size=32)
        if int(np.asarray(tree.depth).max()) == depth:
            found.append(weft.Graph((tree.children, tree.offsets), types=(np.diff(tree.offsets) > 0).astype(int)))
        seed += 1
    return found


def calls_of(step: Callable[[], Any]) -> Counter[str]:
    """How often Python calls each of its own functions, and any builtin, during a step."""
    calls: Counter[str] = Counter()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            calls[f"builtin {argument.__name__}"] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_python_calls_per_step_do_not_grow_with_the_number_of_trees(backend: str) -> None:
    """Merging the trees' graphs, planning their batch, training on it: from 64 to 256 trees no function is called more often.

    A kernel asks for the number of threads where it has rows enough for several; that is at most once for each.
    """
    model = weft.nn.NaryTreeLSTM(6, 4, classes=3)
    every = trees_of_depth(7, 256)

    def train(graph: weft.Graph) -> None:
        model(graph, torch.ones(graph.num_vertices, 6), backend=backend).square().sum().backward()

    def count(trees: list[weft.Graph]) -> tuple[Counter[str], Counter[str]]:
        """Of a step on a batch that was met before, and of one on the same trees in an order that was not."""
        known = weft.Graph.batch(trees)
        for _ in range(3):
            train(known)
        return calls_of(lambda: train(known)), calls_of(lambda: train(weft.Graph.batch(trees[::-1])))

    few, many = count(every[:64]), count(every)
    for before, after in zip(few, many, strict=True):
        more = {name: (before[name], times) for name, times in after.items() if times > before[name]}
        more.pop("builtin get_num_threads", None)
        assert more == {}
    assert few[1]["plan_graphs"] == 1 and few[0]["plan_graphs"] == 0


def test_a_call_on_one_known_tree_is_few_python_calls() -> None:
    """Beside a small network this is what a call costs: it must not creep up."""
    model, tree = weft.nn.TreeFC(8).eval(), weft.Graph([[], [], [0, 1]], types=["leaf", "leaf", "node"])
    x = torch.ones(3, 8)

    def infer() -> None:
        graph = weft.Graph.batch([tree])
        model(graph, x, at=graph.roots)

    with torch.inference_mode():
        for _ in range(3):
            infer()
        assert calls_of(infer).total() <= MOST_CALLS
