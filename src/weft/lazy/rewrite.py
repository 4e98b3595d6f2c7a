"""Rewriting a recording: blocks become single calls. Array work, once for recordings of equal structure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.graph.program import Ints
from weft.graph.recording import OUTPUT_BITS, CallProgram, References, Table, as_tensor
from weft.graph.uncast import cat
from weft.lazy.chains import LOW, Longs, Recorded
from weft.lazy.coarsen import Coarse
from weft.lazy.native import functions
from weft.lazy.state import State
from weft.run.callgraph import CallGraph

Column = tuple[int, int]
"""A table of fed data: (type, feed number)."""


@dataclass(frozen=True, eq=False)
class Rewritten:
    """A recording with blocks as calls: all of it but the data that is fed."""

    calls: CallProgram
    wanted: References
    heads: Ints
    """The recorded call where each call begins."""
    tables: Sequence[tuple[Column, list[Column], Longs | None]]
    """For each table the recorded ones that it is made of, and in which order their rows are."""

    def program(self, data: Mapping[Column, Table], imported: Mapping[Column, Table] | None = None) -> CallProgram:
        """The calls with the data of the recording, and of the imports in front of it."""
        found = {at: _joined([data[each] for each in parts], order) for at, parts, order in self.tables}
        calls = self.calls
        return CallProgram(calls.type, calls.arguments, calls.further, found | dict(imported or {}), calls._cache)


class Imports(NamedTuple):
    """Calls that hand in what earlier flushes gave, in front of all others: their types, and which is for each slot."""

    types: Ints
    places: Longs


NO_IMPORTS = Imports(np.empty(0, np.int32), np.empty(0, np.int64))


def rewrite(coarse: Coarse, state: State, recorded: Recorded, wanted: References, imports: Imports = NO_IMPORTS) -> Rewritten:
    """Learn from a recording, and rewrite it."""
    found = _natively(coarse, state, recorded, wanted, imports)
    if found is not None:
        return found
    layout, t = coarse.see(state, recorded, wanted), recorded.type
    is_head = coarse.position[t] == 0
    place = np.cumsum(is_head) - 1 + len(imports.types)
    heads = np.flatnonzero(is_head)
    keep = layout.handed | (place[np.maximum(layout.producer, 0)] != place[layout.consumer])  # those from outside its block
    single = ~coarse.chains.is_many[t[layout.consumer]]
    column = coarse.chains.first[t[layout.consumer]] + layout.column
    keep[single] &= coarse.kept_column[column[single]]

    def moved(refs: Longs) -> Longs:
        calls, outputs = refs >> OUTPUT_BITS, refs & LOW
        result: Longs = place[calls] << OUTPUT_BITS | coarse.new_out[coarse.first_out[t[calls]] + outputs]
        return result

    chosen = recorded.arguments[keep]
    arguments = chosen.copy()
    arguments[chosen >= 0] = moved(chosen[chosen >= 0])
    if len(imports.types):
        arguments[chosen < 0] = imports.places[-1 - chosen[chosen < 0]] << OUTPUT_BITS
    types = np.append(imports.types, coarse.number[t[heads]].astype(np.int32))
    calls = CallProgram(types, arguments, recorded.further, {})
    return Rewritten(calls, moved(wanted), heads.astype(np.int32), _tables(coarse, recorded, heads))


def _natively(coarse: Coarse, state: State, recorded: Recorded, wanted: References, imports: Imports) -> Rewritten | None:
    """The same in C; None where the recording shows something new."""
    native = functions("weave", "weft_rewrite")
    if native is None or coarse.shown is None:
        return None
    calls = recorded.type, recorded.arguments, recorded.further, recorded.starts, wanted
    found = native[0]((*calls, *imports, *coarse.shown, len(state.library.types).to_bytes(8, sys.byteorder)))
    if found is None:
        return None
    arrays: list[Any] = list(map(np.frombuffer, found, "iqiqiiii"))
    types, arguments, heads, results, *graph = arrays
    program = CallProgram(types, arguments, recorded.further, {}, {"graph": CallGraph(types, *graph)})
    return Rewritten(program, results, heads, _tables(coarse, recorded, heads))


def _tables(coarse: Coarse, recorded: Recorded, heads: Longs) -> list[tuple[Column, list[Column], Longs | None]]:
    """Fed data by call type: a block's feeds are those of its operations, in order."""
    if not coarse.is_fed:
        return []
    parts: dict[Column, list[tuple[int, Column]]] = {}
    for head in np.flatnonzero(np.bincount(recorded.type[heads])).tolist():
        for number, key in enumerate(coarse.feeds[head]):
            parts.setdefault((int(coarse.number[head]), number), []).append((head, key))
    found: list[tuple[Column, list[Column], Longs | None]] = []
    for target, made_of in parts.items():
        order = None if len(made_of) == 1 else _order(recorded.type, [head for head, _ in made_of])
        found.append((target, [key for _, key in made_of], order))
    return found


def _order(types: Ints, numbers: list[int]) -> Longs:
    """How rows of several types, one after the other, come into the order of the calls."""
    return np.argsort(np.concatenate([np.flatnonzero(types == number) for number in numbers]), kind="stable")


def _joined(tables: Sequence[Table], order: Longs | None) -> Table:
    if order is None:
        return tables[0]
    arrays = [part for part in tables if isinstance(part, np.ndarray)]
    if len(arrays) < len(tables):
        return cat([as_tensor(part) for part in tables]).index_select(0, torch.from_numpy(order))
    joined: Table = np.concatenate(arrays)[order]
    return joined


def interleaved(types: Ints, tables: list[tuple[int, Table]]) -> Table:
    """Rows of several recorded types that are one call type, in the order of the calls."""
    order = None if len(tables) == 1 else _order(types, [number for number, _ in tables])
    return _joined([rows for _, rows in tables], order)
