"""Leaves that hand on what they are fed: it is read where it lies, where that can be, and the numbers are the same."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import weft
import weft.nn
from kernel_parts import recipes_of
from weft.run.cpu import fed, recipetypes
from weft.run.cpu.turn import turned_into
from weft.run.recipe import Recipe
from weft.run.typerun import MANY_STEPS
from weft.testing import random_structure

D = 6

pytestmark = pytest.mark.usefixtures("one_thread")


def copies(recipe: Recipe) -> bool:
    """Whether fed rows are copied to an arena."""
    return re.search(r"= tensors\[\d+\]\.contiguous\(\)", recipe.source) is not None


def full_tree(leaves: int = 8) -> weft.Graph:
    return weft.Graph.full_binary_tree(leaves, types=[0] * leaves + [1] * (leaves - 1))


def check(model: weft.VertexFunction, graph: weft.Graph, **options: Any) -> None:
    """Later calls, which go by a recipe, against one vertex at a time."""
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(graph.num_vertices, D)
            got, expected = model(graph, x, **options), model(graph, x, backend="reference", **options)
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


def test_the_leaves_of_a_full_tree_are_not_copied() -> None:
    model, graph = weft.nn.TreeFC(D), full_tree()
    check(model, graph, at=graph.roots)
    (recipe,) = recipes_of(model)
    assert not copies(recipe)


def test_leaves_that_later_steps_read_too_are_copied() -> None:
    model = weft.nn.TreeFC(D)
    check(model, full_tree(), at=[14])
    comb = weft.Graph([[], [], [], [0, 1], [2, 3]], types=[0, 0, 0, 1, 1])
    check(model, comb, at=[4])
    check(model, full_tree(), at=[14])
    assert [copies(recipe) for recipe in recipes_of(model)] == [False, True]


def test_leaves_that_do_not_lie_in_order_are_copied() -> None:
    model = weft.nn.TreeFC(D)
    check(model, weft.Graph([[], [], [1, 0]], types=[0, 0, 1]), at=[2])
    (recipe,) = recipes_of(model)
    assert copies(recipe)


def test_the_leaves_of_many_full_trees_are_read_tree_by_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fed, "LONG", 4)
    model, trees = weft.nn.TreeFC(D), [full_tree(), full_tree(16), full_tree()]
    for order in ([0, 1, 2], [1, 0, 2], [2, 2, 0, 1, 1]):
        graph = weft.Graph.batch([trees[i] for i in order])
        check(model, graph, at=graph.roots)
        check(model, graph)
    assert not any(copies(recipe) for recipe in recipes_of(model))


def test_short_stretches_are_copied() -> None:
    model, graph = weft.nn.TreeFC(D), weft.Graph.batch([full_tree(), full_tree()])
    check(model, graph, at=graph.roots)
    (recipe,) = recipes_of(model)
    assert copies(recipe)
    assert "narrow(" not in recipe.source, "their place in the arena is an address, not a view"


def test_stretches_that_each_would_fetch_a_large_matrix_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fed, "LONG", 4)
    monkeypatch.setattr(recipetypes, "LARGE", 2 * D * D - 1)
    model, graph = weft.nn.TreeFC(D), weft.Graph.batch([full_tree(), full_tree()])
    check(model, graph, at=graph.roots)
    (recipe,) = recipes_of(model)
    assert copies(recipe)


def test_many_stretches_are_many_narrow_steps() -> None:
    """The weight is turned for them: once, for all stretches and steps."""
    model, graph = weft.nn.TreeFC(D), weft.Graph.batch([full_tree(128)] * MANY_STEPS)
    check(model, graph, at=graph.roots)
    (recipe,) = recipes_of(model)
    assert not copies(recipe)
    names = [name for name, item in recipe.run.__globals__.items() if item is turned_into]
    assert len(names) == 1 and recipe.source.count(f"{names[0]}(") == 1


class Pushing(weft.VertexFunction):
    """A leaf that hands on its input, and shows something of it."""

    def __init__(self) -> None:
        super().__init__({"h": (D,)})

    def forward(self, v: Any) -> None:
        v.scatter(h=v.pull())
        v.push(v.pull() * 2)


class HandedOn(weft.VertexFunction):
    """A leaf whose result is its state: the input."""

    def __init__(self) -> None:
        super().__init__({"h": (D,)})

    def forward(self, v: Any) -> None:
        v.scatter(h=v.pull())
        v.push(v.pull())


class Showing(weft.VertexFunction):
    """A node whose result needs what it gathered once more."""

    def __init__(self) -> None:
        super().__init__({"h": (D,)})
        self.fc = torch.nn.Linear(2 * D, D)

    def forward(self, v: Any) -> None:
        both = torch.cat([v.gather(0)["h"], v.gather(1)["h"]])
        v.scatter(h=self.fc(both).tanh())
        v.push(both[:D] * both[D:])


@pytest.mark.parametrize("leaf", [weft.nn.tree.TreeFCLeaf(D), Pushing(), HandedOn()], ids=["silent", "pushing", "handed on"])
@pytest.mark.parametrize("node", [weft.nn.TreeFCNode(D), Showing()], ids=["state", "gathered again"])
def test_what_else_reads_the_leaves_sees_them(leaf: weft.VertexFunction, node: weft.VertexFunction) -> None:
    model, graph = weft.Typed({"leaf": leaf, "node": node}), full_tree()
    check(model, graph)
    check(model, graph, at=graph.roots)
    check(model, graph, at=[14, 0, 9, 3] if not isinstance(leaf, weft.nn.tree.TreeFCLeaf) else [14, 9])


@pytest.mark.parametrize("seed", range(12))
def test_any_structure(seed: int) -> None:
    shape = random_structure(seed, "binary tree", size=9)
    counts = np.diff(shape.offsets)
    graph = weft.Graph((shape.children, shape.offsets), types=(counts > 0).astype(int))
    check(weft.nn.TreeFC(D), graph, at=graph.roots)


def test_an_input_that_is_not_contiguous_or_larger_is_read_right() -> None:
    model, graph = weft.nn.TreeFC(D), full_tree()
    wide = torch.randn(graph.num_vertices, 2 * D)
    with torch.no_grad():
        for x in (wide[:, :D], wide[:, ::2], wide[:, D:].contiguous()):
            for _ in range(2):
                got, expected = model(graph, x), model(graph, x, backend="reference")
                torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
