"""Child-sum Tree-LSTM and Tree-GRU on the dependency trees of SICK, and 10 x 10 grids: weft beside hand-batched PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import weft
import weft.nn
from benchmarks import data
from benchmarks.gpu.trees import keep_no_plans
from benchmarks.workloads.grid import _waves
from benchmarks.workloads.levels import Levels, concatenated, make_levels

CUDA = torch.device("cuda")
D_IN = 300
SIDE = 10

Model = weft.nn.ChildSumTreeLSTM | weft.nn.TreeGRU | weft.nn.GridCell


@dataclass(frozen=True)
class Batch:
    """Graphs with a row at every vertex; for hand-batched code the same in level order, all indices on the device."""

    graphs: list[weft.Graph]
    x: Tensor
    gradient: Tensor
    by_level: Tensor
    gradient_by_level: Tensor
    counts: list[int]
    kids: list[Tensor]
    parent: list[Tensor]


def _batch(graphs: list[weft.Graph], order: Tensor, counts: list[int], kids: Sequence[Tensor], d: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(order), D_IN, generator=generator).to(CUDA)
    gradient = torch.randn(len(order), d, generator=generator).to(CUDA)
    place = order.to(CUDA)
    return Batch(graphs, x, gradient, x[place], gradient[place], counts, [one.to(CUDA) for one in kids], [])


def sick_batches(folder: str | None, count: int, d: int, batches: int) -> list[Batch]:
    trees = [tree for pair in data.sick(data.folder(folder), "train") for tree in pair]
    graphs = [weft.Graph.from_parents(tree.parents) for tree in trees]
    found = []
    for seed in range(batches):
        pick = np.random.default_rng(seed).permutation(len(trees))[:count]
        levels: Levels = make_levels(*concatenated([_csr(trees[i].parents) for i in pick]))
        batch = _batch([graphs[i] for i in pick], levels.order, levels.counts, levels.kids, d, seed)
        found.append(Batch(*[*vars(batch).values()][:-1], [one.to(CUDA) for one in levels.parent]))
    return found


def _csr(parents: data.Ints) -> tuple[data.Ints, data.Ints]:
    order = np.argsort(parents, kind="stable")
    counts = np.bincount(parents[parents >= 0], minlength=len(parents))
    return order[parents[order] >= 0], np.concatenate([[0], np.cumsum(counts)])


def grid_batches(count: int, d: int, batches: int) -> list[Batch]:
    order, counts, kids = _waves(count)
    graph = weft.Graph.grid(SIDE, SIDE)
    return [_batch([graph] * count, order, counts, kids, d, seed) for seed in range(batches)]


def weft_step(model: Model, anew: bool = True) -> Callable[[Batch], None]:
    """Merging cached graphs, planning (unless batches are of one structure), the copy to the device, forward and backward."""
    if anew:
        keep_no_plans(model)

    def step(batch: Batch) -> None:
        model.zero_grad()
        model(weft.Graph.batch(batch.graphs), batch.x).backward(batch.gradient)

    return step


def hand_step(model: Model, forward: Callable[[Model, Batch], Tensor]) -> Callable[[Batch], None]:
    def step(batch: Batch) -> None:
        model.zero_grad()
        forward(model, batch).backward(batch.gradient_by_level)

    return step


def child_sum(model: weft.nn.ChildSumTreeLSTM, batch: Batch) -> Tensor:
    """Level by level, states in a growing tensor."""
    d = model.f.out_features
    iou = model.iou(batch.by_level).split_with_sizes(batch.counts)
    forget = model.f(batch.by_level[batch.counts[0] :]).split_with_sizes(batch.counts[1:])
    h, c = _state(iou[0], d, None)
    for at, (kids, parent) in enumerate(zip(batch.kids, batch.parent, strict=True)):
        below, memory = h.index_select(0, kids), c.index_select(0, kids)
        kept = torch.addmm(forget[at].index_select(0, parent), below, model.f_h.weight.t()).sigmoid() * memory
        count = batch.counts[at + 1]
        total = below.new_zeros(count, d).index_add_(0, parent, below)
        rows = torch.addmm(iou[at + 1], total, model.iou_h.weight.t())
        new_h, new_c = _state(rows, d, below.new_zeros(count, d).index_add_(0, parent, kept))
        h, c = torch.cat([h, new_h]), torch.cat([c, new_c])
    return h


def _state(rows: Tensor, d: int, kept: Tensor | None) -> tuple[Tensor, Tensor]:
    gates, u = rows.split_with_sizes([2 * d, d], 1)
    i, o = gates.sigmoid().chunk(2, 1)
    c = i * u.tanh() if kept is None else torch.addcmul(kept, i, u.tanh())
    return o * c.tanh(), c


def tree_gru(model: weft.nn.TreeGRU, batch: Batch) -> Tensor:
    d = model.fresh.out_features
    inputs = model.input(batch.by_level).split_with_sizes(batch.counts)
    h = inputs[0].new_zeros(batch.counts[0], d)
    h = _gru(model, inputs[0], h)
    for at, (kids, parent) in enumerate(zip(batch.kids, batch.parent, strict=True)):
        below = h.new_zeros(batch.counts[at + 1], d).index_add_(0, parent, h.index_select(0, kids))
        h = torch.cat([h, _gru(model, inputs[at + 1], below)])
    return h


def _gru(model: weft.nn.TreeGRU, rows: Tensor, below: Tensor) -> Tensor:
    d = below.shape[1]
    gates, n = rows.split_with_sizes([2 * d, d], 1)
    r, z = torch.addmm(gates, below, model.gates.weight.t()).sigmoid().chunk(2, 1)
    fresh = torch.addmm(n, r * below, model.fresh.weight.t()).tanh()
    return torch.lerp(fresh, below, z)


def grid(model: weft.nn.GridCell, batch: Batch) -> Tensor:
    """Wave by wave; row 0 of the states is the border."""
    d = model.input.out_features // 5
    rows = model.input(batch.by_level).split_with_sizes(batch.counts)
    zero = rows[0].new_zeros(1, d)
    i, o, _, _, u = rows[0].chunk(5, 1)
    first = i.sigmoid() * u.tanh()
    h, c = torch.cat([zero, o.sigmoid() * first.tanh()]), torch.cat([zero, first])
    for row, kids in zip(rows[1:], batch.kids, strict=True):
        sums = torch.addmm(row, h.index_select(0, kids).view(-1, 2 * d), model.hidden.weight.t())
        gates, update = sums.split_with_sizes([4 * d, d], 1)
        i, o, forget = gates.sigmoid().split_with_sizes([d, d, 2 * d], 1)
        new_c = i * update.tanh() + (forget.view(-1, 2, d) * c.index_select(0, kids).view(-1, 2, d)).sum(1)
        h, c = torch.cat([h, o * new_c.tanh()]), torch.cat([c, new_c])
    return h[1:]
