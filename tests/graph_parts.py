"""Plain Python twins of what graphs hold, and random ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.api.graph import Graph

SEEDS = range(60)
Lists = list[list[int]]


def arrays(graph: Graph) -> tuple[list[int], list[int], list[int]]:
    for array in (graph.children, graph.offsets, graph.edge_rows, graph.part_offsets):
        assert array.dtype == np.int32
        assert array.flags.c_contiguous
        assert not array.flags.writeable
    return graph.children.tolist(), graph.offsets.tolist(), graph.edge_rows.tolist()


def flat(children: Lists, rows: Lists | None = None) -> tuple[list[int], list[int], list[int]]:
    """Twin of the layout: children, offsets and edge rows (counted slot by slot unless given)."""
    offsets, out, out_rows, edge = [0], [], [], 0
    for vertex, slots in enumerate(children):
        for slot, child in enumerate(slots):
            out.append(child)
            out_rows.append(-1 if child < 0 else edge if rows is None else rows[vertex][slot])
            edge += child >= 0
        offsets.append(len(out))
    return out, offsets, out_rows


def flat_edges(src: list[int], dst: list[int], count: int) -> tuple[list[int], list[int], list[int]]:
    """Twin of from_edges."""
    children: Lists = [[] for _ in range(count)]
    rows: Lists = [[] for _ in range(count)]
    for row, (u, v) in enumerate(zip(src, dst, strict=True)):
        children[v].append(u)
        rows[v].append(row)
    return flat(children, rows)


def random_lists(rng: np.random.Generator, acyclic: bool = False) -> Lists:
    count = int(rng.integers(0, 12))
    return [
        [int(rng.integers(-1, v if acyclic else count)) for _ in range(rng.integers(0, 4))] if rng.random() < 0.7 else []
        for v in range(count)
    ]


def random_edges(rng: np.random.Generator) -> tuple[list[int], list[int], int]:
    count = int(rng.integers(1, 10))
    edges = int(rng.integers(0, 25))
    return rng.integers(0, count, edges).tolist(), rng.integers(0, count, edges).tolist(), count


class Tree(list[Any]):
    """What `nltk.Tree` offers, as far as it is read."""

    def __init__(self, label: str, children: list[Any]) -> None:
        super().__init__(children)
        self._label = label

    def label(self) -> str:
        return self._label
