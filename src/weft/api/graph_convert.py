"""Structures of other libraries as edges or parents. Nothing is imported from them: what has their methods will do."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from weft.api.graph_check import array_of, show
from weft.errors import ShapeError, TypeMismatch

Ints = npt.NDArray[np.int32]


class Edges(NamedTuple):
    """Edges from `src[e]` to `dst[e]` between `num_vertices` vertices."""

    src: npt.NDArray[Any]
    dst: npt.NDArray[Any]
    num_vertices: int


def edges_of_networkx(graph: Any) -> Edges:
    """Nodes in `graph.nodes` order, edges in `graph.edges` order; an undirected edge is followed by its reverse."""
    if not (hasattr(graph, "nodes") and hasattr(graph, "edges") and hasattr(graph, "is_directed")):
        raise TypeMismatch(f"Graph.from_networkx: expected a networkx graph, came {show(graph)}")
    number = {node: index for index, node in enumerate(graph.nodes)}
    pairs = list(graph.edges())
    src = np.fromiter((number[u] for u, _ in pairs), np.int32, len(pairs))
    dst = np.fromiter((number[v] for _, v in pairs), np.int32, len(pairs))
    if not graph.is_directed():
        src, dst = np.column_stack((src, dst)).ravel(), np.column_stack((dst, src)).ravel()
        # The reverse of a self-loop is itself.
        keep = (src != dst) | (np.arange(len(src)) % 2 == 0)
        src, dst = src[keep], dst[keep]
    return Edges(src, dst, len(number))


def edges_of_pyg(data: Any) -> Edges:
    """`data.edge_index` [2, E], row 0 the sources and row 1 the targets, between `data.num_nodes` vertices."""
    if getattr(data, "edge_index", None) is None or getattr(data, "num_nodes", None) is None:
        raise TypeMismatch(f"Graph.from_pyg: expected an object with edge_index and num_nodes, came {show(data)}")
    index = array_of(data.edge_index, "Graph.from_pyg: edge_index")
    if index.ndim != 2 or len(index) != 2:
        raise ShapeError(f"Graph.from_pyg: edge_index: expected shape [2, E], came {list(index.shape)}")
    return Edges(index[0], index[1], data.num_nodes)


def parents_of_nltk(tree: Any) -> tuple[Ints, list[Any]]:
    """The parent and the label (a leaf: the leaf itself) of every vertex in post-order.

    Taking the last child first and reading the result backwards is post-order, without recursion.
    """
    if not callable(getattr(tree, "label", None)):
        raise TypeMismatch(f"Graph.from_nltk: expected an nltk.Tree, came {show(tree)}")
    labels: list[Any] = []
    above: list[int] = []
    stack: list[tuple[Any, int]] = [(tree, -1)]
    while stack:
        node, parent = stack.pop()
        here = len(labels)
        above.append(parent)
        if callable(getattr(node, "label", None)):
            labels.append(node.label())
            stack.extend([(child, here) for child in node])
        else:
            labels.append(node)
    taken = np.array(above[::-1], dtype=np.int32)
    return np.where(taken >= 0, len(labels) - 1 - taken, -1).astype(np.int32), labels[::-1]
