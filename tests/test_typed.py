"""Several kinds of vertex in one model: what form results have, and whose hooks fire."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.utils.prune
from torch import nn

import weft

BACKENDS = ["auto", "eager", "reference"]


class Leaf(weft.VertexFunction):
    """Pushes nothing."""

    def __init__(self) -> None:
        super().__init__(state={"h": (2,)})
        self.words = nn.Embedding(9, 2)

    def forward(self, v: Any) -> None:
        v.scatter(h=self.words(v.pull()))


class Node(weft.VertexFunction):
    def __init__(self) -> None:
        super().__init__(state={"h": (2,)})
        self.mix = nn.Linear(2, 2)

    def forward(self, v: Any) -> None:
        h = torch.tanh(self.mix(v.gather().sum()))
        v.scatter(h=h)
        v.push({"sum": h.sum(), "best": h.argmax()})


def model() -> weft.Typed:
    return weft.Typed({"leaf": Leaf(), "node": Node()})


LEAVES = weft.Graph([[], []], types=["leaf", "leaf"])
WORDS = torch.tensor([1, 2, 3])


@pytest.mark.parametrize("backend", BACKENDS)
def test_where_only_silent_types_occur_results_are_zeros_in_the_pushed_form(backend: str) -> None:
    net = model()
    nn.init.constant_(net.functions["node"].mix.weight, float("nan"))
    result = net(LEAVES, WORDS[:2], backend=backend)
    assert set(result) == {"sum", "best"}
    assert torch.equal(result["sum"], torch.zeros(2)) and torch.equal(result["best"], torch.zeros(2, dtype=torch.int64))
    result["sum"].sum().backward()
    grad = net.functions["leaf"].words.weight.grad
    assert grad is not None and not grad.any()
    assert net(LEAVES, WORDS[:2], backend=backend, at=[1, 0, 1])["sum"].shape == (3,)
    assert net(LEAVES, WORDS[:2], backend=backend, rounds=2)["sum"].shape == (2,)
    assert net(weft.Graph([], types=[]), WORDS[:0], backend=backend)["sum"].shape == (0,)


@pytest.mark.parametrize("backend", BACKENDS)
def test_where_no_type_pushes_results_are_the_states(backend: str) -> None:
    net = weft.Typed({"leaf": Leaf(), "other": Leaf()})
    result = net(LEAVES, WORDS[:2], backend=backend)
    assert torch.equal(result["h"], net.functions["leaf"].words(WORDS[:2]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_of_a_types_function_fire_once_per_call_in_which_it_has_vertices(backend: str) -> None:
    net, fired = model(), list[str]()
    leaf, node = net.functions["leaf"], net.functions["node"]
    node.register_forward_pre_hook(lambda module, args: fired.append(f"before: {args[0].num_vertices} vertices"))
    node.register_forward_hook(lambda module, args, result: fired.append(f"after: {list(result)}"))
    leaf.register_forward_hook(lambda module, args, result: fired.append("leaf"))
    tree = weft.Graph([[], [], [0, 1]], types=["leaf", "leaf", "node"])
    for _ in range(2):  # the second is a call that repeats another
        net(tree, WORDS, backend=backend)
        assert fired == ["before: 3 vertices", "after: ['sum', 'best']", "leaf"]
        fired.clear()
    net(LEAVES, WORDS[:2], backend=backend)
    assert fired == ["leaf"]


class Scales(weft.VertexFunction):
    def __init__(self) -> None:
        super().__init__(state={"h": (2,)})
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, v: Any) -> None:
        h = self.weight * (v.pull() + v.gather().sum())
        v.scatter(h=h)
        v.push(h)


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_of_a_types_function_see_and_change_the_whole_call(backend: str) -> None:
    shared = Scales()
    net, graph = weft.Typed({"a": shared, "b": Scales(), "c": shared}), weft.Graph.chain(3, types=[0, 1, 2])
    x, seen = torch.ones(3, 2, requires_grad=True), list[Any]()
    shared.register_forward_pre_hook(lambda module, args: (args[0], 2 * args[1]))
    shared.register_forward_hook(lambda module, args, result: -result)
    shared.register_full_backward_hook(lambda module, given, got: seen.append((module, got[0].shape)))
    assert net(graph, x, backend=backend).tolist() == [[-2.0, -2.0], [-4.0, -4.0], [-6.0, -6.0]]
    net(graph, x, backend=backend).sum().backward()
    assert seen == [(shared, (3, 2))]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_pruned_weights_follow_their_masks() -> None:
    pruned = Scales()
    torch.nn.utils.prune.random_unstructured(pruned, "weight", 1)
    net, graph = weft.Typed({"a": pruned, "b": Scales()}), weft.Graph.chain(2, types=[0, 1])
    for _ in range(2):
        with torch.no_grad():
            pruned.weight_orig.mul_(3)
        found = net(graph, torch.ones(2, 2))
        assert sorted(found[0].tolist()) == [0.0, pruned.weight_orig.detach().max().item()]
