"""The program: what one example, or a merged mini-batch of them, computes, as flat integer arrays.

A program is a list of *nodes*. Each node calls one *node type* (a cell) on a list of *arguments*, and each argument names
the node whose output it reads. Nothing here knows tensors: programs are built by every front end, cached with the data
set, merged by concatenation, planned without torch, and saved as arrays.

    node     0     1     2     3          types   0 leaf, 1 inner
    type     0     0     1     1          ptr     0 0 0 2 4
    reads    -     -    0,1   2,0         src     0 1 2 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from weft.errors import StructureError

Ints = npt.NDArray[np.int32]

EMPTY = -1
"""An argument position that holds nothing; reading it gives zeros."""


@dataclass(frozen=True)
class Port:
    """One way in which a node type reads its argument list.

    `kind` is "slots" (the arguments at `positions`, one row each), "sum" (the sum of all arguments) or "edges" (every
    argument by itself, empty ones left out). Sum and edges take the arguments from `positions[0]` on.
    """

    kind: str
    positions: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class NodeType:
    """What planning knows of a cell: its name, how it reads its arguments, and how many outputs others may read."""

    name: str
    ports: tuple[Port, ...] = ()
    outputs: int = 1


@dataclass(frozen=True, eq=False)
class Program:
    """Calls of cells as flat arrays; `n` nodes with `m` arguments in all.

    `type[n]` which node type; `ptr[n+1]` and `src[m]` the arguments (a node, or EMPTY); `out[m]` which output of that node
    (None: always the first); `feed[n]` the row of fed data that a node reads (None: its own number); `edge[m]` the row of
    fed edge data (None: no edge data).
    """

    types: tuple[NodeType, ...]
    type: Ints
    ptr: Ints
    src: Ints
    out: Ints | None = None
    feed: Ints | None = None
    edge: Ints | None = None
    _cache: dict[object, object] = field(default_factory=dict, repr=False)

    @property
    def num_nodes(self) -> int:
        return len(self.type)

    @property
    def num_arguments(self) -> int:
        return len(self.src)

    def save(self, path: str | Path) -> None:
        """Write the program to one `.npz` file; no code is pickled."""
        arrays: dict[str, npt.NDArray[np.generic]] = {"type": self.type, "ptr": self.ptr, "src": self.src}
        for name in ("out", "feed", "edge"):
            value = getattr(self, name)
            if value is not None:
                arrays[name] = value
        rows = [[t.name, str(t.outputs), *(f"{p.kind}:{','.join(map(str, p.positions))}" for p in t.ports)] for t in self.types]
        with open(path, "wb") as file:
            np.savez(file, allow_pickle=False, types=np.array(["\x1f".join(row) for row in rows], dtype=np.str_), **arrays)

    @staticmethod
    def load(path: str | Path) -> Program:
        """Read a program that `save` wrote."""
        with np.load(path, allow_pickle=False) as data:
            types = tuple(_parse_type(str(row)) for row in data["types"])
            out, feed, edge = (data.get(name) for name in ("out", "feed", "edge"))
            return Program(types, data["type"], data["ptr"], data["src"], out, feed, edge)


def _parse_type(row: str) -> NodeType:
    name, outputs, *ports = row.split("\x1f")
    parsed = (port.partition(":") for port in ports)
    return NodeType(name, tuple(Port(kind, tuple(map(int, at.split(",")))) for kind, _, at in parsed), int(outputs))


def merge(programs: Sequence[Program]) -> Program:
    """One program that computes all of `programs`, nodes in the given order. All must share their node types.

    >>> import numpy as np
    >>> pair = Program((NodeType("a"),), np.zeros(2, np.int32), np.array([0, 0, 1], np.int32), np.array([0], np.int32))
    >>> both = merge([pair, pair])
    >>> both.ptr.tolist(), both.src.tolist()
    ([0, 0, 1, 1, 2], [0, 2])
    """
    first = _common(programs)
    nodes = np.array([p.num_nodes for p in programs], dtype=np.int64)
    arguments = np.array([p.num_arguments for p in programs], dtype=np.int64)
    node_base = np.concatenate(([0], np.cumsum(nodes)))[:-1].astype(np.int32)
    argument_base = np.concatenate(([0], np.cumsum(arguments)))[:-1].astype(np.int32)
    src = np.concatenate([p.src for p in programs])
    src = np.where(src >= 0, src + np.repeat(node_base, arguments), src).astype(np.int32)
    ptr = np.concatenate([p.ptr[:-1] for p in programs]) + np.repeat(argument_base, nodes)
    ptr = np.concatenate((ptr, [arguments.sum()])).astype(np.int32)
    return Program(
        types=first.types,
        type=np.concatenate([p.type for p in programs]),
        ptr=ptr,
        src=src,
        out=None if first.out is None else np.concatenate([p.out for p in programs if p.out is not None]),
        feed=None if first.feed is None else _merge_rows([p.feed for p in programs if p.feed is not None]),
        edge=None if first.edge is None else _merge_rows([p.edge for p in programs if p.edge is not None]),
    )


def _common(programs: Sequence[Program]) -> Program:
    """The first of programs that can be merged; raises if there is none, or if some are unlike it."""
    if not programs:
        raise StructureError("merge: expected at least one program, came none")
    first = programs[0]
    for number, other in enumerate(programs):
        if other.types is not first.types and other.types != first.types:
            raise StructureError(f"merge: expected the node types of program 0 in all, came others in program {number}")
        for name in ("out", "feed", "edge"):
            if (getattr(other, name) is None) != (getattr(first, name) is None):
                has, lacks = (number, 0) if getattr(first, name) is None else (0, number)
                raise StructureError(
                    f"merge: expected {name} rows in all programs or none, came some in {has} and none in {lacks}"
                )
    return first


def _merge_rows(parts: Sequence[Ints]) -> Ints:
    """Concatenate row numbers of data that is itself concatenated: each part counts on from the last row named before it."""
    counts = np.array([int(part.max(initial=-1)) + 1 for part in parts], dtype=np.int64)
    base = np.concatenate(([0], np.cumsum(counts)))[:-1]
    flat = np.concatenate(parts)
    shift = np.repeat(base, [len(part) for part in parts])
    return np.where(flat >= 0, flat + shift, flat).astype(np.int32)
