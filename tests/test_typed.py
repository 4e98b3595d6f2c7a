"""Several kinds of vertex in one model: what form results have, and whose hooks fire."""

from __future__ import annotations

from typing import Any

import pytest
import torch
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
