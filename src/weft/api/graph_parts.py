"""A batch of graphs as one graph, and its rows as one piece per graph: concatenation and offsets, no Python per vertex."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from weft.api.graph_build import Ints, Types, freeze
from weft.api.graph_check import check_size, show
from weft.errors import ShapeError, StructureError, TypeMismatch
from weft.plan.levels import offsets as offsets_from
from weft.plan.library import address, library

if TYPE_CHECKING:
    from weft.api.graph_core import GraphCore

G = TypeVar("G", bound="GraphCore")


def as_list(graphs: Iterable[G]) -> list[G]:
    """The graphs to batch, from any iterable."""
    try:
        return list(graphs)
    except TypeError:
        raise TypeMismatch(f"Graph.batch: expected a list of graphs, came {show(graphs)}") from None


Records = npt.NDArray[np.int64]
"""A row for every part, with the columns below. Equal numbers mean equal kinds of types, and equal devices."""

VERTICES, SLOTS, EDGES, TYPES, DEVICE, DIGEST, OF_RECORD = 0, 1, 2, 3, 4, slice(5, 7), 7

NO_TYPES, NO_DEVICE = 0, 1
_numbers: dict[object, int] = {("types", False): NO_TYPES, ("device", None): NO_DEVICE}


def record(part: GraphCore) -> bytes:
    """A base graph's row."""
    kind, device = ("types", part.type_names or part.type_ids is not None), ("device", part.device)
    numbers = [_numbers.setdefault(each, len(_numbers)) for each in (kind, device)]
    lengths = part.num_vertices, len(part.children), part.num_edges
    return np.array([*lengths, *numbers], dtype=np.int64).tobytes() + part.digest


def packed(part: GraphCore) -> bytes:
    """A base graph's children, first slots and node types in one piece of memory, which is read faster than three."""
    kinds = part.childless if part.type_ids is None else part.childless + np.int32(2) * part.type_ids
    return np.concatenate((part.children, part.offsets[:-1], kinds)).tobytes()


def records(parts: Sequence[GraphCore]) -> Records:
    rows = b"".join([part.record for part in parts])  # type: ignore[misc]
    return np.frombuffer(rows, dtype=np.int64).reshape(-1, OF_RECORD)


def base_parts(graphs: Sequence[G]) -> tuple[tuple[G, ...], Records]:
    """The base graphs that these graphs are made of, and their records."""
    try:
        return tuple(graphs), records(graphs)
    except (AttributeError, TypeError):  # there are batches among them, or what is no graph
        pass
    for i, graph in enumerate(graphs):
        if not hasattr(graph, "_parts"):
            raise TypeMismatch(f"Graph.batch: item {i}: expected a Graph, came {show(graph)}")
    parts = tuple([part for graph in graphs for part in graph.parts])
    return parts, records(parts)


def _differ(column: npt.NDArray[np.int64]) -> bool:
    return len(column) > 0 and bool((column != column[0]).any())


def common_device(graphs: Sequence[GraphCore], records: Records) -> torch.device | None:
    """The device that the graphs were sent to; graphs that were sent nowhere follow the others."""
    if len(graphs) == len(records) > 0 and not _differ(records[:, DEVICE]):
        return graphs[0].device
    devices = {graph.device for graph in graphs}
    devices.discard(None)
    if len(devices) > 1:
        first, second = sorted(map(str, devices))[:2]
        raise StructureError(f"Graph.batch: expected graphs on one device, came {first} and {second}")
    return devices.pop() if devices else None


class Merged(NamedTuple):
    """Arrays of all parts as those of one graph; `types` and `kinds` (as `node_types`) where all parts count types alike."""

    children: Ints
    offsets: Ints
    childless: Ints
    types: Ints | None
    kinds: Ints | None


def merge(parts: Sequence[GraphCore], part_offsets: Ints, records: Records) -> Merged:
    """Vertices and slots count on from part to part."""
    made = library()
    if made is None or not parts:
        childless = np.concatenate([np.empty(0, np.int32), *(part.childless for part in parts)])
        return Merged(*merge_arrays(parts, part_offsets), freeze(childless), None, None)
    n, m = int(part_offsets[-1]), int(records[:, SLOTS].sum())
    check_size(n, m)
    whole = np.empty(m + 4 * n + 1, dtype=np.int32)
    bounds = (0, m, m + n + 1, m + 2 * n + 1, m + 3 * n + 1, m + 4 * n + 1)
    typed, start = records[0, TYPES] != NO_TYPES and not _differ(records[:, TYPES]), address(whole)
    places = [start + 4 * bound for bound in bounds[: 5 if typed else 3]]
    everything = b"".join([part.packed for part in parts])
    made.weft_merge(address(records), len(parts), everything, *places, *[None] * (5 - len(places)))
    whole.flags.writeable = False
    children, offsets, childless, types, kinds = (whole[first:last] for first, last in pairwise(bounds))
    return Merged(children, offsets, childless, types if typed else None, kinds if typed else None)


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


def common_type_names(parts: Sequence[GraphCore], records: Records) -> tuple[str, ...] | None:
    """The type names of all parts together, None where types are ids or absent; a mix of these raises."""
    if not _differ(records[:, TYPES]):
        return parts[0].type_names if parts else None
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
