"""Cells for `test_fresh_cells.py`: add one here, with the graphs that it runs on, and it is checked on every backend.

A cell is a `weft.VertexFunction`, written for one vertex in plain PyTorch, as in the README. An entry of `CELLS` gives a
model, a graph and the width of the rows that vertices pull. Nothing else needs to be known: the tests compare outputs and
every gradient with the vertex-by-vertex reference, and say whether kernels ran it or which operation they lack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import weft

D_IN, D = 6, 10


class Highway(weft.VertexFunction):
    """Children are carried through a gate, as in Srivastava, Greff and Schmidhuber, "Highway Networks", 2015."""

    def __init__(self) -> None:
        super().__init__(state={"h": (D,)})
        self.x, self.carry, self.change = nn.Linear(D_IN, 2 * D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, v: Any) -> None:
        below = v.gather().sum("h")
        gate, fresh = self.x(v.pull()).chunk(2)
        t = torch.sigmoid(gate + self.carry(below))
        h = t * torch.tanh(fresh + self.change(below)) + (1 - t) * below
        v.scatter(h=h)
        v.push(h)


class Peephole(weft.VertexFunction):
    """An LSTM whose gates see the memory: Gers and Schmidhuber, "Recurrent Nets that Time and Count", 2000."""

    def __init__(self) -> None:
        super().__init__(state={"h": (D,), "c": (D,)})
        self.x, self.hidden = nn.Linear(D_IN, 4 * D), nn.Linear(D, 4 * D, bias=False)
        self.see = nn.Parameter(torch.randn(3, D) * 0.1)

    def forward(self, v: Any) -> None:
        before = v.gather(0)
        i, f, o, u = (self.x(v.pull()) + self.hidden(before["h"])).chunk(4)
        c = torch.sigmoid(f + self.see[0] * before["c"]) * before["c"] + torch.sigmoid(i + self.see[1] * before["c"]) * u.tanh()
        h = torch.sigmoid(o + self.see[2] * c) * c.tanh()
        v.scatter(h=h, c=c)
        v.push(h)


def trees() -> weft.Graph:
    return weft.Graph.batch([weft.Graph.from_parents([-1, 0, 0, 1, 1, 1, 3]), weft.Graph.from_parents([1, 2, -1])])


def chains() -> weft.Graph:
    return weft.Graph.batch([weft.Graph.chain(n) for n in (1, 4, 6, 6)])


CELLS: dict[str, tuple[Callable[[], nn.Module], Callable[[], weft.Graph], int]] = {
    "highway": (Highway, trees, D_IN),
    "peephole": (Peephole, chains, D_IN),
}
