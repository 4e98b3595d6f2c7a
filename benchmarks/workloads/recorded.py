"""The Tree-LSTM workload as code for one tree, run by `weft.batched`: what DyNet's users write, beside DyNet itself.

Recording is part of every step. With recordings kept, a step starts from each tree's own recording, by its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import weft
from benchmarks import data
from benchmarks.harness import Variant, training
from benchmarks.workloads.common import part
from weft.nn import NaryTreeLSTM, TreeLSTMLeaf, TreeLSTMNode

RECORDED, KEPT = "weft.batched, recording", "weft.batched, kept"


class Leaf(nn.Module):
    def __init__(self, gates: nn.Linear) -> None:
        super().__init__()
        self.gates = gates

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        i, o, u = self.gates(x).chunk(3)
        c = i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c


class Node(nn.Module):
    def __init__(self, gates: nn.Linear) -> None:
        super().__init__()
        self.gates, self.d = gates, gates.out_features // 5

    def forward(self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        gates, update = self.gates(torch.cat([left[0], right[0]])).split_with_sizes([4 * self.d, self.d])
        i, o, f0, f1 = gates.sigmoid().chunk(4)
        c = i * update.tanh() + f0 * left[1] + f1 * right[1]
        return o * c.tanh(), c


class Tree(nn.Module):
    """One tree, given as lists with an entry for each vertex, children first: the loss of all vertices, or their logits."""

    def __init__(self, model: NaryTreeLSTM, table: Tensor) -> None:
        super().__init__()
        node = part(model, TreeLSTMNode)
        assert node.out is not None
        self.embed = nn.Embedding.from_pretrained(table)
        self.leaf, self.node, self.out = (
            weft.cell(Leaf(part(model, TreeLSTMLeaf).input)),
            weft.cell(Node(node.hidden)),
            node.out,
        )

    def logits(self, children: list[list[int]], words: list[int]) -> list[Tensor]:
        embed, leaf, node, out = self.embed, self.leaf, self.node, self.out
        states: list[Any] = []
        for (left, right), word in zip(children, words, strict=True):
            states.append(leaf(embed(torch.tensor(word))) if left < 0 else node(states[left], states[right]))
        return [out(h) for h, _ in states]

    def forward(self, children: list[list[int]], words: list[int], labels: list[int]) -> Tensor:
        rows = zip(self.logits(children, words), labels, strict=True)
        return torch.stack([F.cross_entropy(row, torch.tensor(label)) for row, label in rows]).sum(0)


def recorded_variants(model: NaryTreeLSTM, trees: Sequence[data.BinaryTree], table: Tensor) -> list[Variant]:
    """Recording every step, and with recordings kept."""
    tree = Tree(model, table)
    names = ("children", "words", "labels")
    children, words, labels = ([getattr(tree, name).tolist() for tree in trees] for name in names)

    def variant(name: str, cache: bool) -> Variant:
        loss, logits = weft.batched(tree, cache=cache or None), weft.batched(tree.logits, stack=False, cache=cache or None)
        step = training(lambda: loss(children, words, labels).sum())
        return Variant(name, "weft", step, lambda: torch.stack([row for rows in logits(children, words) for row in rows]))

    return [variant(RECORDED, False), variant(KEPT, True)]
