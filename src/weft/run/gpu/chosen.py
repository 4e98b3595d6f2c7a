"""Rows of some nodes, where a call does not return those of all: index arrays on the device, made once for a plan.

Forward takes the rows; backward adds up, for each row of a type, the gradients of all results that it is. So a row that is
returned twice has both gradients, one that is not returned has zeros, and nothing is scattered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress

import numpy as np
from torch import Tensor

from weft.graph.program import Ints
from weft.plan.library import address
from weft.run.call import Call
from weft.run.code import CellCode
from weft.run.indices import Indices
from weft.run.upload import Uploaded
from weft.run.wanted import Wanted

MOST_CHOICES = 16
"""Of one plan, the ones used last: calls may ask for other nodes every time."""


FIELDS = ("rows", "places", "results", "bounds")
"""What is known of one wanted output and one type: the rows, of the type or, for states that others read, of their class; where
they are among the results; and, for backward, numbers of results, those of the type's first row first, and where those of each
row begin."""


def numbers_of(call: Call, wanted: Wanted, t: int) -> dict[str, str]:
    """How a recipe calls each of them: as an item of a list."""
    before = 0
    for one in call.wanted:
        types = () if one.nodes is None else one.types(call.plan)
        if one is wanted:
            first = len(FIELDS) * (before + types.index(t))
            return {field: f"chosen[{first + at}]" for at, field in enumerate(FIELDS)}
        before += len(types)
    raise ValueError("an output that nobody wants")


def chosen_rows(call: Call, codes: Mapping[int, CellCode], indices: Indices) -> list[Tensor]:
    """That list: of all outputs of which some rows are wanted, type by type."""
    kept: OrderedDict[Hashable, list[Tensor]] = indices.once("chosen", OrderedDict)
    some = [(wanted, wanted.types(call.plan)) for wanted in call.wanted if wanted.nodes is not None]
    names = [[(t, call.cells[t].own_name(wanted.name)) for t in types] for wanted, types in some]
    outputs = [[name[0] if name in codes[t].role.exchanged else None for t, name in each] for each in names]
    key = tuple([(wanted.key, types, *each) for (wanted, types), each in zip(some, outputs, strict=True)])
    found = kept.get(key)
    if found is None:
        arrays: list[Ints] = []
        for (wanted, _), each in zip(some, outputs, strict=True):
            for (t, at, rows), output in zip(wanted.parts(call.plan), each, strict=True):
                arrays += _arrays(indices, t, output, at, rows)
        found = kept[key] = _brought(arrays, indices)
        if len(kept) > MOST_CHOICES:
            kept.popitem(last=False)
    with suppress(KeyError):  # another thread made room
        kept.move_to_end(key)
    return found


def _arrays(indices: Indices, t: int, output: int | None, at: Ints | None, rows: Ints) -> list[Ints]:
    plan = indices.plan
    places = np.arange(len(rows)) if at is None else at
    count = len(plan.rows[t])
    bounds = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=count))))
    taken = rows if output is None else plan.class_row[t, output][rows]
    return [np.ascontiguousarray(one, np.int32) for one in (taken, places, places[np.argsort(rows, kind="stable")], bounds)]


def _brought(arrays: Sequence[Ints], indices: Indices) -> list[Tensor]:
    there = Uploaded([(address(array), array.size) for array in arrays], indices.device)
    first = [into // 4 for _, _, into in there.parts]
    return [there.memory.narrow(0, at, array.size) for at, array in zip(first, arrays, strict=True)]
