"""The matrix products of a network and nothing else: the time below which no way of batching can go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.harness import Variant


@dataclass(frozen=True)
class Linear:
    """A weight [n, k] applied to `rows` rows, one product for each entry of `rows`.

    In training the gradient of the weight takes one product, those of the rows as many as the forward pass; `gradient_from`
    is the first of these that anything wants, None if none is wanted.
    """

    rows: Sequence[int]
    k: int
    n: int
    gradient_from: int | None = 0


class _Timed:
    def __init__(self, layer: Linear, dtype: torch.dtype) -> None:
        total = sum(layer.rows)
        self.layer = layer
        self.weight = torch.randn(layer.n, layer.k, dtype=dtype)
        self.weight_gradient = torch.empty_like(self.weight)
        self.x = torch.randn(total, layer.k, dtype=dtype)
        self.y = torch.empty(total, layer.n, dtype=dtype).normal_()
        self.dy = torch.randn(total, layer.n, dtype=dtype)
        self.dx = torch.empty_like(self.x)
        self.levels = [tuple(t.split_with_sizes(list(layer.rows))) for t in (self.x, self.y, self.dy, self.dx)]

    def forward(self) -> None:
        transposed = self.weight.t()
        for x, y in zip(self.levels[0], self.levels[1], strict=True):
            torch.mm(x, transposed, out=y)

    def backward(self) -> None:
        if self.layer.gradient_from is not None:
            wanted = slice(self.layer.gradient_from, None)
            for dy, dx in zip(self.levels[2][wanted], self.levels[3][wanted], strict=True):
                torch.mm(dy, self.weight, out=dx)
        torch.mm(self.dy.t(), self.x, out=self.weight_gradient)


def products_alone(layers: Sequence[Linear], dtype: torch.dtype) -> Variant:
    """The variant that only multiplies, with operands of the right shapes and random contents."""
    timed = [_Timed(layer, dtype) for layer in layers if sum(layer.rows)]

    def infer() -> None:
        for layer in timed:
            layer.forward()

    def train() -> None:
        infer()
        for layer in timed:
            layer.backward()

    return Variant("matrix products alone", "products", train, infer)
