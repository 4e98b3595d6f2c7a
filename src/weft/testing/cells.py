"""A fixed library of vertex functions: small enough for one-by-one checks, different enough to meet every part of the engine.

All but a few have the one state `h`, so that they can be types of one `Typed`. Sizes are given by `IN` and `DIM`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weft.api.function import VertexFunction

IN, DIM, WORDS = 2, 3, 7

SHARED = torch.linspace(-0.5, 0.5, DIM, dtype=torch.float64).requires_grad_()


def _sum_h(v: Any) -> Any:
    return v.gather().sum("h")


class Chain(VertexFunction):
    """A linear recurrence over the first child."""

    def __init__(self) -> None:
        super().__init__(state={"h": (DIM,)})
        self.w, self.u = nn.Linear(IN, DIM), nn.Linear(DIM, DIM, bias=False)

    def forward(self, v: Any) -> None:
        h = torch.tanh(self.w(v.pull()) + self.u(v.gather(0)["h"]))
        v.scatter(h=h)
        v.push(h)


class LSTM(VertexFunction):
    """`nn.LSTMCell` over the first child; pushes its output gate's state only."""

    def __init__(self) -> None:
        super().__init__(state={"h": (DIM,), "c": (DIM,)})
        self.cell = nn.LSTMCell(IN, DIM)

    def forward(self, v: Any) -> None:
        last = v.gather(0)
        h, c = self.cell(v.pull(), (last["h"], last["c"]))
        v.scatter(h=h, c=c)
        v.push(h)


class GRU(VertexFunction):
    """`nn.GRUCell` over the sum of all children; pushes nothing, so the caller gets the states."""

    def __init__(self) -> None:
        super().__init__(state={"h": (DIM,)})
        self.cell = nn.GRUCell(IN, DIM)

    def forward(self, v: Any) -> None:
        v.scatter(h=self.cell(v.pull(), _sum_h(v)))


class NaryTreeLSTM(VertexFunction):
    """Two slots with a forget gate each (Tai, Socher and Manning, ACL 2015, equations 9 to 14)."""

    def __init__(self) -> None:
        super().__init__(state={"h": (DIM,), "c": (DIM,)})
        self.w, self.u = nn.Linear(IN, 5 * DIM), nn.Linear(2 * DIM, 5 * DIM, bias=False)
        self.out = nn.Linear(DIM, 2)

    def forward(self, v: Any) -> None:
        left, right = v.gather(0), v.gather(1)
        i, o, u, fl, fr = (self.w(v.pull()) + self.u(torch.cat([left["h"], right["h"]]))).chunk(5)
        c = i.sigmoid() * u.tanh() + fl.sigmoid() * left["c"] + fr.sigmoid() * right["c"]
        h = o.sigmoid() * c.tanh()
        v.scatter(h=h, c=c)
        v.push(self.out(h).log_softmax(0))


class ChildSumTreeLSTM(VertexFunction):
    """Any number of children, a forget gate for each (the same paper, equations 2 to 8)."""

    def __init__(self) -> None:
        super().__init__(state={"h": (DIM,), "c": (DIM,)})
        self.iou, self.f = nn.Linear(IN, 3 * DIM), nn.Linear(IN, DIM)
        self.iou_h, self.f_h = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)

    def forward(self, v: Any) -> None:
        x, kids = v.pull(), v.gather()
        i, o, u = (self.iou(x) + self.iou_h(kids.sum("h"))).chunk(3)
        fx = self.f(x)
        c = i.sigmoid() * u.tanh() + kids.map(lambda k: torch.sigmoid(fx + self.f_h(k["h"])) * k["c"]).sum()
        h = o.sigmoid() * c.tanh()
        v.scatter(h=h, c=c)
        v.push(h)


class Normed(VertexFunction):
    """LayerNorm inside the recurrence: its parameters' gradients come out of a fused backward operation."""

    def __init__(self) -> None:
        super().__init__(state={"h": (DIM,)})
        self.w, self.norm = nn.Linear(IN + DIM, DIM), nn.LayerNorm(DIM)

    def forward(self, v: Any) -> None:
        h = self.norm(self.w(torch.cat([v.pull(), _sum_h(v)]))).tanh()
        v.scatter(h=h)
        v.push(h)


class Attention(VertexFunction):
    """Attention over the children, with the vertex's own input as the query."""

    def __init__(self) -> None:
        super().__init__(state={"h": (DIM,)})
        self.query, self.value, self.w = nn.Linear(IN, DIM), nn.Linear(DIM, DIM), nn.Linear(IN, DIM)

    def forward(self, v: Any) -> None:
        x = v.pull()
        query = self.query(x)
        seen = v.gather().softmax_sum(lambda k: (query * k["h"]).sum(), lambda k: self.value(k["h"]))
        h = torch.tanh(self.w(x) + seen)
        v.scatter(h=h)
        v.push(h)


class MatrixVector(VertexFunction):
    """A vector and a matrix per vertex: Socher et al., "Semantic Compositionality through Recursive Matrix-Vector Spaces"."""

    def __init__(self) -> None:
        super().__init__(state={"a": (DIM,), "A": (DIM, DIM)})
        self.leaf, self.w = nn.Linear(IN, DIM), nn.Linear(2 * DIM, DIM)
        self.m = nn.Parameter(torch.randn(DIM, 2 * DIM) * 0.3)

    def forward(self, v: Any) -> None:
        left, right = v.gather(0), v.gather(1)
        crossed = torch.cat([right["A"] @ left["a"], left["A"] @ right["a"]])
        a = torch.tanh(self.w(crossed) + self.leaf(v.pull()))
        matrix = self.m @ torch.cat([left["A"], right["A"]]) + torch.diag(a)
        v.scatter(a=a, A=matrix)
        v.push((a, matrix.sum()))


class Words(VertexFunction):
    """An embedding of an integer input, one of which is padding; pushes a nest with floats, integers and bools."""

    def __init__(self) -> None:
        super().__init__(state={"h": (DIM,)})
        self.embed, self.u = nn.Embedding(WORDS, DIM, padding_idx=0), nn.Linear(DIM, DIM)

    def forward(self, v: Any) -> None:
        word = v.pull()
        h = torch.tanh(self.embed(word) + self.u(_sum_h(v)))
        v.scatter(h=h)
        v.push({"h": h, "facts": [word * 2, word > 3], "best": h.argmax()})


class Dropped(VertexFunction):
    """Dropout inside the recurrence: random in training, nothing in eval."""

    def __init__(self) -> None:
        super().__init__(state={"h": (DIM,)})
        self.w, self.u, self.drop = nn.Linear(IN, DIM), nn.Linear(DIM, DIM), nn.Dropout(0.4)

    def forward(self, v: Any) -> None:
        h = torch.tanh(self.w(v.pull()) + self.drop(self.u(_sum_h(v))))
        v.scatter(h=h)
        v.push(h)


class Captured(VertexFunction):
    """Reads a global tensor, a closure tensor and a plain attribute, all with gradients, and a buffer without."""

    def __init__(self) -> None:
        super().__init__(state={"h": (DIM,)})
        self.w = nn.Linear(IN, DIM)
        self.plain = torch.full((DIM,), 0.3, dtype=torch.float64).requires_grad_()
        inner = torch.eye(DIM, dtype=torch.float64).mul(0.5).requires_grad_()

        def mix(h: Tensor) -> Tensor:
            return inner @ h

        self.mix = mix
        self.register_buffer("bias", torch.arange(DIM) / 4)

    def forward(self, v: Any) -> None:
        h = torch.tanh(self.w(v.pull()) + self.mix(_sum_h(v)) * self.plain + SHARED + self.bias)
        v.scatter(h=h)
        v.push(h * SHARED)


class Reductions(VertexFunction):
    """Largest, smallest and mean child, their number, and a map that returns a nest."""

    def __init__(self) -> None:
        super().__init__(state={"h": (DIM,)})
        self.w, self.u = nn.Linear(IN, DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, v: Any) -> None:
        kids, own = v.gather(), self.w(v.pull())
        both = kids.map(lambda k: {"square": k["h"] ** 2, "score": (k["h"] * own).sum()})
        mixed = torch.cat([kids.max("h"), kids.min("h"), kids.mean("h"), both.mean("square")])
        h = torch.tanh(own + self.u(mixed) + both.max("score") + kids.count / 8)
        v.scatter(h=h)
        v.push([h, both.sum("score"), kids.count])


class Edges(VertexFunction):
    """Edge rows, by slot and inside `map`."""

    def __init__(self) -> None:
        super().__init__(state={"h": (DIM,)})
        self.w, self.e, self.u = nn.Linear(IN, DIM), nn.Linear(IN, DIM), nn.Linear(DIM, DIM)

    def forward(self, v: Any) -> None:
        near = self.e(v.edge(1)) * v.gather(1)["h"]
        far = v.gather().map(lambda k: torch.sigmoid(self.e(k.edge)) * self.u(k["h"])).sum()
        h = torch.tanh(self.w(v.pull()) + near + far)
        v.scatter(h=h)
        v.push(h)


class Defaults(VertexFunction):
    """A learned state for missing children, and a second slot with a constant one."""

    def __init__(self) -> None:
        super().__init__(state={"h": (DIM,)})
        self.start, self.w, self.u = nn.Parameter(torch.ones(DIM) / 2), nn.Linear(IN, DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, v: Any) -> None:
        first, second = v.gather(0, default=self.start)["h"], v.gather(1, default={"h": torch.ones(DIM)})["h"]
        h = torch.tanh(self.w(v.pull()) + self.u(torch.cat([first, second])))
        v.scatter(h=h)
        v.push(h)


class Gated(VertexFunction):
    """Message passing in rounds with the vertex's own state (Li et al., "Gated Graph Sequence Neural Networks", ICLR 2016)."""

    def __init__(self) -> None:
        super().__init__(state={"h": (DIM,)})
        self.message, self.cell, self.out = nn.Linear(DIM, DIM), nn.GRUCell(DIM + IN, DIM), nn.Linear(2 * DIM, 2)

    def forward(self, v: Any) -> None:
        told, own = v.gather().map(lambda k: self.message(k["h"]).relu()).sum(), v.state["h"]
        h = self.cell(torch.cat([told, v.pull()]), own)
        v.scatter(h=h)
        v.push(self.out(torch.cat([h, own])))
