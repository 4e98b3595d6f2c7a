"""A batch of graphs as one graph, and its rows as one piece per graph: concatenation and offsets, no Python per vertex."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from weft.api.graph_build import Ints, Types, freeze
from weft.api.graph_check import check_size, show
from weft.errors import ShapeError, StructureError, TypeMismatch
from weft.locks import lock
from weft.plan.graphs import MOST_KINDS, Kept, KeptGraphs, collect, joint_digest, keep, kept_graphs
from weft.plan.levels import occurring
from weft.plan.levels import offsets as offsets_from
from weft.plan.library import library

if TYPE_CHECKING:
    from weft.api.graph_core import GraphCore

G = TypeVar("G", bound="GraphCore")


class Together(NamedTuple):
    """What base graphs are together, where C does not keep them: the numbers of `KeptGraphs`."""

    vertices: int
    slots: int
    edges: int
    types: int
    device: int
    kinds: int
    root_kinds: int
    digest: bytes


MIXED, MANY = -1, -1
"""Graphs with different types, or on different devices; kinds of vertices that are not counted one by one."""
NO_TYPES = 0
_numbers: dict[object, int] = {("types", False): NO_TYPES}
_next = count(NO_TYPES + 1)


def number_of(what: str, value: object) -> int:
    """Equal numbers mean equal values."""
    found = _numbers.get((what, value))
    return _numbers.setdefault((what, value), next(_next)) if found is None else found


def base_parts(graphs: Iterable[G]) -> tuple[tuple[G, ...], tuple[G, ...], KeptGraphs | Together]:
    """The graphs to batch, the base graphs that these are made of, and what they are together."""
    try:
        given = tuple(graphs)
    except TypeError:
        raise TypeMismatch(f"Graph.batch: expected a list of graphs, came {show(graphs)}") from None
    found = collect(given)
    if found is not None:
        return given, given, found
    # Some are not kept yet, there are batches among them, or what is no graph.
    for i, graph in enumerate(given):
        if not hasattr(graph, "_parts"):
            raise TypeMismatch(f"Graph.batch: item {i}: expected a Graph, came {show(graph)}")
    parts = tuple([part for graph in given for part in graph.parts])
    return given, parts, together(parts)


def together(parts: Sequence[GraphCore]) -> KeptGraphs | Together:
    """What base graphs are together; from now on C keeps them."""
    if library() is not None:
        return kept_graphs([_kept(part) for part in parts])
    numbers = [_row(part) for part in parts]
    vertices, slots, edges = (sum(row[column] for row in numbers) for column in range(3))
    types, device = (_alike([row[column] for row in numbers]) for column in (3, 4))
    kinds, root_kinds = _as_set([part.kinds for part in parts]), _as_set([part.kinds[_unread(part)] for part in parts])
    return Together(vertices, slots, edges, types, device, kinds, root_kinds, joint_digest([part.digest for part in parts]))


def roots(graph: GraphCore) -> npt.NDArray[np.int64]:
    """The vertices that nobody gathers."""
    found = graph.together
    return found.roots() if isinstance(found, KeptGraphs) else _unread(graph)


def _unread(graph: GraphCore) -> npt.NDArray[np.int64]:
    lonely = np.ones(graph.num_vertices, dtype=bool)
    lonely[graph.children[graph.children >= 0]] = False
    return np.flatnonzero(lonely)


def _as_set(kinds: Sequence[Ints]) -> int:
    """The kinds that occur, a bit for each."""
    found = {kind for each in kinds for kind in occurring(each, int(each.max(initial=-1)) + 1)}
    return MANY if max(found, default=0) >= MOST_KINDS else sum(1 << kind for kind in found)


def _alike(numbers: Sequence[int]) -> int:
    return 0 if not numbers else numbers[0] if len(set(numbers)) == 1 else MIXED


def _row(part: GraphCore) -> tuple[int, ...]:
    """A base graph in numbers: vertices, slots, edges, and equal ones for equal names of types, and devices."""
    names, device = part.type_names or part.type_ids is not None, part.device
    return part.num_vertices, len(part.children), part.num_edges, number_of("types", names), number_of("device", device)


_keeping = lock()


def _kept(part: GraphCore) -> Kept:
    """Where C keeps a base graph: once and for all, because batches read the address and hold the graph alone."""
    if not hasattr(part, "_kept"):
        with _keeping:
            if not hasattr(part, "_kept"):
                part._kept = keep(_row(part), part.digest, part.children, part.offsets, part.kinds)
    return part._kept


def common_device(graphs: Sequence[GraphCore]) -> torch.device | None:
    """The device that the graphs were sent to; graphs that were sent nowhere follow the others."""
    devices = {graph.device for graph in graphs}
    devices.discard(None)
    if len(devices) > 1:
        first, second = sorted(map(str, devices))[:2]
        raise StructureError(f"Graph.batch: expected graphs on one device, came {first} and {second}")
    return devices.pop() if devices else None


class Merged(NamedTuple):
    """Arrays of all parts as those of one graph."""

    children: Ints
    offsets: Ints
    kinds: Ints


def merge(parts: Sequence[GraphCore], part_offsets: Ints, found: KeptGraphs | Together) -> Merged:
    """Vertices and slots count on from part to part."""
    check_size(found.vertices, found.slots)
    if isinstance(found, KeptGraphs):
        return Merged(*map(freeze, found.merged()))
    kinds = np.concatenate([np.empty(0, np.int32), *(part.kinds for part in parts)])
    return Merged(*merge_arrays(parts, part_offsets), freeze(kinds))


def merge_arrays(parts: Sequence[GraphCore], part_offsets: Ints) -> tuple[Ints, Ints]:
    """Children and offsets of all parts; the slow twin of merging in C."""
    if not parts:
        return freeze(np.empty(0)), freeze(np.zeros(1))
    arrays = [part._arrays for part in parts]
    children, offsets = np.concatenate([each[0] for each in arrays]), np.concatenate([each[1] for each in arrays])
    check_size(int(part_offsets[-1]), len(children))
    # Each part has one offset more than vertices: its last is its number of slots, its first repeats the end before it.
    first = part_offsets + np.arange(len(part_offsets), dtype=np.int32)
    slots = offsets[first[1:] - 1]
    slot_offsets = offsets_from(slots)
    offsets += np.repeat(slot_offsets[:-1], np.diff(part_offsets) + 1)
    keep = np.ones(len(offsets), dtype=bool)
    keep[first[1:-1]] = False
    shift = np.repeat(part_offsets[:-1], slots)
    filled = children >= 0
    children += shift if filled.all() else shift * filled
    return freeze(children), freeze(offsets[keep])


def merge_edge_rows(parts: Sequence[GraphCore]) -> Ints:
    """Edge rows of all parts, counted on from part to part; few calls need them."""
    rows = np.concatenate([np.empty(0, np.int32), *(part._arrays.edge_rows for part in parts)])
    before = offsets_from(np.array([part.num_edges for part in parts], dtype=np.int64))[:-1]
    shift = np.repeat(before, [len(part._arrays.edge_rows) for part in parts])
    return freeze(np.where(rows >= 0, rows + shift, rows))


def common_type_names(parts: Sequence[GraphCore]) -> tuple[str, ...] | None:
    """The type names of all parts together, None where types are ids or absent; a mix of these raises."""
    # A graph without vertices goes with every kind of types.
    kinds = {part.type_names or part.type_ids is not None for part in parts if part.num_vertices}
    named = [kind for kind in kinds if isinstance(kind, tuple)]
    if len(kinds) > 1 and len(named) < len(kinds):
        _raise_mixed_types(parts)
    return named[0] if len(named) == 1 else tuple(sorted(set().union(*named))) if named else None


def _raise_mixed_types(parts: Sequence[GraphCore]) -> None:
    words = {
        "named types" if part.type_names else "no types" if part.type_ids is None else "type ids": i
        for i, part in reversed(list(enumerate(parts)))
        if part.num_vertices
    }
    (first, one), (second, two) = sorted(words.items(), key=lambda item: item[1])[:2]
    raise StructureError(
        "Graph.batch: expected all graphs with type ids, all with named types or all with no types, "
        f"came graph {one} with {first} and graph {two} with {second}"
    )


def merge_types(parts: Sequence[GraphCore], names: tuple[str, ...] | None) -> Types:
    """The types of all parts; where parts know different names, ids are counted anew in the names of all."""
    typed = [part for part in parts if part.type_ids is not None and part.num_vertices]
    if not typed:
        return Types(None, None)
    ids = np.concatenate([part.type_ids for part in typed if part.type_ids is not None])
    if names is not None and any(part.type_names != names for part in typed):
        kinds = list({part.type_names: None for part in typed})
        table = np.zeros((len(kinds), len(names)), dtype=np.int32)
        for row, kind in enumerate(kinds):
            table[row, : len(kind or ())] = [names.index(name) for name in kind or ()]
        which = [kinds.index(part.type_names) for part in typed]
        ids = table[np.repeat(which, [part.num_vertices for part in typed]), ids]
    return Types(freeze(ids), names)


def split_rows(rows: Any, offsets: Ints) -> list[Any]:
    """Rows [N, ...], or a nest of them, as one piece per graph; pieces are views."""
    count = len(offsets) - 1
    if isinstance(rows, Mapping):
        columns = {key: split_rows(value, offsets) for key, value in rows.items()}
        return [{key: column[i] for key, column in columns.items()} for i in range(count)]
    if isinstance(rows, (list, tuple)):
        pieces = [split_rows(value, offsets) for value in rows]
        make = getattr(rows, "_make", type(rows))
        return [make([piece[i] for piece in pieces]) for i in range(count)]
    if not isinstance(rows, (torch.Tensor, np.ndarray)):
        raise TypeMismatch(f"Graph.split: expected a tensor [{offsets[-1]}, ...] or a nest of them, came {show(rows)}")
    if rows.ndim == 0 or len(rows) != offsets[-1]:
        raise ShapeError(f"Graph.split: expected {offsets[-1]} rows, one per vertex, came shape {list(rows.shape)}")
    if isinstance(rows, np.ndarray):
        return np.split(rows, offsets[1:-1]) if count else []
    return list(torch.split(rows, np.diff(offsets).tolist()))
