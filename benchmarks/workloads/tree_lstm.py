"""N-ary Tree-LSTM on SST trees: input 300 at the leaves, hidden 150, five classes and their loss at every vertex."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import weft
from benchmarks import data
from benchmarks.harness import Instance, Variant, training
from benchmarks.products import Linear, products_alone
from benchmarks.workloads.common import HAND, ONE, PRODUCTS, WAY_BACK, WEFT, CaseSpec, Options, Target, part, weft_variants
from benchmarks.workloads.levels import Levels, concatenated, make_levels
from benchmarks.workloads.recorded import KEPT, RECORDED, recorded_variants
from weft.nn import NaryTreeLSTM, TreeLSTMLeaf, TreeLSTMNode

D_IN, D, CLASSES = 300, 150, 5
SINGLE = 64

Forward = Callable[["Hand"], Tensor]


@dataclass(frozen=True)
class Hand:
    """What the hand-batched forms share: the parts of the model, and the batch in level order."""

    leaf: TreeLSTMLeaf
    node: TreeLSTMNode
    levels: Levels
    x: Tensor  # [leaves, D_IN]
    labels: Tensor

    def leaves(self) -> tuple[Tensor, Tensor]:
        i, o, u = self.leaf.input(self.x).chunk(3, 1)
        c = i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c

    def inner(self, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """One level, from the states [2n, D] of its vertices' children."""
        hidden = self.node.hidden
        gates, update = F.linear(h.view(-1, 2 * D), hidden.weight, hidden.bias).split_with_sizes([4 * D, D], 1)
        i, o, forget = gates.sigmoid().split_with_sizes([D, D, 2 * D], 1)
        c = i * update.tanh() + (forget.view(-1, 2, D) * c.view(-1, 2, D)).sum(1)
        return o * c.tanh(), c

    def logits(self, h: Tensor) -> Tensor:
        out = self.node.out
        assert out is not None
        return out(h)  # type: ignore[no-any-return]


def growing(hand: Hand) -> Tensor:
    h, c = hand.leaves()
    for kids in hand.levels.kids:
        new_h, new_c = hand.inner(h.index_select(0, kids), c.index_select(0, kids))
        h, c = torch.cat([h, new_h]), torch.cat([c, new_c])
    return hand.logits(h)


def preallocated(hand: Hand) -> Tensor:
    leaf_h, leaf_c = hand.leaves()
    done = hand.levels.counts[0]
    h, c = leaf_h.new_empty(len(hand.labels), D), leaf_c.new_empty(len(hand.labels), D)
    h[:done], c[:done] = leaf_h, leaf_c
    for kids, count in zip(hand.levels.kids, hand.levels.counts[1:], strict=True):
        rows = slice(done, done + count)
        h[rows], c[rows] = hand.inner(h.index_select(0, kids), c.index_select(0, kids))
        done += count
    return hand.logits(h)


def frontier(hand: Hand) -> Tensor:
    h, c = hand.leaves()
    made = [h]
    for take, keep in zip(hand.levels.take, hand.levels.keep, strict=True):
        new_h, new_c = hand.inner(h.index_select(0, take), c.index_select(0, take))
        made.append(new_h)
        h = torch.cat([h.index_select(0, keep), new_h])
        c = torch.cat([c.index_select(0, keep), new_c])
    return hand.logits(torch.cat(made))


def one_by_one(hand: Hand, trees: Sequence[data.BinaryTree], rows: Sequence[Tensor]) -> list[Tensor]:
    """Logits of every vertex of each tree: a vertex at a time, the classifier a tree at a time."""
    out = []
    for tree, x in zip(trees, rows, strict=True):
        states: list[tuple[Tensor, Tensor]] = []
        for at, (left, right) in enumerate(tree.children.tolist()):
            if left < 0:
                i, o, u = hand.leaf.input(x[at]).chunk(3)
                c = i.sigmoid() * u.tanh()
                states.append((o.sigmoid() * c.tanh(), c))
                continue
            (h0, c0), (h1, c1) = states[left], states[right]
            gates, update = hand.node.hidden(torch.cat([h0, h1])).split_with_sizes([4 * D, D])
            i, o, f0, f1 = gates.sigmoid().chunk(4)
            c = i * update.tanh() + f0 * c0 + f1 * c1
            states.append((o * c.tanh(), c))
        out.append(hand.logits(torch.stack([h for h, _ in states])))
    return out


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="sum")


def _csr(tree: data.BinaryTree) -> tuple[data.Ints, data.Ints]:
    inner = tree.children[:, 0] >= 0
    return tree.children[inner].reshape(-1), np.concatenate([[0], np.cumsum(2 * inner)])


def _rows(tree: data.BinaryTree, table: Tensor) -> Tensor:
    words = torch.from_numpy(tree.words)
    return torch.where(words[:, None] >= 0, table[words.clamp(min=0)], 0.0)


def make_model(dtype: torch.dtype) -> NaryTreeLSTM:
    torch.manual_seed(0)
    model = NaryTreeLSTM(D_IN, D, classes=CLASSES)
    model.to(dtype)
    return model


def make_instance(model: NaryTreeLSTM, trees: Sequence[data.BinaryTree], table: Tensor) -> Instance:
    levels = make_levels(*concatenated([_csr(tree) for tree in trees]))
    xs = [
        torch.where(words[:, None] >= 0, table[words.clamp(min=0)], 0.0)
        for words in map(torch.from_numpy, (t.words for t in trees))
    ]
    labels = [torch.from_numpy(tree.labels) for tree in trees]
    leaves = levels.order[: levels.counts[0]]
    hand = Hand(
        part(model, TreeLSTMLeaf), part(model, TreeLSTMNode), levels, torch.cat(xs)[leaves], torch.cat(labels)[levels.order]
    )

    def by_hand(name: str, forward: Forward) -> Variant:
        step = training(lambda: summed_loss(forward(hand), hand.labels))
        return Variant(name, "hand", step, lambda: forward(hand), levels.to_caller)

    def singly() -> Tensor:
        return torch.cat(one_by_one(hand, trees, xs))

    def singly_loss() -> Tensor:
        return torch.stack([summed_loss(*pair) for pair in zip(one_by_one(hand, trees, xs), labels, strict=True)]).sum()

    inner = levels.counts[1:]
    products = [
        Linear([levels.counts[0]], D_IN, 3 * D, gradient_from=None),
        Linear(inner, 2 * D, 5 * D),
        Linear([len(hand.labels)], D, CLASSES),
    ]
    graphs = [weft.Graph(tree.children, types=(tree.children[:, 0] >= 0).astype(np.int64)) for tree in trees]
    variants = [
        Variant(ONE, "one by one", training(singly_loss), singly),
        by_hand("hand: growing cat", growing),
        by_hand("hand: preallocated", preallocated),
        by_hand("hand: frontier", frontier),
        products_alone(products, table.dtype),
        *weft_variants(model, graphs, xs, summed_loss, labels),
        *recorded_variants(model, trees, table),
    ]
    facts = {"trees": len(trees), "vertices": len(hand.labels), "levels": len(levels.counts)}
    return Instance(variants, dict(model.named_parameters()), facts)


def targets(batch: int) -> tuple[Target, ...]:
    """What weft wants to reach at this batch size."""
    infer = Target("infer", HAND, 1.0)
    if batch == 1:
        single = (Target("train", ONE, 1.3, of=RECORDED), Target("train", ONE, 1.0, of=KEPT))
        return Target("train", HAND, 0.95, aim=0.55), Target("train", ONE, 1.0), infer, *single
    found = [Target("train", HAND, 0.92), Target("train", "DyNet", 1.0), infer]
    found += [Target("train", "DyNet", 1.0, of=RECORDED), Target("infer", "DyNet", 1.0, of=RECORDED)]
    if batch == 64:
        found += [Target("train", ONE, 1 / 12), Target("train", WEFT, 1.15, of=KEPT)]
    if batch == 256:
        found.append(Target("train", PRODUCTS, 1.40, aim=1.25))
        found.append(Target("train", WEFT, 0.005, of=WAY_BACK))
    return tuple(found)


def load(options: Options) -> tuple[list[data.BinaryTree], Tensor]:
    """The first trees of the training set, and a fixed random row for every word."""
    trees, words = data.sst(options.folder(), "train", limit=1024)
    return trees, torch.randn(words, D_IN, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.3


def batch_of(trees: Sequence[data.BinaryTree], batch: int) -> list[Sequence[data.BinaryTree]]:
    """One batch; for a batch of one tree as many single trees as are needed for a fair median."""
    return [[tree] for tree in trees[:SINGLE]] if batch == 1 else [trees[:batch]]


def cases(options: Options) -> list[CaseSpec]:
    trees, table = load(options)

    def build(batch: int, dtype: torch.dtype) -> list[Instance]:
        model = make_model(dtype)
        return [make_instance(model, group, table.to(dtype)) for group in batch_of(trees, batch)]

    return [
        CaseSpec("tree_lstm", f"{batch} SST tree{'s' * (batch > 1)}", batch, partial(build, batch), targets(batch))
        for batch in options.choose((1, 16, 64, 256), (1, 16))
    ]
