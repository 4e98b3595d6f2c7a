"""Rules of returns: every gradient row comes back to the class row that it was read from, once, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.graph.program import Ints
from weft.graph.verify import counted
from weft.plan.arguments import Indices
from weft.plan.plan import NOT_A_SLICE, Plan, Read, Return
from weft.plan.returns import returns
from weft.plan.verify_reads import Pieces, broken_slices


def broken_returns(plan: Plan) -> Iterator[str]:
    """Compare the returns with the reads, which have been verified, turned round."""
    found = returns(plan)
    wanted: set[tuple[int, int, int]] = set()
    for read in plan.reads:
        if read.value_class < 0:
            continue
        pairs = Pairs(plan, read)
        for group in range(len(plan.groups)):
            first, last = _written(plan, group, read.value_class)
            if not pairs.counts[first:last].any():
                continue
            key = read.type, read.port, group
            wanted.add(key)
            if key in found:
                yield from _broken_return(plan, read, group, found[key], pairs)
            else:
                yield f"{_name(read.port, read.type, group)} is missing."
    for t, p, group in sorted(set(found) - wanted):
        yield f"{_name(p, t, group)} exists, but nothing is read there."


def _name(port: int, type: int, group: int) -> str:
    return f"the return from port {port} of type {type} to group {group}"


class Pairs:
    """Which gradient rows of a read belong to which class rows, sorted by class row, then by gradient row."""

    def __init__(self, plan: Plan, read: Read) -> None:
        rows = plan.classes[read.value_class].rows
        gradient = np.arange(len(read.index))
        self.total = len(read.index)
        if read.offsets is not None and read.kind == "sum":
            self.total = len(read.offsets) - 1
            gradient = np.searchsorted(read.offsets, gradient, side="right") - 1
        filled = np.flatnonzero(read.index < rows)
        order = filled[np.lexsort((filled, read.index[filled]))]
        self.gradient = gradient[order]
        self.counts = np.bincount(read.index[filled], minlength=rows)
        self.ends = np.concatenate(([0], np.cumsum(self.counts)))
        self.several = bool((self.counts > 1).any())


def _written(plan: Plan, group: int, value_class: int) -> tuple[int, int]:
    """The class rows that a group writes; they lie side by side because class rows are in the order of running."""
    members = [member for member in plan.classes[value_class].members if member[0] in plan.groups[group].types]
    rows = [plan.class_row[member] for member in members]
    return (min(int(r.min()) for r in rows), max(int(r.max()) for r in rows) + 1) if rows else (0, 0)


def _broken_return(plan: Plan, read: Read, group: int, back: Return, pairs: Pairs) -> Iterator[str]:
    where = _name(read.port, read.type, group)
    first, last = _written(plan, group, read.value_class)
    if (back.type, back.port, back.group) != (read.type, read.port, group):
        yield f"{where} says it is from port {back.port} of type {back.type} to group {back.group}."
        return
    if (back.first, back.last) != (first, last):
        yield f"{where} goes to class rows {back.first}:{back.last}; the group writes {first}:{last}."
        return
    if (back.single is None) != pairs.several:
        has, some = ("has", "some") if pairs.several else ("lacks", "no")
        yield f"{where} {has} single rows, but {some} row was read twice."
        return
    index, offsets = pairs.gradient[pairs.ends[first] : pairs.ends[last]], pairs.ends[first : last + 1] - pairs.ends[first]
    if back.count != len(index):
        yield f"{where} brings back {counted(back.count, 'gradient row')}, it says, but there are {len(index)}."
    if back.single is not None:
        single = np.full(last - first, pairs.total)
        single[pairs.counts[first:last] > 0] = index
        if not np.array_equal(back.single, single):
            yield f"{where} has a single row that is not the one gradient row of its class row, or the row of zeros for none."
    elif not np.array_equal(back.bags()[1], offsets):
        yield f"{where} does not divide the gradient rows among the class rows as they were read."
        return
    elif not np.array_equal(back.bags()[0], index):
        yield f"{where} does not bring every gradient row back, in order, to the class row it was read from."
        return
    yield from _broken_pieces(plan, read, back, index, offsets, pairs.total, where)


def _broken_pieces(
    plan: Plan, read: Read, back: Return, index: Indices, ends: Indices, total: int, where: str
) -> Iterator[str]:
    bounds = np.array([0, back.last - back.first])
    if read.type in plan.groups[back.group].types:
        bounds = np.append(_step_starts(plan, back.group, read.value_class) - back.first, bounds[1])
    if not np.array_equal(back.bounds, bounds):
        pieces = "the steps of the group" if len(bounds) > 2 else "one piece over all rows"
        yield f"{where} is not cut into {pieces}."
        return
    if not len(back.slices) == len(back.nothing) == len(bounds) - 1:
        yield f"{where} does not have one slice and one nothing for each of its {counted(len(bounds) - 1, 'piece')}."
        return
    cuts = ends[bounds]
    nothing = np.diff(cuts) == 0
    if (back.nothing != nothing).any():
        piece = int((back.nothing != nothing).argmax())
        says = "nothing comes back, but something does" if back.nothing[piece] else "something comes back, but nothing does"
        yield f"piece {piece} of {where} says {says}."
    full = (np.diff(cuts) == np.diff(bounds)) & (back.single is not None)
    false = (back.slices != NOT_A_SLICE) & ~full
    if false.any():
        yield f"piece {false.argmax()} of {where} says it is a slice, but not every class row has one gradient row."
    claims = Pieces(np.flatnonzero(full), cuts[:-1][full], cuts[1:][full], back.slices[full])
    yield from broken_slices(where, index, claims, total)


def _step_starts(plan: Plan, group: int, value_class: int) -> Ints:
    """The first class row of every step of a group that writes to a class, in the order of class rows."""
    steps = plan.groups[group]
    starts = [
        plan.class_row[member][steps.step_lo[steps.step_type == member[0]]]
        for member in plan.classes[value_class].members
        if member[0] in steps.types
    ]
    return np.sort(np.concatenate(starts))
