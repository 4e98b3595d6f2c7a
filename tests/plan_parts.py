"""Networks whose plans the tests look at."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import weft
import weft.nn


class Fold(weft.VertexFunction):
    """One matrix product over the first child, the second one added."""

    def __init__(self, d: int = 4) -> None:
        super().__init__(state={"h": (d,)})
        self.first = nn.Linear(d, d)

    def forward(self, v: Any) -> None:
        h = torch.tanh(self.first(v.gather(0)["h"]) + v.gather(1)["h"])
        v.scatter(h=h)
        v.push(h)


class Given(weft.VertexFunction):
    """Hands its input row on."""

    def __init__(self, d: int = 4) -> None:
        super().__init__(state={"h": (d,)})

    def forward(self, v: Any) -> None:
        v.scatter(h=v.pull())


class Size(weft.VertexFunction):
    """How many vertices are below and at each."""

    def __init__(self) -> None:
        super().__init__(state={"n": ()})

    def forward(self, v: Any) -> None:
        v.scatter(n=1 + v.gather().sum("n"))


def two_types_on_a_cycle() -> tuple[weft.VertexFunction, weft.Graph, torch.Tensor]:
    model = weft.Typed({"a": Fold(), "b": Fold(), "leaf": Given()})
    graph = weft.Graph([[], [0], [1, 0], [2, 2], [3, -1], [0, 4]], types=["leaf", "a", "b", "a", "a", "b"])
    return model, graph, torch.ones(6, 4)


def two_trees() -> tuple[weft.VertexFunction, weft.Graph, torch.Tensor]:
    """A tree of three leaves and one of two."""
    trees = [
        weft.Graph([[], [], [0, 1], [], [2, 3]], types=["leaf", "leaf", "node", "leaf", "node"]),
        weft.Graph([[], [], [0, 1]], types=["leaf", "leaf", "node"]),
    ]
    return weft.nn.NaryTreeLSTM(8, 16, classes=5), weft.Graph.batch(trees), torch.ones(8, 8)


def chains() -> tuple[weft.VertexFunction, weft.Graph, torch.Tensor]:
    return weft.nn.LSTM(3, 4), weft.Graph.batch([weft.Graph.chain(n) for n in (4, 6, 2)]), torch.ones(12, 3)
