"""Returns: the way back. For every read, which gradient rows belong to which class rows.

A gather's derivative is a scatter; written from the other side it is again a gather: the gradient of a row is the sum, in a
fixed order, of the gradient rows of all who read it. Where every row has one reader (trees, chains) that is an index, or a
slice; with several readers it is a segment sum. Nothing is accumulated by scattering, so equal calls give equal bits.

A port of kind "sum" gives the same gradient to all its arguments: its gradient rows are rows of the reading type, and the
repetition over arguments is folded into the index.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from weft.graph.program import Ints
from weft.plan.levels import offsets as offsets_of
from weft.plan.levels import stable_order
from weft.plan.native import returns_natively
from weft.plan.plan import NOT_A_SLICE, Bools, Plan, Read, Return

Returns = dict[tuple[int, int, int], Return]


def returns(plan: Plan) -> Returns:
    """All returns, by (reading type, port, producing group); computed once per plan."""
    if "returns" not in plan._derived:
        found = returns_natively(plan)
        plan._derived["returns"] = _with_numpy(plan) if found is None else found
    return cast(Returns, plan._derived["returns"])


def _with_numpy(plan: Plan) -> Returns:
    """The slow twin of finding returns in C."""
    found = [back for read in plan.reads if read.value_class >= 0 for back in _returns_of(plan, read)]
    return {(back.type, back.port, back.group): back for back in found}


def _returns_of(plan: Plan, read: Read) -> list[Return]:
    rows = plan.classes[read.value_class].rows
    total, read_rows = len(read.index), read.index.astype(np.int64)
    gradient_rows = np.arange(total, dtype=np.int32)
    if read.offsets is not None and read.kind == "sum":
        total = len(read.offsets) - 1
        gradient_rows = np.repeat(np.arange(total, dtype=np.int32), np.diff(read.offsets))
    counts = np.bincount(read_rows, minlength=rows + 1)[:rows].astype(np.int32)
    single: Ints | None = None
    if counts.max(initial=0) <= 1:
        single = np.full(rows + 1, total, dtype=np.int32)
        single[read_rows] = gradient_rows
        index = single.take(np.flatnonzero(counts))
    else:
        filled = np.flatnonzero(read_rows < rows)
        index = gradient_rows.take(filled.take(stable_order(read.index.take(filled), rows)))
    bounds = offsets_of(counts)
    found: list[Return] = []
    for number, group in enumerate(plan.groups):
        first, last = plan.class_span(number, read.value_class)
        if first == last or bounds[first] == bounds[last]:
            continue
        own = read.recurrent and group.types and read.type in group.types
        cuts = _class_cuts(plan, number, read.value_class, last) if own else np.array([first, last])
        slices, nothing = _slices(bounds, index, cuts, single is not None)
        count, pieces = int(bounds[last] - bounds[first]), (cuts - first).astype(np.int32)
        made = Return(read.type, read.port, number, first, last, count, pieces, slices, nothing)
        if single is not None:
            made.single = single[first:last]
        else:
            made.index = index[bounds[first] : bounds[last]].astype(np.int32)
            made.offsets = (bounds[first : last + 1] - bounds[first]).astype(np.int32)
        found.append(made)
    return found


def _class_cuts(plan: Plan, number: int, value_class: int, last: int) -> Ints:
    """Bounds of the class rows that each step of a group writes, in order of class rows."""
    group = plan.groups[number]
    starts: list[Ints] = []
    for member in plan.classes[value_class].members:
        if member[0] in group.types:
            mine = group.step_type == member[0]
            starts.append(plan.class_row[member][group.step_lo[mine]])
    return np.concatenate((np.sort(np.concatenate(starts)), np.array([last], dtype=np.int32)))


def _slices(bounds: Ints, index: Ints, cuts: Ints, is_single: bool) -> tuple[Ints, Ints]:
    """Per piece: the first gradient row if the piece is consecutive with one each; and 1 where nothing comes back at all."""
    begin, end = bounds[cuts[:-1]], bounds[cuts[1:]]
    nothing = begin == end
    slices = np.full(len(cuts) - 1, NOT_A_SLICE, dtype=np.int32)
    if is_single and len(index):
        jumps = np.flatnonzero(np.diff(index) != 1)
        full = ~nothing & ((end - begin) == np.diff(cuts))
        straight = full & (np.searchsorted(jumps, begin) == np.searchsorted(jumps, end - 1))
        slices[straight] = index[begin[straight]]
    return slices, nothing.astype(np.int32)


def steps_that_return(plan: Plan, type: int, learns: dict[int, bool]) -> list[bool]:
    """For each step of a type: whether it read, by a recurrent port, any row of a type that needs gradients."""
    key = ("steps that return", type, tuple(sorted(learns.items())))
    if key not in plan._derived:
        lo, hi = plan.type_steps(type)
        found = np.zeros(len(lo), dtype=np.bool_)
        for read in plan.reads:
            if read.type == type and read.recurrent:
                found |= _reads_any(plan, read, learns, lo, hi)
        plan._derived[key] = found.tolist()
    return cast(list[bool], plan._derived[key])


def _reads_any(plan: Plan, read: Read, learns: dict[int, bool], lo: Ints, hi: Ints) -> Bools:
    learning = np.zeros(plan.classes[read.value_class].rows + 1, dtype=np.int32)
    for member in plan.classes[read.value_class].members:
        learning[plan.class_row[member]] = learns[member[0]]
    total = offsets_of(learning[read.index])
    begin, end = (read.offsets[lo], read.offsets[hi]) if read.offsets is not None else (lo * read.width, hi * read.width)
    found: Bools = total[end] > total[begin]
    return found
