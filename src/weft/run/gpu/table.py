"""The table of a group's steps, one line for each: what a kernel that walks them must know.

    first row, last row, first edge, last edge, number of the type in the group,
    then for every type and output: how far the step's rows are shifted to their class rows, and to those that the group wrote

Every line fills the columns of its own type only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import numpy as np

from weft.graph.program import Ints
from weft.plan.native import step_table_natively
from weft.plan.plan import Plan
from weft.plan.shape import native

FIXED = 5

MOST_STRETCHES = 6
WIDTHS = ("narrow", "middling", "broad", "wide", "widest", "apart")
"""For steps of each width there is a kernel of its own; for the last, the library multiplies."""

Limits = tuple[tuple[int, str], ...]
"""From how many rows on steps are of a width, in order; below the first limit they are narrow."""

Stretch = tuple[int, int, str]
"""Consecutive steps, from the first to before the last, that are of one width."""


def columns(plan: Plan, number: int) -> dict[tuple[int, int], int]:
    """The column of each (type, output) of a group: the shift to class rows; that to the group's own is the next."""
    outputs = [(t, output) for t in plan.groups[number].types for output in range(plan.program.types[t].outputs)]
    return {output: FIXED + 2 * at for at, output in enumerate(outputs)}


def step_table(plan: Plan, number: int) -> Ints:
    """Made once for each plan."""
    key = ("step table", number)
    if key not in plan._derived:
        found = step_table_natively(plan, number)
        plan._derived[key] = _make(plan, number) if found is None else found
    return cast(Ints, plan._derived[key])


def _make(plan: Plan, number: int) -> Ints:
    """The slow twin of what C puts into a plan."""
    group = plan.groups[number]
    where = columns(plan, number)
    table = np.zeros((group.steps, FIXED + 2 * len(where)), dtype=np.int32)
    table[:, 0], table[:, 1] = group.step_lo, group.step_hi
    for at, t in enumerate(group.types):
        mine = slice(None) if len(group.types) == 1 else np.flatnonzero(group.step_type == t)
        lo = group.step_lo[mine]
        table[mine, 4] = at
        for read in plan.reads:
            if read.type == t and read.kind == "edges" and read.offsets is not None:
                table[mine, 2], table[mine, 3] = read.offsets[lo], read.offsets[group.step_hi[mine]]
        for output in range(plan.program.types[t].outputs):
            if len(lo) and (t, output) in plan.class_row:
                first, column = plan.class_span(number, plan.class_of[t, output])[0], where[t, output]
                table[mine, column] = plan.class_row[t, output][lo] - lo
                table[mine, column + 1] = table[mine, column] - first
    return table.reshape(-1)


def stretches(plan: Plan, number: int, backward: bool, limits: Limits, first: int = 0) -> list[Stretch]:
    """A group's steps by width, from the `first` on: one launch for each stretch. Where width changes all the time, all steps
    are one stretch."""
    key = ("stretches", number, first, limits)
    if key not in plan._derived:
        plan._derived[key] = _make_stretches(step_sizes(plan, number), limits, first)
    found = cast(list[Stretch], plan._derived[key])
    return found[::-1] if backward else found


def _make_stretches(sizes: Sequence[int], limits: Limits, first: int = 0) -> list[Stretch]:
    """The slow twin of what calls that are lowered do (`onecall/onecall.c`)."""
    least, names = [rows for rows, _ in limits], ["narrow", *(name for _, name in limits)]
    width = [bisect_right(least, size) for size in sizes]
    begins = [at for at, (before, now) in enumerate(pairwise((-1, *width[first:])), first) if before != now]
    found = [(begin, end, names[width[begin]]) for begin, end in pairwise((*begins, len(sizes)))]
    if len(found) <= MOST_STRETCHES or any(name == "apart" for _, _, name in found):
        return found
    return [(first, len(sizes), names[bisect_right(least, sum(sizes[first:]) / (len(sizes) - first))])]


def step_sizes(plan: Plan, number: int) -> list[int]:
    """The rows of each step of a group."""
    key = ("step sizes", number)
    if key not in plan._derived:
        group = plan.groups[number]
        plan._derived[key] = (group.step_hi - group.step_lo).tolist()
    return cast(list[int], plan._derived[key])


def largest_step(plan: Plan, number: int) -> int:
    """The rows of a group's largest step."""
    made = native(plan)
    return max(step_sizes(plan, number), default=0) if made is None else made.numbers[made.layout.largest_steps[number]]
