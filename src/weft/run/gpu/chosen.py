"""Rows of some nodes, where a call does not return those of all: index arrays on the device, made once for a plan.

Forward takes the rows; backward adds up, for each row of a type, the gradients of all results that it is. So a row that is
returned twice has both gradients, one that is not returned has zeros, and nothing is scattered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from weft.graph.program import Ints
from weft.plan.library import address
from weft.run.call import Call
from weft.run.code import CellCode
from weft.run.indices import Indices
from weft.run.upload import Uploaded
from weft.run.wanted import Wanted

MOST_CHOICES = 64
"""Of one plan: calls may ask for other nodes every time."""


class Chosen(NamedTuple):
    """What is known of one wanted output and one type."""

    rows: Tensor
    """The rows, of the type or, for states that others read, of their class."""
    places: Tensor
    """Where they are among the results."""
    results: Tensor
    """For backward: numbers of results, those of the type's first row first."""
    bounds: Tensor
    """And where those of each row begin."""


def numbers_of(call: Call, wanted: Wanted, t: int) -> dict[str, str]:
    """How a recipe calls each of them: as an item of a list."""
    before = 0
    for one in call.wanted:
        types = () if one.nodes is None else one.types(call.plan)
        if one is wanted:
            first = len(Chosen._fields) * (before + types.index(t))
            return {field: f"chosen[{first + at}]" for at, field in enumerate(Chosen._fields)}
        before += len(types)
    raise ValueError("an output that nobody wants")


def chosen_rows(call: Call, codes: Mapping[int, CellCode], indices: Indices) -> list[Tensor]:
    """That list: of all outputs of which some rows are wanted, type by type."""
    found: list[Tensor] = []
    for wanted in call.wanted:
        if wanted.nodes is not None:
            for chosen in _of_one(wanted, call, codes, indices):
                found += chosen
    return found


def _of_one(wanted: Wanted, call: Call, codes: Mapping[int, CellCode], indices: Indices) -> Sequence[Chosen]:
    kept: OrderedDict[Hashable, list[Chosen]] = indices.once("chosen", OrderedDict)
    names = {t: call.cells[t].own_name(wanted.name) for t in wanted.types(call.plan)}
    outputs = tuple([name[0] if name in codes[t].role.exchanged else None for t, name in names.items()])
    key = wanted.key, *names, outputs
    known = kept.get(key)
    if known is None:
        parts = wanted.parts(call.plan)
        known = kept[key] = [
            _brought(_arrays(indices, t, output, at, rows), indices)
            for (t, at, rows), output in zip(parts, outputs, strict=True)
        ]
        if len(kept) > MOST_CHOICES:
            kept.popitem(last=False)
    return known


def _arrays(indices: Indices, t: int, output: int | None, at: Ints | None, rows: Ints) -> list[Ints]:
    plan = indices.plan
    places = np.arange(len(rows)) if at is None else at
    count = len(plan.rows[t])
    bounds = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=count))))
    taken = rows if output is None else plan.class_row[t, output][rows]
    return [np.ascontiguousarray(one, np.int32) for one in (taken, places, places[np.argsort(rows, kind="stable")], bounds)]


def _brought(arrays: Sequence[Ints], indices: Indices) -> Chosen:
    there = Uploaded([(address(array), array.size) for array in arrays], indices.device)
    first = [into // 4 for _, _, into in there.parts]
    return Chosen(*[there.memory.narrow(0, at, array.size) for at, array in zip(first, arrays, strict=True)])
