"""From what users write (child lists, parents, edges, sizes) to the flat arrays of one graph, by array operations alone.

    vertex      0     1     2       3         offsets     0 0 0 2 4
    gathers     -     -    0,1    2,empty     children    0 1 2 -1
                                              edge_rows   0 1 2 -1

`edge_rows` numbers the edges in the order in which the caller gave them, which for parents and edge lists is not the order
of `children`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import chain as flatten
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from weft.api.graph_check import (
    array_of,
    check_children,
    check_ids,
    check_offsets,
    check_size,
    first_other,
    has_length,
    integers,
    is_integer,
    show,
)
from weft.errors import ShapeError, StructureError, TypeMismatch
from weft.plan.levels import offsets as offsets_from
from weft.plan.levels import stable_order

Ints = npt.NDArray[np.int32]


class Arrays(NamedTuple):
    """The structure of one graph: `children[m]` (-1 is an empty slot), `offsets[n+1]` and `edge_rows[m]`."""

    children: Ints
    offsets: Ints
    edge_rows: Ints


class Types(NamedTuple):
    """The vertex types of one graph: `ids[n]`, and the names that they index, if names were given."""

    ids: Ints | None
    names: tuple[str, ...] | None


def freeze(array: npt.NDArray[Any]) -> Ints:
    """A read-only, C-contiguous int32 array with these values; an int32 array that came is itself made read-only."""
    frozen = np.ascontiguousarray(array, dtype=np.int32)
    frozen.flags.writeable = False
    return frozen


def from_children(children: Any) -> Arrays:
    """Child lists as a list of lists, an int array [N, k] with -1 for empty, or a tuple (flat, offsets)."""
    if isinstance(children, tuple):
        flat, offsets = _from_flat(children)
    elif isinstance(children, list):
        flat, offsets = _from_lists(children)
    else:
        flat, offsets = _from_table(children)
    check_size(len(offsets) - 1, len(flat))
    check_children(flat, offsets)
    return in_slot_order(flat.astype(np.int32), offsets.astype(np.int32))


def _from_flat(pair: tuple[Any, ...]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    if len(pair) != 2:
        raise StructureError(f"Graph: a tuple means (flat, offsets); came a tuple of {len(pair)}. For child lists pass a list")
    flat, offsets = integers(pair[0], "Graph: flat"), integers(pair[1], "Graph: offsets")
    check_offsets(offsets, len(flat))
    return flat, offsets


def _from_lists(lists: list[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    try:
        arity = np.fromiter(map(len, lists), np.int64, len(lists))
    except TypeError:
        vertex = next(i for i, item in enumerate(lists) if not has_length(item))
        raise TypeMismatch(
            f"Graph: vertex {vertex}: expected a list of child indices, came {show(lists[vertex])}. "
            "For one parent per vertex use Graph.from_parents"
        ) from None
    offsets = offsets_from(arity)
    items = list(flatten.from_iterable(lists))
    at = first_other(items, is_integer)
    if at is not None:
        vertex = int(np.searchsorted(offsets, at, side="right")) - 1
        slot = at - int(offsets[vertex])
        raise TypeMismatch(f"Graph: vertex {vertex}, slot {slot}: expected an integer child index, came {show(items[at])}")
    return integers(items, "Graph: children"), offsets


def _from_table(table: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    array = array_of(table, "Graph: children")
    if array.ndim == 0:
        raise TypeMismatch(f"Graph: expected a list of child lists, an int array [N, k] or (flat, offsets), came {show(table)}")
    if array.dtype == object:
        raise TypeMismatch("Graph: children: expected an int array [N, k], came an array of objects. Pass a list of lists")
    if array.ndim != 2:
        raise ShapeError(
            f"Graph: children: expected an int array [N, k], came shape {list(array.shape)}. "
            "For one parent per vertex use Graph.from_parents"
        )
    if array.dtype.kind not in "iu":
        raise TypeMismatch(f"Graph: children: expected integers, came {array.dtype}")
    count, slots = array.shape
    return array.ravel(), np.arange(count + 1, dtype=np.int64) * slots


def from_parents(parents: Any) -> Arrays:
    """One parent per vertex, -1 at roots. Edge rows count the vertices that have a parent, in vertex order."""
    given = integers(parents, "Graph.from_parents: parents")
    count = len(given)
    check_size(count, count)
    bad = (given < -1) | (given >= count)
    if bad.any():
        vertex = int(bad.argmax())
        raise StructureError(
            f"Graph.from_parents: vertex {vertex}: parent {given[vertex]} is out of range; "
            f"expected 0 to {count - 1}, or -1 for a root"
        )
    own = given == np.arange(count)
    if own.any():
        raise StructureError(f"Graph.from_parents: vertex {int(own.argmax())} is its own parent; a root has parent -1")
    with_parent = np.flatnonzero(given >= 0).astype(np.int32)
    return by_target(with_parent, given[with_parent].astype(np.int32), count)


def from_edges(src: Any, dst: Any, num_vertices: int) -> Arrays:
    """Edges from `src[e]` to `dst[e]`; a vertex's slots are its incoming edges in edge order."""
    count = size_of(num_vertices, "Graph.from_edges: num_vertices", least=0)
    ends = integers(src, "Graph.from_edges: src"), integers(dst, "Graph.from_edges: dst")
    if len(ends[0]) != len(ends[1]):
        raise ShapeError(f"Graph.from_edges: src and dst: expected the same length, came {len(ends[0])} and {len(ends[1])}")
    check_size(count, len(ends[0]))
    for name, end in zip(("src", "dst"), ends, strict=True):
        bad = (end < 0) | (end >= count)
        if bad.any():
            edge = int(bad.argmax())
            valid = f"a graph of {count} vertices has 0 to {count - 1}" if count else "the graph has no vertices"
            raise StructureError(f"Graph.from_edges: edge {edge}: {name} {end[edge]} is out of range; {valid}")
    return by_target(ends[0].astype(np.int32), ends[1].astype(np.int32), count)


def chain(length: int) -> Arrays:
    """Vertex i gathers vertex i-1; vertex 0 gathers nothing."""
    count = size_of(length, "Graph.chain: n", least=0)
    check_size(count, count)
    return in_slot_order(np.arange(max(count - 1, 0), dtype=np.int32), np.maximum(np.arange(-1, count), 0))


def grid(rows: int, cols: int) -> Arrays:
    """Vertex r*cols+c gathers the one above (slot 0) and the one to the left (slot 1)."""
    height, width = size_of(rows, "Graph.grid: rows", least=0), size_of(cols, "Graph.grid: cols", least=0)
    count = height * width
    check_size(count, 2 * count)
    table = np.full((height, width, 2), -1, dtype=np.int32)
    vertex = np.arange(count, dtype=np.int32).reshape(height, width)
    table[1:, :, 0] = vertex[:-1]
    table[:, 1:, 1] = vertex[:, :-1]
    return in_slot_order(table.ravel(), np.arange(count + 1) * 2)


def full_binary_tree(leaves: int) -> Arrays:
    """Vertices are paired in order, each pair under the next new vertex: the k-th inner vertex gathers 2k and 2k+1."""
    width = size_of(leaves, "Graph.full_binary_tree: leaves", least=1)
    count = 2 * width - 1
    check_size(count, count)
    offsets = np.maximum(np.arange(count + 1) - width, 0) * 2
    return in_slot_order(np.arange(count - 1, dtype=np.int32), offsets)


def reverse(arrays: Arrays) -> Arrays:
    """Every edge turned round and keeping its row; a vertex's slots are its edges in row order, empty slots are gone."""
    children, offsets, edge_rows = arrays
    count = len(offsets) - 1
    filled = np.flatnonzero(children >= 0)
    owner = np.repeat(np.arange(count, dtype=np.int32), np.diff(offsets))
    src, dst = np.empty((2, len(filled)), dtype=np.int32)
    src[edge_rows[filled]] = owner[filled]
    dst[edge_rows[filled]] = children[filled]
    return by_target(src, dst, count)


def in_slot_order(children: Ints, offsets: npt.NDArray[Any]) -> Arrays:
    """Arrays whose edges are numbered as they stand in `children`."""
    filled = children >= 0
    edge_rows = np.where(filled, np.cumsum(filled) - 1, -1)
    return Arrays(freeze(children), freeze(offsets), freeze(edge_rows))


def by_target(src: Ints, dst: Ints, count: int) -> Arrays:
    """Arrays of the edges src to dst, grouped by dst and in the given order within a group."""
    order = stable_order(dst, count)
    return Arrays(freeze(src[order]), freeze(offsets_from(np.bincount(dst, minlength=count))), freeze(order))


def size_of(value: Any, what: str, least: int) -> int:
    """`value` as a Python int that is at least `least`."""
    try:
        size = operator.index(value)
    except TypeError:
        raise TypeMismatch(f"{what}: expected an integer, came {show(value)}") from None
    if size < least:
        raise StructureError(f"{what}: expected at least {least}, came {size}")
    return size


def types_of(types: Any, count: int) -> Types:
    """Type ids or type names, one per vertex; names become ids into their sorted tuple."""
    if types is None:
        return Types(None, None)
    if isinstance(types, str) or not (isinstance(types, Sequence) or hasattr(types, "__array__")):
        raise TypeMismatch(f"Graph: types: expected one id or name per vertex, came {show(types)}")
    given = types.tolist() if isinstance(types, np.ndarray) and types.dtype.kind in "UO" else types
    if len(given) != count:
        raise ShapeError(f"Graph: types: expected {count} entries, one per vertex, came {len(given)}")
    if count and isinstance(given[0], str):
        return _named_types(given)
    ids = integers(given, "Graph: types")
    check_ids(ids)
    return Types(freeze(ids.astype(np.int32)), None)


def _named_types(given: Sequence[Any]) -> Types:
    at = first_other(given, lambda kind: issubclass(kind, str))
    if at is not None:
        raise TypeMismatch(f"Graph: types: vertex {at}: expected a name, came {show(given[at])}")
    names = tuple(sorted(map(str, set(given))))
    ids = {name: index for index, name in enumerate(names)}
    return Types(freeze(np.fromiter(map(ids.__getitem__, given), np.int32, len(given))), names)
