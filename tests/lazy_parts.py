"""What the tests of per-example code share: a tree network, and the comparison with the loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import weft
import weft.testing


class Node(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * dim, dim)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.tanh(self.linear(torch.cat([left, right])))


class TreeNet(nn.Module):
    def __init__(self, marked: bool = False, dim: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, dim)
        self.node = weft.cell(Node(dim)) if marked else Node(dim)
        self.out = nn.Linear(dim, 3)

    def encode(self, tree: Any) -> Tensor:
        if isinstance(tree, int):
            return self.embed(torch.tensor(tree))
        left, right = tree
        return self.node(self.encode(left), self.encode(right))

    def forward(self, tree: Any) -> Tensor:
        return self.out(self.encode(tree))


TREES: list[Any] = [1, (1, 2), ((1, 2), 3), ((4, 5), (6, (7, 8)))]


def tree_net(marked: bool = False) -> TreeNet:
    torch.manual_seed(0)
    return TreeNet(marked).double()


class Grower(nn.Module):
    """Goes on until its own score says stop; another path for large sums."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.step, self.score, self.other = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Any:
        h, steps = self.step(x), 0
        while self.score(h) < 0.5 and steps < 6:
            h = torch.tanh(self.step(h)) if h.sum().item() > 0 else self.other(h) + x
            steps += 1
        return h, steps


def inputs(n: int = 6) -> Tensor:
    return torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def assert_equals_loop(fn: Any, *inputs: Any, **options: Any) -> None:
    weft.testing.assert_equivalent(fn, *inputs, **{"policies": ["auto"], "backends": ["auto"], **options})
