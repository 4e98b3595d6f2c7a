"""A tree decoder: grows a binary tree from a vector, splitting a node until it predicts stop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import weft
from examples.compare import compare


class Split(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.both = nn.Linear(dim, 2 * dim)

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        left, right = torch.tanh(self.both(h)).chunk(2)
        return left, right


class TreeDecoder(nn.Module):
    """Returns the summed representation of the leaves, and how many there are."""

    def __init__(self, dim: int = 128, deepest: int = 6) -> None:
        super().__init__()
        self.start, self.stop, self.leaf = nn.Linear(dim, dim), nn.Linear(dim, 1), nn.Linear(dim, dim)
        self.split = weft.cell(Split(dim))
        self.deepest = deepest

    def grow(self, h: Tensor, depth: int, leaves: list[Tensor]) -> None:
        if depth == self.deepest or self.stop(h) > 0:
            leaves.append(self.leaf(h))
            return
        for part in self.split(h):
            self.grow(part, depth + 1, leaves)

    def forward(self, code: Tensor) -> Any:
        leaves: list[Tensor] = []
        self.grow(self.start(code), 0, leaves)
        return torch.stack(leaves).sum(0), len(leaves)


def example(count: int = 64) -> tuple[Any, ...]:
    torch.manual_seed(0)
    return TreeDecoder(), torch.randn(count, 128)


if __name__ == "__main__":
    compare(example)
