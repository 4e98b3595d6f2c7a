"""A tree decoder: grows a binary tree from a vector, splitting each node until it predicts stop."""

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
    """Level by level: all nodes of a level ask together whether to stop. Returns the sum over the leaves, and their number."""

    def __init__(self, dim: int = 128, deepest: int = 6) -> None:
        super().__init__()
        self.start, self.stop, self.leaf = nn.Linear(dim, dim), nn.Linear(dim, 1), nn.Linear(dim, dim)
        self.split = weft.cell(Split(dim))
        self.deepest = deepest
        nn.init.constant_(self.stop.bias, -0.1)

    def forward(self, code: Tensor) -> Any:
        level, leaves = [self.start(code)], []
        for _ in range(self.deepest):
            scores = torch.stack([self.stop(h) for h in level]).tolist()
            leaves += [self.leaf(h) for h, (score,) in zip(level, scores, strict=True) if score > 0]
            level = [part for h, (score,) in zip(level, scores, strict=True) if score <= 0 for part in self.split(h)]
            if not level:
                break
        leaves += [self.leaf(h) for h in level]
        return torch.stack(leaves).sum(0), len(leaves)


def example(count: int = 64) -> tuple[Any, ...]:
    torch.manual_seed(0)
    return TreeDecoder(), torch.randn(count, 128)


if __name__ == "__main__":
    compare(example)
