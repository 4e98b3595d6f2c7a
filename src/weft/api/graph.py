"""`Graph`: who gathers whom. Flat integer arrays, one graph or a batch of them; no Python object per vertex."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from weft.api import graph_build as build
from weft.api import graph_convert as convert
from weft.api import graph_parts as merging
from weft.api.graph_build import Ints
from weft.api.graph_core import GraphCore

Indices = npt.NDArray[np.int64]


class Graph(GraphCore):
    """A structure for a vertex function: every vertex has a list of children, whose states it gathers.

    `children` is a list with one list of vertex numbers per vertex, an int array [N, k] with -1 for an empty slot, or a
    tuple (flat, offsets): vertex v has `flat[offsets[v]:offsets[v + 1]]`. Cycles are allowed (`rounds=` needs them).
    `types` gives every vertex a type, as ids or as names. Arrays may be numpy or torch.

    >>> import weft
    >>> tree = weft.Graph([[], [], [0, 1]], types=["leaf", "leaf", "node"])
    >>> both = weft.Graph.batch([tree, tree])
    >>> both
    Graph(vertices=6, edges=4, graphs=2)
    >>> both.roots.tolist(), both.depth.tolist(), both.graph_of.tolist()
    ([2, 5], [0, 0, 1, 0, 0, 1], [0, 0, 0, 1, 1, 1])

    Edges are numbered in the order in which the constructor got them; `edges=` rows of a call follow it, part after part
    in a batch. Graphs do not change: two are equal if structure, edge order, types and division into parts are. Arrays
    that are public (`roots leaves graph_of depth types`) are the caller's own copies; bind them to a name outside a loop.

    The engine reads the read-only int32 arrays `children` (flat, -1 = empty), `offsets`, `edge_rows` (the edge's number,
    -1 = empty) and `type_ids`, the names `type_names` that they index, `parts` with `part_offsets`, and the digest `key`;
    `cache` is its own. A batch merges its parts' arrays when they are first read.
    """

    def __init__(self, children: Any, *, types: Any = None) -> None:
        self._fill(build.from_children(children), types)

    def _fill(self, arrays: build.Arrays, types: Any, labels: list[Any] | None = None) -> Self:
        self._set_base(arrays, build.types_of(types, len(arrays.offsets) - 1), labels)
        return self

    @classmethod
    def from_parents(cls, parents: Any, *, types: Any = None) -> Self:
        """A tree or forest from one parent per vertex, -1 at roots; slots are in vertex order.

        Edge rows belong to the vertices that have a parent, in vertex order.

        >>> import weft
        >>> weft.Graph.from_parents([2, 2, -1]) == weft.Graph([[], [], [0, 1]])
        True
        """
        return cls.__new__(cls)._fill(build.from_parents(parents), types)

    @classmethod
    def from_edges(cls, src: Any, dst: Any, num_vertices: int, *, types: Any = None) -> Self:
        """State flows from `src[e]` to `dst[e]`; slots are in edge order; repeated edges count.

        >>> import weft
        >>> weft.Graph.from_edges([0, 1], [2, 2], 3) == weft.Graph([[], [], [0, 1]])
        True
        """
        return cls.__new__(cls)._fill(build.from_edges(src, dst, num_vertices), types)

    @classmethod
    def chain(cls, n: int, *, types: Any = None) -> Self:
        """A sequence: vertex i gathers vertex i-1.

        >>> import weft
        >>> weft.Graph.chain(3) == weft.Graph([[], [0], [1]])
        True
        """
        return cls.__new__(cls)._fill(build.chain(n), types)

    @classmethod
    def grid(cls, rows: int, cols: int, *, types: Any = None) -> Self:
        """A grid: vertex r*cols+c gathers the vertex above (slot 0) and the one to the left (slot 1).

        >>> import weft
        >>> weft.Graph.grid(2, 2) == weft.Graph([[-1, -1], [-1, 0], [0, -1], [1, 2]])
        True
        """
        return cls.__new__(cls)._fill(build.grid(rows, cols), types)

    @classmethod
    def full_binary_tree(cls, leaves: int, *, types: Any = None) -> Self:
        """Leaves first, then level by level, root last. Any number of leaves: what has no partner joins the next level.

        >>> import weft
        >>> weft.Graph.full_binary_tree(4) == weft.Graph([[], [], [], [], [0, 1], [2, 3], [4, 5]])
        True
        """
        return cls.__new__(cls)._fill(build.full_binary_tree(leaves), types)

    @classmethod
    def from_networkx(cls, graph: Any, *, types: Any = None) -> Self:
        """From a networkx graph: vertices in node order; along an edge u, v state flows from u to v.

        Edge rows are in `graph.edges` order; an undirected edge gives two rows, u to v and v to u (a self-loop one).

        >>> import networkx, weft
        >>> weft.Graph.from_networkx(networkx.DiGraph([("a", "c"), ("b", "c")])) == weft.Graph([[], [0, 2], []])
        True
        """
        return cls.__new__(cls)._fill(build.from_edges(*convert.edges_of_networkx(graph)), types)

    @classmethod
    def from_nltk(cls, tree: Any, *, types: Any = None) -> Self:
        """From an `nltk.Tree`: a vertex per subtree and per leaf, in post-order, with `g.labels` (a leaf: the word).

        >>> import weft
        >>> class Tree(list):  # what this needs of nltk.Tree
        ...     def label(self):
        ...         return "S"
        >>> g = weft.Graph.from_nltk(Tree(["good", "film"]))
        >>> g.labels, g.roots.tolist()
        (['good', 'film', 'S'], [2])
        """
        parents, labels = convert.parents_of_nltk(tree)
        return cls.__new__(cls)._fill(build.from_parents(parents), types, labels)

    @classmethod
    def from_pyg(cls, data: Any, *, types: Any = None) -> Self:
        """From PyG data with `edge_index` [2, E] (row 0 to row 1) and `num_nodes`.

        >>> import torch, types, weft
        >>> data = types.SimpleNamespace(edge_index=torch.tensor([[0, 1], [2, 2]]), num_nodes=3)
        >>> weft.Graph.from_pyg(data) == weft.Graph([[], [], [0, 1]])
        True
        """
        return cls.__new__(cls)._fill(build.from_edges(*convert.edges_of_pyg(data)), types)

    @classmethod
    def batch(cls, graphs: Iterable[Self]) -> Self:
        """All graphs as one, vertices and edge rows counted on from graph to graph; batches count as their graphs.

        >>> import weft
        >>> weft.Graph.batch([weft.Graph.chain(2), weft.Graph.chain(3)]).part_offsets.tolist()
        [0, 2, 5]
        """
        if isinstance(graphs, list) and len(graphs) == 1 and isinstance(graphs[0], cls) and graphs[0]._parts is None:
            only: Self = graphs[0]
            return only
        given, parts, together = merging.base_parts(graphs)
        alike = given is parts and together.device != merging.MIXED and len(parts) > 1
        device = parts[0].device if alike else merging.common_device(given)
        if len(parts) == 1:
            return parts[0] if device is None else parts[0].to(device)
        graph = cls.__new__(cls)
        graph._set_batch(parts, device, together)
        return graph

    def reversed(self) -> Self:
        """Every edge turned round, for top-down passes; vertices, types and edge rows stay. Slots are in edge row order.

        >>> import weft
        >>> weft.Graph.chain(3).reversed() == weft.Graph([[1], [2], []])
        True
        """
        return self._reversed

    @cached_property
    def _reversed(self) -> Self:
        if self._parts is not None:
            graph = self.batch([part.reversed() for part in self._parts])
        else:
            graph = self.__new__(type(self))
            graph._set_base(build.reverse(self._arrays), self._types, self.labels)
        return graph if self.device is None else graph.to(self.device)

    def to(self, device: torch.device | str | int) -> Self:
        """The same graph for results on `device`, which `g.device` says; the arrays stay on the host and are shared.

        >>> import weft
        >>> weft.Graph.chain(3).to("cpu").device
        device(type='cpu')
        """
        device = torch.device(device)
        if device == self.device:
            return self
        graph = self.__new__(type(self))
        graph.__dict__.update(self.__dict__, device=device, cache={})
        graph.__dict__.pop("_reversed", None)
        return graph

    @property
    def roots(self) -> Indices:
        """The vertices that nobody gathers.

        >>> import weft
        >>> weft.Graph.chain(3).roots.tolist()
        [2]
        """
        return merging.roots(self)

    @property
    def leaves(self) -> Indices:
        """The vertices that gather nobody: no slots, or only empty ones.

        >>> import weft
        >>> weft.Graph.chain(3).leaves.tolist()
        [0]
        """
        filled = np.concatenate(([0], np.cumsum(self.children >= 0)))[self.offsets]
        return np.flatnonzero(filled[1:] == filled[:-1])

    @property
    def graph_of(self) -> Ints:
        """Which graph of the batch every vertex belongs to.

        >>> import weft
        >>> weft.Graph.batch([weft.Graph.chain(1), weft.Graph.chain(2)]).graph_of.tolist()
        [0, 1, 1]
        """
        return np.repeat(np.arange(self.num_graphs, dtype=np.int32), np.diff(self.part_offsets))

    @property
    def depth(self) -> Ints:
        """The longest path from a leaf to every vertex; a leaf has 0. A cycle raises `StructureError` that names one.

        >>> import weft
        >>> weft.Graph([[], [], [0, 1], [2, 0]]).depth.tolist()
        [0, 0, 1, 2]
        """
        return self._depth.copy()

    @property
    def types(self) -> Ints | list[str] | None:
        """The type of every vertex as it was given: an int array of ids, a list of names, or None.

        >>> import weft
        >>> weft.Graph.chain(2, types=["first", "other"]).types
        ['first', 'other']
        """
        if self.type_ids is None:
            return None
        if self.type_names is None:
            return self.type_ids.copy()
        return [self.type_names[i] for i in self.type_ids.tolist()]

    def split(self, rows: Any) -> list[Any]:
        """Rows [num_vertices, ...] as one piece per graph, in order; of a nest of tensors, one nest per graph.

        >>> import torch, weft
        >>> g = weft.Graph.batch([weft.Graph.chain(1), weft.Graph.chain(2)])
        >>> [list(piece.shape) for piece in g.split(torch.zeros(3, 8))]
        [[1, 8], [2, 8]]
        """
        return merging.split_rows(rows, self.part_offsets)
