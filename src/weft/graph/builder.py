"""The builder: how every front end makes a program, node by node or a whole layer of nodes at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.graph.program import EMPTY, Ints, NodeType, Program


class Builder:
    """Collects nodes; `finish` gives the program.

    >>> from weft.graph.program import NodeType, Port
    >>> builder = Builder([NodeType("leaf"), NodeType("node", (Port("slots", (0, 1)),))])
    >>> left, right = builder.node(0), builder.node(0)
    >>> builder.node(1, [left, right])
    2
    >>> builder.finish().src.tolist()
    [0, 1]
    """

    def __init__(self, types: Sequence[NodeType], feeds: bool = False, edges: bool = False) -> None:
        self.types, self.feeds, self.edges = tuple(types), feeds, edges
        self.count = 0
        self._layers: list[tuple[Ints, Ints, Ints, Ints | None, Ints | None, Ints | None]] = []
        self._nodes: list[tuple[int, Sequence[int], Sequence[int] | None, int, Sequence[int] | None]] = []

    def node(
        self,
        type: int,
        arguments: Sequence[int] = (),
        outputs: Sequence[int] | None = None,
        feed: int = EMPTY,
        edges: Sequence[int] | None = None,
    ) -> int:
        """Add one node that reads earlier or later nodes (EMPTY: none); returns its number."""
        self._nodes.append((type, arguments, outputs, feed, edges))
        self.count += 1
        return self.count - 1

    def layer(
        self,
        type: Ints,
        lengths: npt.NDArray[np.integer],
        src: Ints,
        out: Ints | None = None,
        feed: Ints | None = None,
        edge: Ints | None = None,
    ) -> range:
        """Add many nodes at once: types, numbers of arguments, and all arguments in a row; returns the nodes' numbers."""
        self._close()
        self._layers.append((type, lengths.astype(np.int32, copy=False), src, out, feed, edge))
        self.count += len(type)
        return range(self.count - len(type), self.count)

    def _close(self) -> None:
        """Turn the nodes added one by one into a layer."""
        if not self._nodes:
            return
        types, arguments, outputs, feeds, edges = zip(*self._nodes, strict=True)
        self._nodes = []
        lengths = np.array([len(each) for each in arguments], dtype=np.int32)
        out = None
        if any(each is not None for each in outputs):
            out = _flat([each or [0] * length for each, length in zip(outputs, lengths.tolist(), strict=True)])
        edge = None
        if any(each is not None for each in edges):
            edge = _flat([each or [EMPTY] * length for each, length in zip(edges, lengths.tolist(), strict=True)])
        self._layers.append((np.array(types, np.int32), lengths, _flat(arguments), out, np.array(feeds, np.int32), edge))

    def finish(self) -> Program:
        self._close()
        none = np.zeros(0, np.int32)
        layers = self._layers or [(none, none, none, None, None, None)]
        columns: list[Any] = list(zip(*layers, strict=True))
        type, lengths, src = (_joined(column) for column in columns[:3])
        ptr = np.zeros(len(type) + 1, dtype=np.int32)
        np.cumsum(lengths, out=ptr[1:])
        sizes = [len(each) for each in columns[2]]
        out = _optional(columns[3], sizes, 0)
        feed = _optional(columns[4], [len(each) for each in columns[0]], EMPTY) if self.feeds else None
        edge = _optional(columns[5], sizes, EMPTY) if self.edges else None
        return Program(self.types, type, ptr, src, out, feed, edge)


def _flat(lists: Sequence[Sequence[int]]) -> Ints:
    return np.array([number for each in lists for number in each], dtype=np.int32)


def _joined(arrays: Sequence[Ints]) -> Ints:
    joined: Ints = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return joined


def _optional(arrays: Sequence[Ints | None], sizes: Sequence[int], missing: int) -> Ints | None:
    if all(array is None for array in arrays):
        return None
    filled = [np.full(size, missing, np.int32) if a is None else a for a, size in zip(arrays, sizes, strict=True)]
    return _joined(filled)
