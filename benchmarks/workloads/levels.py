"""Index arrays for hand-batched code: which vertices form a level, where their children's rows are.

The hand-batched variants get all of this for free: it is made once, outside of what is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.data import Ints


@dataclass(frozen=True)
class Levels:
    """Vertices sorted by level; a *row* is a place in that order. The lists hold one entry for each level above the leaves.

    `kids`: rows of the children, parent after parent; `parent`: for each of them its parent's place in the level.
    `take`, `keep`: the same children as places in the frontier, and the places of those that live on.
    """

    order: Tensor
    counts: list[int]
    kids: list[Tensor]
    parent: list[Tensor]
    take: list[Tensor]
    keep: list[Tensor]

    def to_caller(self, rows: Tensor) -> Tensor:
        """Rows in this order, brought into the vertices' own order."""
        return torch.empty_like(rows).index_copy_(0, self.order, rows)


def depths(flat: Ints, parents: Ints, n: int) -> Ints:
    """Level of every vertex: 0 without children, else one more than the highest child. Edges are flat[e] to parents[e]."""
    level = np.zeros(n, dtype=np.int64)
    while True:
        raised = level.copy()
        np.maximum.at(raised, parents, level[flat] + 1)
        if (raised == level).all():
            return level
        level = raised


def make_levels(flat: Ints, offsets: Ints) -> Levels:
    """From the children of all vertices, `flat[offsets[v]:offsets[v + 1]]` being those of vertex v."""
    n = len(offsets) - 1
    edge_parent = np.repeat(np.arange(n), np.diff(offsets))
    level = depths(flat, edge_parent, n)
    order = np.argsort(level, kind="stable")
    row = np.empty(n, dtype=np.int64)
    row[order] = np.arange(n)
    last_use = np.zeros(n, dtype=np.int64)
    np.maximum.at(last_use, row[flat], level[edge_parent])
    counts = np.bincount(level).tolist()
    kids, parent, take, keep = [], [], [], []
    frontier, start = np.arange(counts[0]), counts[0]
    place = np.full(n, -1, dtype=np.int64)
    for at, count in enumerate(counts[1:], start=1):
        members = order[start : start + count]
        rows = [row[flat[offsets[v] : offsets[v + 1]]] for v in members]
        kids.append(np.concatenate(rows))
        parent.append(np.repeat(np.arange(count), [len(r) for r in rows]))
        place[frontier] = np.arange(len(frontier))
        take.append(place[kids[-1]])
        keep.append(np.flatnonzero(last_use[frontier] > at))
        frontier = np.concatenate([frontier[keep[-1]], np.arange(start, start + count)])
        start += count
    return Levels(torch.from_numpy(order), counts, *(_tensors(arrays) for arrays in (kids, parent, take, keep)))


def _tensors(arrays: Sequence[Ints]) -> list[Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]


def concatenated(parts: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """One forest out of several: children and offsets with the vertices numbered on."""
    vertex, edge, flats, offsets = 0, 0, [], [np.zeros(1, dtype=np.int64)]
    for flat, starts in parts:
        flats.append(flat + vertex)
        offsets.append(starts[1:] + edge)
        vertex += len(starts) - 1
        edge += len(flat)
    return np.concatenate(flats), np.concatenate(offsets)
