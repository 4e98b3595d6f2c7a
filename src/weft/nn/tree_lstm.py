"""Tree-LSTMs of Tai, Socher and Manning, "Improved Semantic Representations From Tree-Structured LSTMs", ACL 2015."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from weft import Typed, VertexFunction


class TreeLSTMLeaf(VertexFunction):
    """A leaf of an N-ary Tree-LSTM: gates from its input row alone; it has no children to forget.

    `out` maps `h` to what is pushed. Meant as the "leaf" of a `weft.Typed`; `NaryTreeLSTM` puts it together.
    """

    def __init__(self, d_in: int, d: int, out: nn.Module | None = None) -> None:
        super().__init__(state={"h": (d,), "c": (d,)})
        self.input = nn.Linear(d_in, 3 * d)
        self.out = out

    def forward(self, v: Any) -> None:
        i, o, u = self.input(v.pull()).chunk(3)
        c = (i.sigmoid() * u.tanh()).to(self.input.weight.dtype)  # under autocast, what inner vertices push, too
        h = o.sigmoid() * c.tanh()
        v.scatter(h=h, c=c)
        v.push(h if self.out is None else self.out(h))


class TreeLSTMNode(VertexFunction):
    """An inner vertex of an N-ary Tree-LSTM: one product over the states of all child slots, one forget gate for each slot.

    The rows of `hidden` are input gate, output gate, the forget gates slot by slot, update: so one sigmoid covers all gates.
    """

    def __init__(self, d: int, arity: int = 2, out: nn.Module | None = None) -> None:
        super().__init__(state={"h": (d,), "c": (d,)})
        self.arity = arity
        self.hidden = nn.Linear(arity * d, (3 + arity) * d)
        self.out = out

    def forward(self, v: Any) -> None:
        kids = [v.gather(slot) for slot in range(self.arity)]
        rows = self.hidden(torch.cat([kid["h"] for kid in kids]))
        d = rows.shape[0] // (3 + self.arity)
        i, o, *forget = rows[:-d].sigmoid().chunk(2 + self.arity)
        c = i * rows[-d:].tanh()
        for f, kid in zip(forget, kids, strict=True):
            c = c + f * kid["c"]
        h = o * c.tanh()
        v.scatter(h=h, c=c)
        v.push(h if self.out is None else self.out(h))


class NaryTreeLSTM(Typed):
    """N-ary Tree-LSTM over trees whose leaves carry input rows and whose inner vertices carry none (constituency trees).

    Vertex types: 0 or "leaf", 1 or "node". Input: `[N, d_in]`, of which the leaves' rows are read. Pushes `h`, or with
    `classes` the logits of a classifier shared by all vertices. An empty child slot counts as a child whose state is zero.

    >>> import torch, weft, weft.nn
    >>> g = weft.Graph([[], [], [0, 1]], types=["leaf", "leaf", "node"])
    >>> model = weft.nn.NaryTreeLSTM(8, 16, classes=5)
    >>> model(g, torch.randn(3, 8)).shape
    torch.Size([3, 5])
    """

    def __init__(self, d_in: int, d: int, arity: int = 2, classes: int | None = None) -> None:
        out = None if classes is None else nn.Linear(d, classes)
        super().__init__({"leaf": TreeLSTMLeaf(d_in, d, out), "node": TreeLSTMNode(d, arity, out)})


class ChildSumTreeLSTM(VertexFunction):
    """Child-sum Tree-LSTM: any number of children in any order, an input row at every vertex (dependency trees).

    >>> import torch, weft, weft.nn
    >>> g = weft.Graph.from_parents([2, 2, 3, -1])
    >>> weft.nn.ChildSumTreeLSTM(8, 16)(g, torch.randn(4, 8)).shape
    torch.Size([4, 16])
    """

    def __init__(self, d_in: int, d: int) -> None:
        super().__init__(state={"h": (d,), "c": (d,)})
        self.iou, self.f = nn.Linear(d_in, 3 * d), nn.Linear(d_in, d)
        self.iou_h, self.f_h = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)

    def forward(self, v: Any) -> None:
        x = v.pull()
        kids = v.gather()
        i, o, u = (self.iou(x) + self.iou_h(kids.sum("h"))).chunk(3)
        fx = self.f(x)
        kept = kids.map(lambda kid: torch.sigmoid(fx + self.f_h(kid["h"])) * kid["c"]).sum()
        c = i.sigmoid() * u.tanh() + kept
        h = o.sigmoid() * c.tanh()
        v.scatter(h=h, c=c)
        v.push(h)
