"""Thirty kinds of cell: what people put into recurrent networks, each as a vertex function over a small state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import weft

DIM, WORDS, CLASSES = 4, 7, 3
Kind = type[weft.VertexFunction]

KINDS: dict[str, Kind] = {}
"""By name, in the order in which they are listed in this file."""

UNTRACEABLE = ("control flow on values",)
"""These read other rows, or the values of tensors: no fixed graph computes them."""


def kind(name: str) -> Callable[[Kind], Kind]:
    def register(cls: Kind) -> Kind:
        KINDS[name] = cls
        return cls

    return register


class Recurrent(weft.VertexFunction):
    """h = step(x, sum of the children's h); subclasses say what a step is. Inputs are {"x": [DIM], "word": int}."""

    def __init__(self) -> None:
        super().__init__(state={"h": (DIM,)})
        self.mix = nn.Linear(2 * DIM, DIM)
        self.make()

    def make(self) -> None:
        """Submodules and parameters of the kind."""

    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, v: Any) -> None:
        given = v.pull()
        h = self.step(given["x"], v.gather().sum("h"), given["word"])
        v.scatter(h=h)
        v.push(h)

    def mixed(self, x: Tensor, h: Tensor) -> Tensor:
        return self.mix(torch.cat([x, h])).tanh()


@kind("linear chain")
class LinearChain(Recurrent):
    def forward(self, v: Any) -> None:
        h = self.mixed(v.pull()["x"], v.gather(0)["h"])
        v.scatter(h=h)
        v.push(h)


class TwoStates(Recurrent):
    def __init__(self) -> None:
        weft.VertexFunction.__init__(self, state={"h": (DIM,), "c": (DIM,)})
        self.make()


@kind("lstm cell")
class LSTMCell(TwoStates):
    def make(self) -> None:
        self.cell = nn.LSTMCell(DIM, DIM)

    def forward(self, v: Any) -> None:
        last = v.gather(0)
        h, c = self.cell(v.pull()["x"], (last["h"], last["c"]))
        v.scatter(h=h, c=c)
        v.push(h)


@kind("gru cell")
class GRUCell(Recurrent):
    def make(self) -> None:
        self.cell = nn.GRUCell(DIM, DIM)

    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        return self.cell(x, h)


@kind("n-ary tree-lstm")
class NaryTreeLSTM(TwoStates):
    def make(self) -> None:
        self.gates = nn.Linear(3 * DIM, 5 * DIM)

    def forward(self, v: Any) -> None:
        left, right = v.gather(0), v.gather(1)
        i, o, u, f, g = self.gates(torch.cat([v.pull()["x"], left["h"], right["h"]])).chunk(5)
        c = i.sigmoid() * u.tanh() + f.sigmoid() * left["c"] + g.sigmoid() * right["c"]
        h = o.sigmoid() * c.tanh()
        v.scatter(h=h, c=c)
        v.push(h)


@kind("child-sum edge")
class ChildSum(TwoStates):
    def make(self) -> None:
        self.forget, self.gates = nn.Linear(2 * DIM, DIM), nn.Linear(2 * DIM, 3 * DIM)

    def forward(self, v: Any) -> None:
        x, kids = v.pull()["x"], v.gather()
        i, o, u = self.gates(torch.cat([x, kids.sum("h")])).chunk(3)
        kept = kids.map(lambda k: self.forget(torch.cat([x, k["h"]])).sigmoid() * k["c"]).sum()
        c = i.sigmoid() * u.tanh() + kept
        h = o.sigmoid() * c.tanh()
        v.scatter(h=h, c=c)
        v.push(h)


@kind("layer norm")
class LayerNorm(Recurrent):
    def make(self) -> None:
        self.norm = nn.LayerNorm(DIM)

    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        return self.norm(self.mixed(x, h))


@kind("softmax attention on a fixed set")
class FixedAttention(Recurrent):
    def make(self) -> None:
        self.memory = nn.Parameter(torch.randn(5, DIM))

    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        return self.mixed((self.memory @ x).softmax(0) @ self.memory, h)


@kind("matrix-vector")
class MatrixVector(Recurrent):
    def __init__(self) -> None:
        weft.VertexFunction.__init__(self, state={"h": (DIM,), "m": (DIM, DIM)})
        self.mix, self.grow = nn.Linear(2 * DIM, DIM), nn.Linear(DIM, DIM * DIM)

    def forward(self, v: Any) -> None:
        left, right = v.gather(0), v.gather(1)
        h = self.mix(torch.cat([left["m"] @ right["h"], right["m"] @ left["h"]])).tanh() + v.pull()["x"]
        v.scatter(h=h, m=self.grow(h).view(DIM, DIM).tanh())
        v.push(h)


@kind("embedding")
class Embedding(Recurrent):
    def make(self) -> None:
        self.embed = nn.Embedding(WORDS, DIM)

    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        return self.mixed(self.embed(word), h)


@kind("embedding with padding")
class PaddedEmbedding(Embedding):
    def make(self) -> None:
        self.embed = nn.Embedding(WORDS, DIM, padding_idx=0)


@kind("dropout in training")
class Dropout(Recurrent):
    def make(self) -> None:
        self.drop = nn.Dropout(0.3)

    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        return self.drop(self.mixed(x, h))


@kind("dropout in eval")
class DropoutEval(Dropout):
    def make(self) -> None:
        super().make()
        self.drop.eval()


@kind("cross entropy")
class CrossEntropy(Recurrent):
    def make(self) -> None:
        self.out = nn.Linear(DIM, CLASSES)

    def forward(self, v: Any) -> None:
        given = v.pull()
        h = self.mixed(given["x"], v.gather().sum("h"))
        v.scatter(h=h)
        v.push(F.cross_entropy(self.out(h), given["word"] % CLASSES))


@kind("gelu mlp")
class GeluMLP(Recurrent):
    def make(self) -> None:
        self.mlp = nn.Sequential(nn.Linear(2 * DIM, 9), nn.GELU(), nn.Linear(9, DIM))

    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        return self.mlp(torch.cat([x, h]))


@kind("multihead attention")
class Multihead(Recurrent):
    def make(self) -> None:
        self.attend = nn.MultiheadAttention(DIM, 2)

    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        both = torch.stack([x, h])
        return self.attend(both, both, both)[0].sum(0).tanh()


@kind("scaled dot product attention")
class ScaledDotProduct(Recurrent):
    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        both = torch.stack([x, h, self.mixed(x, h)])[None]
        return F.scaled_dot_product_attention(both, both, both)[0, 2]


@kind("cat, stack, chunk, where, flip")
class Reshaping(Recurrent):
    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        both = torch.stack([x, h]).flip(1)
        front, back = both.reshape(-1).chunk(2)
        return self.mixed(torch.where(front > 0, front, back * 0.5), h.flip(0))


@kind("einsum")
class Einsum(Recurrent):
    def make(self) -> None:
        self.cube = nn.Parameter(torch.randn(DIM, DIM, DIM) * 0.2)

    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        return torch.einsum("i,ijk,j->k", x, self.cube, h) + self.mixed(x, h)


@kind("scalar outputs")
class Scalars(Recurrent):
    def forward(self, v: Any) -> None:
        h = self.mixed(v.pull()["x"], v.gather().sum("h"))
        v.scatter(h=h)
        v.push((h.sum(), h.norm(), h.max()))


@kind("integer inputs")
class Integers(Recurrent):
    def make(self) -> None:
        self.table = nn.Parameter(torch.randn(WORDS, DIM))

    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        return self.mixed(x * word + F.one_hot(word, WORDS).to(x.dtype) @ self.table, h)


@kind("complex numbers")
class Complex(Recurrent):
    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        wave = torch.fft.fft(self.mixed(x, h)) * torch.complex(x, h)
        return (wave.abs() + wave.real).tanh()


@kind("batch norm")
class BatchNorm(Recurrent):
    def make(self) -> None:
        self.norm = nn.BatchNorm1d(DIM).eval()

    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        return self.norm(self.mixed(x, h)[None])[0]


@kind("buffers")
class Buffers(Recurrent):
    def make(self) -> None:
        self.register_buffer("scale", torch.arange(DIM) / DIM)

    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        return self.mixed(x * self.scale, h) + self.scale


@kind("tensors created inside")
class Created(Recurrent):
    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        ramp = torch.arange(DIM, dtype=x.dtype) + torch.tensor([1.0, 0.5, 0.0, -1.0], dtype=x.dtype)
        return self.mixed(x * ramp, h + torch.eye(DIM, dtype=x.dtype)[0] + torch.ones_like(h))


@kind("in-place writes")
class InPlace(Recurrent):
    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        y = self.mixed(x, h).clone()
        y[0] += 1
        y[1:3] = x[:2] * 2
        y.mul_(0.5)
        return y


@kind("control flow on values")
class ControlFlow(Recurrent):
    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        return self.mixed(x, h) if x.sum() > 0 else self.mixed(h, x)


@kind("convolution")
class Convolution(Recurrent):
    def make(self) -> None:
        self.conv = nn.Conv1d(2, 3, 3, padding=1)

    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        return self.conv(torch.stack([x, h])).sum(0).tanh()


@kind("topk, sort, max, cumsum")
class Ordering(Recurrent):
    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        best = torch.topk(x, 2).values
        return self.mixed(torch.cat([best, h.sort().values[:2]]), h.cumsum(0) * x.max())


@kind("bilinear")
class Bilinear(Recurrent):
    def make(self) -> None:
        self.pair = nn.Bilinear(DIM, DIM, DIM)

    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        return self.pair(x, h).tanh()


@kind("group norm, rms norm, normalize")
class OtherNorms(Recurrent):
    def make(self) -> None:
        self.groups, self.rms = nn.GroupNorm(2, DIM), nn.RMSNorm(DIM)

    def step(self, x: Tensor, h: Tensor, word: Tensor) -> Tensor:
        grouped = self.groups(torch.stack([self.mixed(x, h), x, h], 1)[None])[0].sum(1)
        return (grouped + self.rms(h) + F.normalize(x, dim=0)).tanh()
