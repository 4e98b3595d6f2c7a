"""Recursive Tree-LSTM (Tai, Socher, Manning 2015) over sentiment trees, a loss at every node, in plain recursion.

`WEFT_DATA` may point to a folder with sst/train.txt.gz (the Stanford Sentiment Treebank); else the trees come with weft.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import weft
from examples.compare import compare

Tree = tuple[Any, ...]
"""(label, word) or (label, left, right)."""


class Leaf(nn.Module):
    def __init__(self, dim_in: int, dim: int) -> None:
        super().__init__()
        self.gates = nn.Linear(dim_in, 3 * dim)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        i, o, u = self.gates(x).chunk(3)
        c = torch.sigmoid(i) * torch.tanh(u)
        return torch.sigmoid(o) * torch.tanh(c), c


class Cell(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * dim, 5 * dim)

    def forward(self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        (hl, cl), (hr, cr) = left, right
        i, o, u, fl, fr = self.gates(torch.cat([hl, hr])).chunk(5)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(fl) * cl + torch.sigmoid(fr) * cr
        return torch.sigmoid(o) * torch.tanh(c), c


class TreeLSTM(nn.Module):
    """The loss of one tree. `marked` makes leaf and cell one unit each; without it the same is found from the recording."""

    def __init__(self, words: int, dim_in: int = 300, dim: int = 150, classes: int = 5, marked: bool = True) -> None:
        super().__init__()
        self.embed, self.leaf, self.cell = nn.Embedding(words, dim_in), Leaf(dim_in, dim), Cell(dim)
        if marked:
            weft.cell(self.leaf)
            weft.cell(self.cell)
        self.out = nn.Linear(dim, classes)

    def encode(self, tree: Tree, losses: list[Tensor]) -> tuple[Tensor, Tensor]:
        if len(tree) == 2:
            state = self.leaf(self.embed(torch.tensor(tree[1])))
        else:
            state = self.cell(self.encode(tree[1], losses), self.encode(tree[2], losses))
        losses.append(F.cross_entropy(self.out(state[0]), torch.tensor(tree[0])))
        return state

    def forward(self, tree: Tree) -> Tensor:
        losses: list[Tensor] = []
        self.encode(tree, losses)
        return torch.stack(losses).sum(0)


def trees(count: int) -> tuple[list[Tree], int]:
    """Trees, and how many words there are."""
    folder = os.environ.get("WEFT_DATA")
    words: dict[str, int] = {}
    if folder and (Path(folder) / "sst" / "train.txt.gz").exists():
        with gzip.open(Path(folder) / "sst" / "train.txt.gz", "rt", encoding="utf-8") as lines:
            return [parse(line, words) for line, _ in zip(lines, range(count), strict=False)], max(len(words), 1)
    from weft.treebank import VOCABULARY, make

    found = []
    for tree in make(count):
        nodes: list[Tree] = []
        for (left, right), word, label in zip(tree.children.tolist(), tree.words.tolist(), tree.labels.tolist(), strict=True):
            nodes.append((label, word) if left < 0 else (label, nodes[left], nodes[right]))
        found.append(nodes[-1])
    return found, len(VOCABULARY)


def parse(line: str, words: dict[str, int]) -> Tree:
    """A tree from `(3 (2 the) (4 film))`."""
    stack: list[list[Any]] = [[]]
    for token in line.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            stack.append([])
        elif token == ")":
            done = tuple(stack.pop())
            stack[-1].append(done)
        else:
            stack[-1].append(int(token) if not stack[-1] else words.setdefault(token, len(words)))
    tree: Tree = stack[0][0]
    return tree


def example(count: int = 32, marked: bool = True) -> tuple[Any, ...]:
    torch.manual_seed(0)
    found, words = trees(count)
    return TreeLSTM(words, 60, 30, marked=marked), found


if __name__ == "__main__":
    compare(example)
