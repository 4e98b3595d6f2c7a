"""From recorded calls to a program for the planner: arrays in, arrays out, nothing per call in Python."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.graph.calls import CallType
from weft.graph.program import Ints, NodeType, Program
from weft.graph.recording import OUTPUT_BITS, CallProgram, References
from weft.plan.library import address, is_plain, library

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class CallGraph:
    """Calls with their arguments taken apart: argument `a` of call `owner[a]` reads output `out[a]` of call `src[a]`."""

    type: Ints
    ptr: Ints
    src: Ints
    out: Ints
    feed: Ints
    """For each call, which call of its type it is: its row of the fed tables."""

    @property
    def owner(self) -> Ints:
        return np.repeat(np.arange(len(self.type), dtype=np.int32), np.diff(self.ptr))

    @property
    def position(self) -> Ints:
        lengths = np.diff(self.ptr)
        return np.arange(self.ptr[-1], dtype=np.int32) - np.repeat(self.ptr[:-1], lengths)


def call_graph(types: Sequence[CallType], program: CallProgram) -> CallGraph:
    """Take a recording's references apart."""
    known = program._cache.get("graph")
    if isinstance(known, CallGraph):
        return known
    present = np.flatnonzero(np.bincount(program.type, minlength=1)).tolist()
    width, many = np.zeros(len(types), np.int32), np.zeros(len(types), np.bool_)
    width[present] = [len(types[t].args) for t in present]
    many[present] = [types[t].many is not None for t in present]
    lengths = width.take(program.type)
    if len(program.further):
        lengths[many.take(program.type)] += program.further
    ptr = np.zeros(len(program.type) + 1, np.int32)
    np.cumsum(lengths, out=ptr[1:])
    src = (program.arguments >> OUTPUT_BITS).astype(np.int32)
    out = (program.arguments & (1 << OUTPUT_BITS) - 1).astype(np.int32)
    return CallGraph(program.type, ptr, src, out, _ranks(program.type, len(types)))


def _ranks(type: Ints, count: int) -> Ints:
    """For each call, how many calls of its type came before it."""
    order = np.argsort(type.astype(np.int16) if count < 1 << 15 else type, kind="stable")
    sizes = np.bincount(type, minlength=count)
    rank = np.empty(len(type), np.int32)
    rank[order] = np.arange(len(type)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank


def needed(graph: CallGraph, wanted: References) -> Bools | None:
    """Which calls some wanted result depends on; None: all. What no result needs is never computed."""
    if _all_read(graph, wanted):
        return None
    readers = np.bincount(graph.src, minlength=len(graph.type))
    readers += np.bincount(wanted >> OUTPUT_BITS, minlength=len(graph.type))
    dead = np.flatnonzero(readers == 0)
    if not len(dead):  # C was not asked
        return None
    keep = np.ones(len(graph.type), np.bool_)
    while len(dead):
        keep[dead] = False
        lengths = graph.ptr[dead + 1] - graph.ptr[dead]
        starts = np.repeat(graph.ptr[dead] - (np.cumsum(lengths) - lengths), lengths)
        read = graph.src[starts + np.arange(lengths.sum())]
        np.subtract.at(readers, read, 1)
        dead = np.unique(read[readers[read] == 0])
    return keep


def _all_read(graph: CallGraph, wanted: References) -> bool:
    """Whether every call is read or wanted, as far as C can say."""
    made, calls = library(), len(graph.type)
    if made is None or not is_plain(graph.src) or not wanted.flags.c_contiguous:
        return False
    seen = np.empty(calls, np.int8)
    given = address(graph.src), address(wanted), len(wanted), OUTPUT_BITS, address(seen)
    return bool(made.weft_all_read(calls, len(graph.src), *given))


def without(graph: CallGraph, keep: Bools) -> CallGraph:
    """The graph of some calls only, which read none of the others."""
    number = (np.cumsum(keep) - 1).astype(np.int32)
    arguments = np.repeat(keep, np.diff(graph.ptr))
    ptr = np.zeros(int(keep.sum()) + 1, np.int32)
    np.cumsum(np.diff(graph.ptr)[keep], out=ptr[1:])
    return CallGraph(graph.type[keep], ptr, number[graph.src[arguments]], graph.out[arguments], graph.feed[keep])


def planned_program(graph: CallGraph, present: Sequence[int], kinds: tuple[NodeType, ...]) -> Program:
    """The program for the planner; its types are the present ones, in this order."""
    out = graph.out if any(kind.outputs > 1 for kind in kinds) else None
    return Program(kinds, _numbered(tuple(present)).take(graph.type), graph.ptr, graph.src, out, graph.feed)


@functools.lru_cache(maxsize=256)
def _numbered(present: tuple[int, ...]) -> Ints:
    """From a type to its number among some."""
    dense = np.full(max(present, default=0) + 1, -1, np.int32)
    dense[list(present)] = np.arange(len(present))
    return dense
