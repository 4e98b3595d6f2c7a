"""N-ary Tree-LSTM on SST trees, on a GPU: weft beside hand-batched PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import weft
from benchmarks import data
from benchmarks.workloads.levels import Levels, concatenated, make_levels
from weft.api.modelcache import ModelCache
from weft.nn import NaryTreeLSTM, TreeLSTMLeaf, TreeLSTMNode
from weft.plan.schedule import PlanCache

D_IN = 300
CUDA = torch.device("cuda")


def csr(tree: data.BinaryTree) -> tuple[data.Ints, data.Ints]:
    inner = tree.children[:, 0] >= 0
    return tree.children[inner].reshape(-1), np.concatenate([[0], np.cumsum(2 * inner)])


@dataclass(frozen=True)
class Batch:
    """One mini-batch: the trees' graphs, and for the hand-batched forms its levels, all indices on the device."""

    graphs: list[weft.Graph]
    x: Tensor  # [vertices, D_IN], the rows of inner vertices unused
    leaves: Tensor  # the leaves' rows, in level order
    gradient: Tensor  # [vertices, d], of the pushed states
    by_level: Tensor  # the same in level order
    levels: Levels
    kids: list[Tensor]


def make_batch(trees: Sequence[data.BinaryTree], graphs: Sequence[weft.Graph], d: int, seed: int) -> Batch:
    levels = make_levels(*concatenated([csr(tree) for tree in trees]))
    generator = torch.Generator().manual_seed(seed)
    vertices = sum(len(tree.words) for tree in trees)
    x = torch.randn(vertices, D_IN, generator=generator).to(CUDA)
    gradient = torch.randn(vertices, d, generator=generator).to(CUDA)
    order = torch.as_tensor(levels.order)
    kids = [kids.to(CUDA) for kids in levels.kids]
    return Batch(list(graphs), x, x[order[: levels.counts[0]]], gradient, gradient[order], levels, kids)


class Hand:
    """The recurrence level by level in plain PyTorch, with the model's own weights."""

    def __init__(self, model: NaryTreeLSTM, d: int) -> None:
        self.leaf = next(m for m in model.modules() if isinstance(m, TreeLSTMLeaf))
        self.node = next(m for m in model.modules() if isinstance(m, TreeLSTMNode))
        self.d = d

    def leaves(self, batch: Batch) -> tuple[Tensor, Tensor]:
        i, o, u = self.leaf.input(batch.leaves).chunk(3, 1)
        c = i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c

    def inner(self, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        d = self.d
        gates, update = F.linear(h.view(-1, 2 * d), self.node.hidden.weight, self.node.hidden.bias).split([4 * d, d], 1)
        i, o, forget = gates.sigmoid().split([d, d, 2 * d], 1)
        c = i * update.tanh() + (forget.view(-1, 2, d) * c.view(-1, 2, d)).sum(1)
        return o * c.tanh(), c

    def growing(self, batch: Batch) -> Tensor:
        h, c = self.leaves(batch)
        for kids in batch.kids:
            new_h, new_c = self.inner(h.index_select(0, kids), c.index_select(0, kids))
            h, c = torch.cat([h, new_h]), torch.cat([c, new_c])
        return h

    def preallocated(self, batch: Batch) -> Tensor:
        leaf_h, leaf_c = self.leaves(batch)
        done = batch.levels.counts[0]
        h, c = leaf_h.new_empty(len(batch.x), self.d), leaf_c.new_empty(len(batch.x), self.d)
        h[:done], c[:done] = leaf_h, leaf_c
        for kids, count in zip(batch.kids, batch.levels.counts[1:], strict=True):
            rows = slice(done, done + count)
            h[rows], c[rows] = self.inner(h.index_select(0, kids), c.index_select(0, kids))
            done += count
        return h


def hand_step(model: NaryTreeLSTM, forward: Callable[[Batch], Tensor]) -> Callable[[Batch], None]:
    """Forward and backward; the gradients start from nothing."""
    parameters = list(model.parameters())

    def step(batch: Batch) -> None:
        without_gradients(parameters)
        forward(batch).backward(batch.by_level)

    return step


def weft_step(model: NaryTreeLSTM, **options: object) -> Callable[[Batch], None]:
    """Merging cached graphs, planning, the copy to the device, forward and backward."""
    parameters = list(model.parameters())
    keep_no_plans(model)

    def step(batch: Batch) -> None:
        without_gradients(parameters)
        model(weft.Graph.batch(batch.graphs), batch.x, **options).backward(batch.gradient)

    return step


def without_gradients(parameters: Sequence[Tensor]) -> None:
    """As optimisers do it, with parameters that they know: to find those of a module takes a while."""
    for parameter in parameters:
        parameter.grad = None


def keep_no_plans(model: weft.VertexFunction) -> None:
    """So that batches that come again are planned again, as new ones are."""
    ModelCache.of(model).plans = PlanCache(0)


def load(folder: str | None, count: int) -> tuple[list[data.BinaryTree], list[weft.Graph]]:
    trees, _ = data.sst(data.folder(folder), "train", limit=count)
    graphs = [weft.Graph(tree.children, types=(tree.children[:, 0] >= 0).astype(np.int64)) for tree in trees]
    return trees, graphs
