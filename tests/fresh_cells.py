"""Cells for `test_fresh_cells.py`: add one here, with the graphs that it runs on, and it is checked on every backend.

A cell is a `weft.VertexFunction`, written for one vertex in plain PyTorch, as in the README. An entry of `CELLS` gives a
model, a graph, the width of the rows that vertices pull, and what kernels cannot express of it (nothing, if they run it). The
tests compare outputs and every gradient with the vertex-by-vertex reference, and the reasons that a fallback gives.
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


class Mogrifier(weft.VertexFunction):
    """Input and state gate each other five times, then an LSTM: Melis, Kocisky and Blunsom, "Mogrifier LSTM", 2020."""

    def __init__(self, d_in: int = 7, d: int = 11) -> None:
        super().__init__(state={"h": (d,), "c": (d,)})
        self.q = nn.ModuleList([nn.Linear(d, d_in) for _ in range(3)])
        self.r = nn.ModuleList([nn.Linear(d_in, d) for _ in range(2)])
        self.gates = nn.Linear(d_in + d, 4 * d)

    def forward(self, v: Any) -> None:
        before = v.gather(0)
        x, h, c = v.pull(), before["h"], before["c"]
        for step in range(5):
            if step % 2 == 0:
                x = 2 * torch.sigmoid(self.q[step // 2](h)) * x
            else:
                h = 2 * torch.sigmoid(self.r[step // 2](x)) * h
        i, f, o, u = self.gates(torch.cat([x, h])).chunk(4)
        c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(u)
        h = torch.sigmoid(o) * torch.tanh(c)
        v.scatter(h=h, c=c)
        v.push(h)


class ExponentialGates(weft.VertexFunction):
    """The sLSTM, with a normaliser and a running maximum as states: Beck et al., "xLSTM", 2024."""

    def __init__(self, d: int = 9) -> None:
        super().__init__(state={"h": (d,), "c": (d,), "n": (d,), "m": (d,)})
        self.x, self.hidden = nn.Linear(D_IN, 4 * d), nn.Linear(d, 4 * d, bias=False)

    def forward(self, v: Any) -> None:
        old = v.gather(0)
        z, i, f, o = (self.x(v.pull()) + self.hidden(old["h"])).chunk(4)
        keep = nn.functional.logsigmoid(f) + old["m"]
        m = torch.maximum(keep, i)
        write, keep = torch.exp(i - m), torch.exp(keep - m)
        c = keep * old["c"] + write * torch.tanh(z)
        n = keep * old["n"] + write
        h = torch.sigmoid(o) * c / n.clamp(min=1e-6)
        v.scatter(h=h, c=c, n=n, m=m)
        v.push(h)


class ProjectedDag(weft.VertexFunction):
    """Gated messages of all predecessors (Zhang et al., "D-VAE", 2019) into a memory that is wider than the state it is
    projected to (Sak, Senior and Beaufays, "Long Short-Term Memory Recurrent Neural Network Architectures", 2014), with
    RMSNorm (Zhang and Sennrich, 2019) before the residual."""

    def __init__(self, d: int = 7, wide: int = 13) -> None:
        super().__init__(state={"h": (d,), "c": (wide,)})
        self.gate, self.message = nn.Linear(d, d), nn.Linear(d, d, bias=False)
        self.x, self.below = nn.Linear(D_IN, 3 * wide), nn.Linear(d, 3 * wide, bias=False)
        self.project, self.scale = nn.Linear(wide, d, bias=False), nn.Parameter(torch.rand(d) + 0.5)

    def forward(self, v: Any) -> None:
        below = v.gather()
        told = below.map(lambda k: torch.sigmoid(self.gate(k["h"])) * self.message(k["h"])).sum()
        f, u, o = (self.x(v.pull()) + self.below(told)).chunk(3)
        rate = torch.exp(-nn.functional.softplus(f))
        c = rate * below.mean("c") + (1 - rate) * nn.functional.gelu(u)
        y = self.project(nn.functional.silu(o) * c)
        h = told + self.scale * y * torch.rsqrt(y.square().mean() + 1e-5)
        v.scatter(h=h, c=c)
        v.push(torch.cat([h, c]))


class DeltaRule(weft.VertexFunction):
    """A matrix as state, corrected by an outer product: Schlag, Irie and Schmidhuber, "Linear Transformers Are Secretly
    Fast Weight Programmers", 2021."""

    def __init__(self, keys: int = 5, values: int = 6) -> None:
        super().__init__(state={"w": (values, keys)})
        self.k, self.q = nn.Linear(D_IN, keys), nn.Linear(D_IN, keys)
        self.value, self.rate = nn.Linear(D_IN, values), nn.Linear(D_IN, 1)

    def forward(self, v: Any) -> None:
        x, w = v.pull(), v.gather(0)["w"]
        k, q = torch.softmax(self.k(x), -1), torch.softmax(self.q(x), -1)
        w = w + torch.outer(torch.sigmoid(self.rate(x)) * (self.value(x) - w @ k), k)
        v.scatter(w=w)
        v.push(w @ q)


class Pooled(weft.VertexFunction):
    """The largest and the smallest of the children's states beside their mean, through clamped and leaky activations."""

    def __init__(self) -> None:
        super().__init__(state={"h": (D,)})
        self.x, self.below = nn.Linear(D_IN, D), nn.Linear(3 * D, D)
        self.slope = nn.Parameter(torch.rand(2, D))

    def forward(self, v: Any) -> None:
        below = v.gather()
        pooled = self.below(torch.cat([below.max("h"), below.min("h"), below.mean("h")]))
        h = nn.functional.leaky_relu(pooled * self.slope[0], 0.2) + nn.functional.elu(self.x(v.pull()) + self.slope[1])
        h = h.clamp(-2, 2) ** 2 - torch.minimum(h, pooled)
        v.scatter(h=h / (1 + h.abs()))
        v.push(h)


class Attentive(weft.VertexFunction):
    """Children are weighted by softmax of a score, and the result is normalised by its length."""

    def __init__(self) -> None:
        super().__init__(state={"h": (D,)})
        self.x, self.key, self.out = nn.Linear(D_IN, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, v: Any) -> None:
        x = self.x(v.pull())
        told = v.gather().softmax_sum(lambda k: (self.key(k["h"]) * x).sum(), lambda k: torch.tanh(self.key(k["h"])))
        h = nn.functional.softplus(self.out(told)) + x
        v.scatter(h=h / h.norm())
        v.push(nn.functional.normalize(h, dim=0))


class SoftmaxMemory(weft.VertexFunction):
    """A memory read and written by softmax over its places, with a gate that is one number."""

    def __init__(self) -> None:
        super().__init__(state={"m": (D,)})
        self.x, self.where, self.gate = nn.Linear(D_IN, D), nn.Linear(D, D), nn.Linear(D, 1)

    def forward(self, v: Any) -> None:
        m = v.gather(0)["m"]
        place = torch.softmax(self.where(m), -1)
        fresh = nn.functional.logsigmoid(self.x(v.pull()) - (m * place).sum())
        m = m + torch.sigmoid(self.gate(m)) * place * (fresh - m.mean())
        v.scatter(m=m)
        v.push(torch.log_softmax(m, -1))


def trees() -> weft.Graph:
    return weft.Graph.batch([weft.Graph.from_parents([-1, 0, 0, 1, 1, 1, 3]), weft.Graph.from_parents([1, 2, -1])])


def chains() -> weft.Graph:
    return weft.Graph.batch([weft.Graph.chain(n) for n in (1, 4, 6, 6)])


def dags() -> weft.Graph:
    diamond = weft.Graph([[], [0], [0], [1, 2], [0, 3], [4, 3, 1]])
    return weft.Graph.batch([diamond, weft.Graph.grid(2, 3), weft.Graph.chain(2)])


PRODUCT = "a product (@) of two tensors that differ from vertex to vertex"
UNEQUAL = "rows of {} numbers, which have no common width"

CELLS: dict[str, tuple[Callable[[], nn.Module], Callable[[], weft.Graph], int, set[str]]] = {
    "highway": (Highway, trees, D_IN, set()),
    "peephole": (Peephole, chains, D_IN, set()),
    "mogrifier": (Mogrifier, chains, 7, {UNEQUAL.format("7, 11, 18, 22, 33, 44")}),
    "exponential gates": (ExponentialGates, chains, D_IN, set()),
    "projected dag": (ProjectedDag, dags, D_IN, {UNEQUAL.format("7, 13, 26, 39"), UNEQUAL.format("7, 13, 20, 26, 39")}),
    "delta rule": (DeltaRule, chains, D_IN, {PRODUCT, "a sum over some dimensions of a row"}),
    "pooled": (Pooled, dags, D_IN, set()),
    "attentive": (Attentive, dags, D_IN, set()),
    "softmax memory": (SoftmaxMemory, chains, D_IN, set()),
}
