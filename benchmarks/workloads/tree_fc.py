"""Tree-FC: one fully connected layer up full binary trees of 256 leaves, hidden 512 and 1024, a loss at the roots."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import weft
from benchmarks.harness import Instance, Variant, training
from benchmarks.products import Linear, products_alone
from benchmarks.workloads.common import HAND, ONE, CaseSpec, Options, Target, part, readable, squares, weft_variants
from weft.nn import TreeFC, TreeFCNode

LEAVES = 256
DEPTH = 8
SINGLE = 4
ONE_BY_ONE_UP_TO = 8

Forward = Callable[[TreeFCNode, Tensor], Tensor]


def layer(node: TreeFCNode, children: Tensor) -> Tensor:
    """One level from its children [2n, d], siblings side by side: all trees are alike, so no index is needed."""
    return F.linear(children.view(-1, 2 * children.shape[1]), node.fc.weight, node.fc.bias).tanh()


def growing(node: TreeFCNode, x: Tensor) -> Tensor:
    h, rows = x, len(x)
    for _ in range(DEPTH):
        h = torch.cat([h, layer(node, h[-rows:])])
        rows //= 2
    return h[-rows:]


def preallocated(node: TreeFCNode, x: Tensor) -> Tensor:
    h = x.new_empty(2 * len(x), x.shape[1])
    h[: len(x)] = x
    start, rows = 0, len(x)
    for _ in range(DEPTH):
        h[start + rows : start + rows + rows // 2] = layer(node, readable(h[start : start + rows]))
        start, rows = start + rows, rows // 2
    return h[start : start + rows]


def frontier(node: TreeFCNode, x: Tensor) -> Tensor:
    for _ in range(DEPTH):
        x = layer(node, x)
    return x


def one_by_one(node: TreeFCNode, xs: list[Tensor]) -> Tensor:
    out = []
    for x in xs:
        states = list(x.unbind())
        while len(states) > 1:
            pairs = zip(states[::2], states[1::2], strict=True)
            states = [torch.tanh(node.fc(torch.cat([left, right]))) for left, right in pairs]
        out.append(states[0])
    return torch.stack(out)


def full_tree() -> weft.Graph:
    """Leaves first, then level by level, the root last."""
    inner = np.arange(2 * (LEAVES - 1)).reshape(-1, 2)
    children = np.concatenate([np.full((LEAVES, 2), -1), inner])
    return weft.Graph(children, types=(children[:, 0] >= 0).astype(np.int64))


def make_instance(model: TreeFC, xs: list[Tensor]) -> Instance:
    """`xs`: the leaves of each tree, [LEAVES, d]."""
    batch, d = len(xs), xs[0].shape[1]
    node = part(model, TreeFCNode)
    leaves = torch.cat(xs)
    levels = [batch * LEAVES >> at for at in range(1, DEPTH + 1)]

    def by_hand(name: str, forward: Forward) -> Variant:
        step = training(lambda: squares(forward(node, leaves)))
        return Variant(name, "hand", step, lambda: forward(node, leaves))

    variants = [
        by_hand("hand: growing cat", growing),
        by_hand("hand: preallocated", preallocated),
        by_hand("hand: frontier", frontier),
        products_alone([Linear(levels, 2 * d, d, gradient_from=1)], leaves.dtype),
    ]
    if batch <= ONE_BY_ONE_UP_TO:
        singly = training(lambda: squares(one_by_one(node, xs)))
        variants.insert(0, Variant(ONE, "one by one", singly, lambda: one_by_one(node, xs)))
    padded = [torch.cat([x, x.new_zeros(LEAVES - 1, d)]) for x in xs]
    variants += weft_variants(model, [full_tree() for _ in xs], padded, squares, roots_only=True)
    facts = {"trees": batch, "vertices": batch * (2 * LEAVES - 1), "levels": DEPTH + 1}
    return Instance(variants, dict(model.named_parameters()), facts)


def cases(options: Options) -> list[CaseSpec]:
    def build(batch: int, d: int, dtype: torch.dtype) -> list[Instance]:
        torch.manual_seed(0)
        model = TreeFC(d).to(dtype)
        xs = [torch.randn(LEAVES, d, dtype=torch.float64).to(dtype) for _ in range(SINGLE if batch == 1 else batch)]
        return [make_instance(model, [x]) for x in xs] if batch == 1 else [make_instance(model, xs)]

    def targets(batch: int) -> tuple[Target, ...]:
        within = Target("train", HAND, 1.05), Target("infer", HAND, 1.05)
        return (*within, Target("train", ONE, 1.0)) if batch == 1 else within

    return [
        CaseSpec("tree_fc", f"{batch} x 256 leaves, hidden {d}", batch, partial(build, batch, d), targets(batch))
        for d in ((512,) if options.quick else (512, 1024))
        for batch in options.choose((1, 8, 64), (1, 8))
    ]
