"""Base graphs that C keeps, and what a batch of them is: one call over their addresses, nothing per graph in Python.

C holds the arrays of a base graph in one piece of memory and, with them, what planning once found out about it: its levels, and
who feeds whom. Planning a batch then only counts and places rows (`c/graphs.c`). Without a compiler nothing is kept, and
batches are merged and planned in numpy.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.graph.program import Ints, NodeType, Program
from weft.plan.library import address, library
from weft.plan.native import described, finished
from weft.plan.plan import Plan

MOST_KINDS = 63
"""So many kinds of vertices can be told apart in C."""
_WORD = (1 << 64) - 1


class Kept(bytes):
    """The address of a base graph that C keeps; C does so while this lives."""

    __slots__ = ()

    @property
    def place(self) -> int:
        return int.from_bytes(self, sys.byteorder)

    def __del__(self, library: Callable[[], Any] = library) -> None:
        library().weft_release(self)


class Keepable:
    """What has a place for the address of a base graph: right behind what every Python object starts with."""

    __slots__ = ("_kept",)
    _kept: Kept


def keep(numbers: Sequence[int], digest: bytes, children: Ints, offsets: Ints, kinds: Ints) -> Kept:
    """Have C keep a base graph. `numbers`: vertices, slots, edges, and what tells its names of types, and its device."""
    given = np.array(numbers, dtype=np.int64)
    made = library().weft_graph(address(given), digest, *map(address, (children, offsets, kinds)))
    if made is None:
        raise MemoryError("no memory to keep a graph")
    return Kept(made.to_bytes(8, sys.byteorder))


_ITEMS, _SLOT, _DATA = tuple.__basicsize__, object.__basicsize__, bytes.__basicsize__ - 1
TOTALS = 10
"""So many numbers tell what graphs are together; they follow the addresses of the graphs. The last two are their digest."""
_totals: Any = Struct(f"={TOTALS - 2}q16s").unpack_from


def collect(graphs: tuple[Any, ...]) -> KeptGraphs | None:
    """Graphs that are kept, found in their memory, one after the other; None where some are not, or are no graphs.

    Asking Python for each takes ten times as long, where the memory is far away.
    """
    count = len(graphs)
    if not count or not isinstance(graphs[0], Keepable) or not _can_collect():
        return None
    found = np.empty(count + TOTALS, dtype=np.int64)
    place = address(found)
    done = library().weft_collect(id(graphs) + _ITEMS, count, id(type(graphs[0])), _SLOT, _DATA, place, place + 8 * count)
    return KeptGraphs(found, count, place, graphs) if done else None


@functools.cache
def _can_collect() -> bool:
    """Whether this Python's objects lie in memory as `collect` takes it: tried out on one of them."""
    if library() is None or sys.implementation.name != "cpython":
        return False
    kept, probe, empty = b"address.", Keepable(), Keepable()
    probe._kept, graphs = kept, (probe, empty)  # type: ignore[assignment]  # any object will do
    wanted = {
        id(graphs) + _ITEMS: id(probe),
        id(probe) + _SLOT: id(kept),
        id(probe) + _SLOT - 8: id(Keepable),
        id(empty) + _SLOT: None,
    }
    found = {place: ctypes.c_void_p.from_address(place).value for place in wanted}
    return found == wanted and ctypes.string_at(id(kept) + _DATA, 8) == kept


def kept_graphs(graphs: Sequence[Kept]) -> KeptGraphs:
    """The same from what Python holds."""
    count, found = len(graphs), np.array([*[graph.place for graph in graphs], *[0] * TOTALS], dtype=np.int64)
    place = address(found)
    library().weft_totals(place, count, place + 8 * count)
    return KeptGraphs(found, count, place, graphs)


class KeptGraphs:
    """Base graphs that follow each other, as C reads them, and what they are together."""

    __slots__ = (
        "count",
        "device",
        "digest",
        "edges",
        "found",
        "graphs",
        "kinds",
        "num_roots",
        "place",
        "root_kinds",
        "slots",
        "types",
        "vertices",
    )
    vertices: int

    def __init__(self, found: npt.NDArray[np.int64], count: int, place: int, graphs: Sequence[Any]) -> None:
        """`graphs`: whoever holds the addresses in `found`, which must live for as long."""
        self.found, self.count, self.place, self.graphs = found, count, place, graphs
        *told, self.num_roots, self.root_kinds, self.digest = _totals(found, 8 * count)
        self.vertices, self.slots, self.edges, self.types, self.device, self.kinds = told

    def merged(self) -> tuple[Ints, Ints, Ints]:
        """Children, offsets and kinds of the vertices, counted on from graph to graph."""
        n, m = self.vertices, self.slots
        whole = np.empty(m + 2 * n + 1, dtype=np.int32)
        children, offsets, kinds = whole[:m], whole[m : m + n + 1], whole[m + n + 1 :]
        library().weft_merge(self.place, self.count, *map(address, (children, offsets, kinds)))
        return children, offsets, kinds

    def roots(self) -> npt.NDArray[np.int64]:
        """The vertices that nobody reads."""
        found = np.empty(self.num_roots, dtype=np.int64)
        library().weft_roots(self.place, self.count, address(found))
        return found


def joint_digest(digests: Sequence[bytes]) -> bytes:
    """The digest of a batch from those of its graphs, which are random enough to be simply mixed; the twin of C's."""
    low, high = len(digests), 0
    for digest in digests:
        first, second = (int.from_bytes(half, sys.byteorder) for half in (digest[:8], digest[8:]))
        low = (low ^ first) * 0x9E3779B97F4A7C15 & _WORD
        high = (high ^ second ^ low >> 32) * 0xD6E8FEB86659FD93 & _WORD
        low ^= high >> 29
    return low.to_bytes(8, sys.byteorder) + high.to_bytes(8, sys.byteorder)


class GraphProgram(Program):
    """The program of kept graphs. Planning does not need its arrays: they are made when somebody looks at them."""

    graphs: KeptGraphs
    table: Ints
    """The node type of each kind of vertex."""
    _edge: Callable[[], Ints] | None

    def __init__(self, types: tuple[NodeType, ...], graphs: KeptGraphs, table: Ints, edge: Callable[[], Ints] | None) -> None:
        self.__dict__.update(types=types, graphs=graphs, table=table, _edge=edge, _cache={})

    @property
    def num_nodes(self) -> int:
        return self.graphs.vertices

    @cached_property
    def _arrays(self) -> tuple[Ints, Ints, Ints]:
        graphs, kinds, n = self.graphs, described(self.types), self.graphs.vertices
        assert kinds is not None
        type, ptr, src = (np.empty(size, dtype=np.int32) for size in (n, n + 1, graphs.slots + 1))
        places = map(address, (self.table, type, ptr, src))
        kept = library().weft_program(graphs.place, graphs.count, len(self.types), kinds.place, *places)
        return type, ptr, src[:kept]

    @cached_property
    def type(self) -> Ints:
        return self._arrays[0]

    @cached_property
    def ptr(self) -> Ints:
        return self._arrays[1]

    @cached_property
    def src(self) -> Ints:
        return self._arrays[2]

    @cached_property
    def edge(self) -> Ints | None:
        return None if self._edge is None else self._edge()


def plan_graphs(
    program: GraphProgram, policy: str, max_rows: int | None, started: float, with_returns: bool = False
) -> Plan | None:
    """The plan that `schedule` makes of the program; None where C does not make it from the graphs themselves.

    `with_returns`: they will be asked for, so C may find them at once.
    """
    graphs, kinds = program.graphs, described(program.types)
    if kinds is None or not graphs.vertices:
        return None
    size = graphs.vertices + graphs.slots
    buffer = kinds.memory(size)
    place = address(buffer)
    work = library().weft_plan_graphs(
        graphs.place,
        graphs.count,
        len(program.types),
        kinds.place,
        address(program.table),
        max_rows or 0,
        place,
        len(buffer),
        with_returns,
    )
    return finished(work, buffer, place, kinds, size, program, policy, max_rows, started)
