"""Examples of a vertex function, merged: one graph of all graphs, the rows of all vertices one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from weft.api.graph import Graph
from weft.api.inputs import place
from weft.errors import ShapeError, TypeMismatch


def collated(name: str, examples: Sequence[Any]) -> tuple[Graph, Any]:
    """The batch's graph and its `x`; None where the examples are graphs alone."""
    pairs = [(example, None) if isinstance(example, Graph) else _pair(name, at, example) for at, example in enumerate(examples)]
    graph = Graph.batch([graph for graph, _ in pairs])
    if not pairs or all(x is None for _, x in pairs):
        return graph, None
    flat = [tree_flatten(x) for _, x in pairs]
    for at, ((mine, _), (leaves, tree)) in enumerate(zip(pairs, flat, strict=True)):
        if tree != flat[0][1]:
            raise TypeMismatch(f"{name}: example {at}: expected x of the same structure as that of example 0, came another")
        for number, leaf in enumerate(leaves):
            _check(name, at, pairs[at][1], number, leaf, mine.num_vertices, flat[0][0][number])
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return graph, tree_unflatten([torch.cat(column) for column in columns], flat[0][1])


def _check(name: str, at: int, x: Any, number: int, leaf: Any, rows: int, first: Any) -> None:
    """A leaf of an example's x has a row for each vertex, and rows as those of the first example."""
    where = f"{name}: example {at}: x{place(x, number)}"
    if not isinstance(leaf, Tensor) or leaf.dim() == 0 or len(leaf) != rows:
        came = f"shape {list(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__
        raise ShapeError(f"{where}: expected {rows} rows, one for each vertex, got {came}")
    if leaf.shape[1:] != first.shape[1:] or leaf.dtype != first.dtype:
        expected = f"{first.dtype} of shape {list(first.shape[1:])}, as in example 0"
        raise ShapeError(f"{where}: expected rows of {expected}, got {leaf.dtype} of shape {list(leaf.shape[1:])}")


def _pair(name: str, at: int, example: Any) -> tuple[Graph, Any]:
    if isinstance(example, tuple | list) and len(example) == 2 and isinstance(example[0], Graph):
        return example[0], example[1]
    came = type(example).__name__
    raise TypeMismatch(f"{name}: example {at}: expected a weft.Graph, or a pair of a graph and its x, got {came}")
