"""Child-sum Tree-LSTM on the dependency trees of SICK: GloVe row of 300 at every vertex, hidden 150, a loss at the roots.

A batch is counted in sentence pairs, each of which is two trees; batch 1 is one tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

import weft
from benchmarks import data
from benchmarks.harness import Instance, Variant, training
from benchmarks.products import Linear, products_alone
from benchmarks.workloads.common import HAND, ONE, CaseSpec, Options, Target, squares, weft_variants
from benchmarks.workloads.levels import Levels, concatenated, make_levels
from weft.nn import ChildSumTreeLSTM

D_IN, D = 300, 150
SINGLE = 32

Forward = Callable[["Hand"], Tensor]


@dataclass(frozen=True)
class Hand:
    """The model, and the batch in level order: the rows of all vertices, of all edges' parents, and of the roots."""

    model: ChildSumTreeLSTM
    levels: Levels
    x: Tensor
    edge_parents: Tensor  # among the inner vertices
    roots: Tensor

    def hoisted(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """What the inputs give, once for all: [n, 3 D] for each level, [edges, D] for each level above the leaves."""
        counts = self.levels.counts
        forget = self.model.f(self.x[counts[0] :]).index_select(0, self.edge_parents)
        return self.model.iou(self.x).split_with_sizes(counts), forget.split_with_sizes(
            [len(kids) for kids in self.levels.kids]
        )

    def state(self, rows: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        gates, u = rows.split_with_sizes([2 * D, D], 1)
        i, o = gates.sigmoid().chunk(2, 1)
        c = i * u.tanh()
        if kept is not None:
            c = c + kept
        return o * c.tanh(), c

    def inner(self, at: int, iou: Tensor, forget: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """One level from its children's states [edges, D]."""
        parent, count = self.levels.parent[at], self.levels.counts[at + 1]
        kept = torch.addmm(forget, h, self.model.f_h.weight.t()).sigmoid() * c
        total = h.new_zeros(count, D).index_add_(0, parent, h)
        rows = torch.addmm(iou, total, self.model.iou_h.weight.t())
        return self.state(rows, h.new_zeros(count, D).index_add_(0, parent, kept))


def growing(hand: Hand) -> Tensor:
    iou, forget = hand.hoisted()
    h, c = hand.state(iou[0], None)
    for at, kids in enumerate(hand.levels.kids):
        new_h, new_c = hand.inner(at, iou[at + 1], forget[at], h.index_select(0, kids), c.index_select(0, kids))
        h, c = torch.cat([h, new_h]), torch.cat([c, new_c])
    return h.index_select(0, hand.roots)


def preallocated(hand: Hand) -> Tensor:
    iou, forget = hand.hoisted()
    done = hand.levels.counts[0]
    h, c = hand.x.new_empty(len(hand.x), D), hand.x.new_empty(len(hand.x), D)
    h[:done], c[:done] = hand.state(iou[0], None)
    for at, kids in enumerate(hand.levels.kids):
        rows = slice(done, done + hand.levels.counts[at + 1])
        h[rows], c[rows] = hand.inner(at, iou[at + 1], forget[at], h.index_select(0, kids), c.index_select(0, kids))
        done = rows.stop
    return h.index_select(0, hand.roots)


def frontier(hand: Hand) -> Tensor:
    iou, forget = hand.hoisted()
    h, c = hand.state(iou[0], None)
    made = [h]
    for at, (take, keep) in enumerate(zip(hand.levels.take, hand.levels.keep, strict=True)):
        new_h, new_c = hand.inner(at, iou[at + 1], forget[at], h.index_select(0, take), c.index_select(0, take))
        made.append(new_h)
        h, c = torch.cat([h.index_select(0, keep), new_h]), torch.cat([c.index_select(0, keep), new_c])
    return torch.cat(made).index_select(0, hand.roots)


def one_by_one(model: ChildSumTreeLSTM, trees: Sequence[Sequence[Sequence[int]]], xs: Sequence[Tensor]) -> Tensor:
    """The roots' h, a vertex at a time. A tree is the list of its (vertex, *children), children before parents."""
    out = []
    for tree, x in zip(trees, xs, strict=True):
        states: dict[int, tuple[Tensor, Tensor]] = {}
        for vertex, *children in tree:
            rows = model.iou(x[vertex])
            if children:
                h = torch.stack([states[child][0] for child in children])
                c = torch.stack([states[child][1] for child in children])
                rows = rows + model.iou_h(h.sum(0))
                kept = (torch.sigmoid(model.f(x[vertex]) + model.f_h(h)) * c).sum(0)
            i, o, u = rows.chunk(3)
            new_c = i.sigmoid() * u.tanh()
            if children:
                new_c = new_c + kept
            states[vertex] = (o.sigmoid() * new_c.tanh(), new_c)
        out.append(states[tree[-1][0]][0])
    return torch.stack(out)


def _csr(parents: data.Ints) -> tuple[data.Ints, data.Ints]:
    order = np.argsort(parents, kind="stable")
    counts = np.bincount(parents[parents >= 0], minlength=len(parents))
    return order[parents[order] >= 0], np.concatenate([[0], np.cumsum(counts)])


def _bottom_up(parents: data.Ints) -> list[list[int]]:
    flat, offsets = _csr(parents)
    order = make_levels(flat, offsets).order.tolist()
    return [[vertex, *flat[offsets[vertex] : offsets[vertex + 1]].tolist()] for vertex in order]


def make_instance(model: ChildSumTreeLSTM, trees: Sequence[data.DependencyTree], xs: Sequence[Tensor]) -> Instance:
    levels = make_levels(*concatenated([_csr(tree.parents) for tree in trees]))
    inner = levels.counts[1:]
    starts = np.cumsum([0, *inner])
    edge_parents = torch.cat([parent + int(start) for parent, start in zip(levels.parent, starts, strict=False)])
    is_root = torch.from_numpy(np.concatenate([tree.parents for tree in trees]) < 0)
    place = torch.empty_like(levels.order)
    place[levels.order] = torch.arange(len(place))
    hand = Hand(model, levels, torch.cat(list(xs))[levels.order], edge_parents, place[is_root.nonzero().squeeze(1)])
    bottom_up = [_bottom_up(tree.parents) for tree in trees]

    def by_hand(name: str, forward: Forward) -> Variant:
        return Variant(name, "hand", training(lambda: squares(forward(hand))), lambda: forward(hand))

    def singly() -> Tensor:
        return one_by_one(model, bottom_up, xs)

    edges = [len(kids) for kids in levels.kids]
    products = [
        Linear([len(hand.x)], D_IN, 3 * D, gradient_from=None),
        Linear([sum(inner)], D_IN, D, gradient_from=None),
        Linear(inner, D, 3 * D),
        Linear(edges, D, D),
    ]
    variants = [
        Variant(ONE, "one by one", training(lambda: squares(singly())), singly),
        by_hand("hand: growing cat", growing),
        by_hand("hand: preallocated", preallocated),
        by_hand("hand: frontier", frontier),
        products_alone(products, hand.x.dtype),
        *weft_variants(model, [weft.Graph.from_parents(tree.parents) for tree in trees], xs, squares, roots_only=True),
    ]
    facts = {"trees": len(trees), "vertices": len(hand.x), "levels": len(levels.counts)}
    return Instance(variants, dict(model.named_parameters()), facts)


def cases(options: Options) -> list[CaseSpec]:
    pairs = data.sick(options.folder(), "train")
    vectors = data.glove(options.folder())
    nothing = np.zeros(D_IN, dtype=np.float32)

    def build(batch: int, dtype: torch.dtype) -> list[Instance]:
        torch.manual_seed(0)
        model = ChildSumTreeLSTM(D_IN, D).to(dtype)
        flat = [tree for pair in pairs[: SINGLE if batch == 1 else batch] for tree in pair]
        groups = [[tree] for tree in flat[:SINGLE]] if batch == 1 else [flat]

        def rows(tree: data.DependencyTree) -> Tensor:
            return torch.from_numpy(np.stack([vectors.get(word, nothing) for word in tree.words])).to(dtype)

        return [make_instance(model, group, [rows(tree) for tree in group]) for group in groups]

    def label(batch: int) -> str:
        return "1 SICK tree" if batch == 1 else f"{batch} SICK pairs"

    def targets(batch: int) -> tuple[Target, ...]:
        return (Target("train", ONE, 1.0),) if batch == 1 else (Target("train", HAND, 1.0),) if batch == 256 else ()

    return [
        CaseSpec("child_sum", label(batch), batch, partial(build, batch), targets(batch))
        for batch in options.choose((1, 25, 256), (1, 25))
    ]
