"""Simpler networks over trees: Tree-FC and a Tree-GRU."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from weft import Typed, VertexFunction


class TreeFCLeaf(VertexFunction):
    """A leaf of `TreeFC`: its input row is its state. It pushes nothing, for the caller has that row."""

    def __init__(self, d: int) -> None:
        super().__init__(state={"h": (d,)})

    def forward(self, v: Any) -> None:
        v.scatter(h=v.pull())


class TreeFCNode(VertexFunction):
    """An inner vertex of `TreeFC`: one fully connected layer over the states of its two children."""

    def __init__(self, d: int) -> None:
        super().__init__(state={"h": (d,)})
        self.fc = nn.Linear(2 * d, d)

    def forward(self, v: Any) -> None:
        h = self.fc(torch.cat([v.gather(0)["h"], v.gather(1)["h"]])).tanh()
        v.scatter(h=h)
        v.push(h)


class TreeFC(Typed):
    """h = tanh(W [h_left; h_right] + b) over binary trees whose leaves carry their state as input row.

    The benchmark of Looks et al., "Deep Learning with Dynamic Computation Graphs", ICLR 2017. Types: 0 "leaf", 1 "node".
    Pushes `h` of the inner vertices; the rows of leaves are zero.

    >>> import torch, weft, weft.nn
    >>> g = weft.Graph([[], [], [0, 1]], types=["leaf", "leaf", "node"])
    >>> weft.nn.TreeFC(16)(g, torch.randn(3, 16)).shape
    torch.Size([3, 16])
    """

    def __init__(self, d: int) -> None:
        super().__init__({"leaf": TreeFCLeaf(d), "node": TreeFCNode(d)})


class GatedTreeNode(VertexFunction):
    """An inner vertex of `GatedTree`: one product over both children's states makes a gate for each and an update."""

    def __init__(self, d: int) -> None:
        super().__init__(state={"h": (d,)})
        self.gates = nn.Linear(2 * d, 3 * d)

    def forward(self, v: Any) -> None:
        left, right = v.gather(0)["h"], v.gather(1)["h"]
        a, b, update = self.gates(torch.cat([left, right])).chunk(3)
        h = (a.sigmoid() * left + b.sigmoid() * right + update).tanh()
        v.scatter(h=h)
        v.push(h)


class GatedTree(Typed):
    """h = tanh(sigmoid(a) left + sigmoid(b) right + u), (a, b, u) one layer over [left; right], over binary trees whose leaves
    carry their state as input row: a gated cell with a single vector as its state.

    Types: 0 "leaf", 1 "node". Pushes `h` of the inner vertices; the rows of leaves are zero.

    >>> import torch, weft, weft.nn
    >>> g = weft.Graph([[], [], [0, 1]], types=["leaf", "leaf", "node"])
    >>> weft.nn.GatedTree(16)(g, torch.randn(3, 16)).shape
    torch.Size([3, 16])
    """

    def __init__(self, d: int) -> None:
        super().__init__({"leaf": TreeFCLeaf(d), "node": GatedTreeNode(d)})


class TreeGRU(VertexFunction):
    """GRU over trees, in child-sum form: any number of children, an input row at every vertex.

    After Kokkinos and Potamianos, "Structural Attention Neural Networks for improved sentiment analysis", EACL 2017, with
    the sum of the children's states in the place of the previous state.

    >>> import torch, weft, weft.nn
    >>> g = weft.Graph.from_parents([2, 2, 3, -1])
    >>> weft.nn.TreeGRU(8, 16)(g, torch.randn(4, 8)).shape
    torch.Size([4, 16])
    """

    def __init__(self, d_in: int, d: int) -> None:
        super().__init__(state={"h": (d,)})
        self.input = nn.Linear(d_in, 3 * d)
        self.gates = nn.Linear(d, 2 * d, bias=False)
        self.fresh = nn.Linear(d, d, bias=False)

    def forward(self, v: Any) -> None:
        below = v.gather().sum("h")
        r, z, n = self.input(v.pull()).chunk(3)
        r_h, z_h = self.gates(below).chunk(2)
        fresh = (n + self.fresh((r + r_h).sigmoid() * below)).tanh()
        h = fresh + (z + z_h).sigmoid() * (below - fresh)
        v.scatter(h=h)
        v.push(h)
