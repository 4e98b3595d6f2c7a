"""Layout: give every node a row, every exchanged value an arena row, and every port the rows it gathers.

Rows follow execution order, so a step writes a slice. Within a step, nodes with the longest way still above them come first: a
batch of chains then keeps its sequences in order of length, a batch of full trees keeps siblings side by side, and what a step
reads is a slice of what was written, a view instead of a copy:

    level 2    a2                     reads  a1          rows 6 -> 3
    level 1    a1 b1 c1               reads  a0 b0 c0    rows 3,4,5 -> 0,1,2
    level 0    a0 b0 c0               (sequences a, b, c of length 3, 2, 2)

Cost: one stable radix sort and a dozen array passes; nothing per node in Python. It loses where a level reads from several
earlier levels (irregular trees): those gathers stay index gathers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from weft.graph.program import EMPTY, Ints, Port, Program
from weft.plan.arguments import positions
from weft.plan.condense import GroupOrder
from weft.plan.levels import Bools, Indices, occurring, stable_order
from weft.plan.levels import offsets as offsets_of
from weft.plan.plan import NOT_A_SLICE, Group, Plan, Read, ValueClass

Output = tuple[int, int]
"""A type and the number of one of its outputs."""


def lay_out(
    program: Program, policy: str, orders: Sequence[GroupOrder], above: Ints, max_rows: int | None, started: float
) -> Plan:
    """Turn an order of steps into a plan. `above` is the longest way from each node to one that nobody reads."""
    step = np.zeros(program.num_nodes, dtype=np.int64)  # numpy indexes with 64 bits three times as fast as with 32
    base = 0
    for order in orders:
        step[order.nodes] = order.step + base if base else order.step
        base += order.steps
    step_type = np.zeros(base, dtype=np.int32)
    step_type[step] = program.type
    sizes = np.bincount(step, minlength=base)
    by_type = _by_type(step, step_type, above)
    counts = np.zeros(len(program.types), dtype=np.int64)
    np.add.at(counts, step_type, sizes)
    bounds = offsets_of(counts)
    nodes = [by_type[start:end] for start, end in pairwise(bounds.tolist())]
    rows = tuple(of_type.astype(np.int32) for of_type in nodes)

    groups = _groups(orders, step_type, sizes, max_rows)
    sources = _sources(program, nodes)
    classes, class_row = _classes(program, groups, sources)
    class_of = {member: number for number, value_class in enumerate(classes) for member in value_class.members}
    reads = _reads(program, groups, nodes, sources, classes, class_of, class_row)
    seconds = time.perf_counter() - started
    return Plan(program, policy, groups, rows, classes, class_of, class_row, reads, seconds, max_rows)


def _by_type(step: Indices, step_type: Ints, above: Ints) -> Indices:
    """All nodes by type, then step, then the way above them, longest first, then number."""
    steps = len(step_type)
    rank = np.empty(steps, dtype=np.int32)
    rank[stable_order(step_type, int(step_type.max(initial=0)) + 1)] = np.arange(steps, dtype=np.int32)
    top = int(above.max(initial=0))
    if steps * (top + 1) < 1 << 31:
        highest = rank * np.int32(top + 1) + np.int32(top)
        return stable_order(highest.take(step) - above, steps * (top + 1))
    order = stable_order(np.int32(top) - above, top + 1)
    return order[stable_order(rank.take(step)[order], steps)]


def _groups(orders: Sequence[GroupOrder], step_type: Ints, sizes: Indices, max_rows: int | None) -> tuple[Group, ...]:
    """The row ranges of all steps, none longer than `max_rows`, by group."""
    groups: list[Group] = []
    first = 0
    for order in orders:
        last = first + order.steps
        types, lengths = step_type[first:last], sizes[first:last]
        first = last
        if max_rows is not None:
            pieces = -(-lengths // max_rows)
            number = np.arange(pieces.sum()) - np.repeat(offsets_of(pieces)[:-1], pieces)
            types, lengths = np.repeat(types, pieces), np.minimum(np.repeat(lengths, pieces) - number * max_rows, max_rows)
        lo, hi = np.empty(len(types), dtype=np.int32), np.empty(len(types), dtype=np.int32)
        for t in order.types:
            mine = types == t
            bounds = offsets_of(lengths[mine])
            lo[mine], hi[mine] = bounds[:-1], bounds[1:]
        groups.append(Group(order.types, order.cyclic, types, lo, hi))
    return tuple(groups)


@dataclass(frozen=True, eq=False)
class _Source:
    """Where one port of one type reads: argument positions (-1: none) in row order, their bounds by row for bags, the nodes
    and the numbers of their outputs, and which outputs occur at all."""

    type: int
    number: int
    port: Port
    at: Ints
    bounds: Ints | None
    node: Indices
    out: Ints | None
    filled: Bools | None
    """None where nothing is empty."""
    outputs: list[Output]


def _sources(program: Program, nodes: Sequence[Indices]) -> list[_Source]:
    # Position -1, no argument, finds the empty one at the end.
    src: Indices = np.concatenate((program.src, np.array([EMPTY], dtype=np.int64)))
    out: Ints | None = None if program.out is None else np.concatenate((program.out, np.zeros(1, dtype=np.int32)))
    wide = 1 if out is None else _widest(program)
    sources: list[_Source] = []
    for t, kind in enumerate(program.types):
        for number, port in enumerate(kind.ports if len(nodes[t]) else ()):
            at, bounds = positions(program, nodes[t], port)
            node: Indices = src.take(at)
            output: Ints | None = None if out is None else out.take(at)
            exists = node >= 0
            filled = None if exists.all() else exists
            producer, which = (node, output) if filled is None else (node[filled], None if output is None else output[filled])
            key: Indices = program.type.take(producer)
            if which is not None:
                key = key.astype(np.int64) * wide + which
            outputs = [divmod(k, wide) for k in occurring(key, len(program.types) * wide)]
            sources.append(_Source(t, number, port, at.astype(np.int32), bounds, node, output, filled, outputs))
    return sources


def _widest(program: Program) -> int:
    return max([1, *(kind.outputs for kind in program.types)])


def _classes(
    program: Program, groups: tuple[Group, ...], sources: list[_Source]
) -> tuple[tuple[ValueClass, ...], dict[Output, Ints]]:
    """Join outputs that one port reads; number the rows of each class in execution order."""
    present = sorted(t for group in groups for t in group.types)
    parent = {(t, b): (t, b) for t in present for b in range(program.types[t].outputs)}

    def find(output: Output) -> Output:
        while parent[output] != output:
            parent[output] = parent[parent[output]]
            output = parent[output]
        return output

    for source in sources:
        for output in source.outputs:
            parent[find(output)] = find(source.outputs[0])
    holes = {find(source.outputs[0]) for source in sources if source.outputs and source.filled is not None}
    members: dict[Output, list[Output]] = {}
    for output in parent:
        members.setdefault(find(output), []).append(output)

    none = np.zeros(0, np.int32)
    step_type = np.concatenate([*(group.step_type for group in groups), none])
    sizes = np.concatenate([*(group.step_hi - group.step_lo for group in groups), none])
    classes: list[ValueClass] = []
    class_row: dict[Output, Ints] = {}
    for root, mine in members.items():
        starts, rows = _starts(step_type, sizes, mine)
        for column, output in enumerate(mine):
            here = step_type == output[0]
            class_row[output] = _runs(starts[here, column], sizes[here])
        classes.append(ValueClass(tuple(mine), rows, root in holes))
    return tuple(classes), class_row


def _starts(step_type: Ints, sizes: Ints, members: list[Output]) -> tuple[Ints, int]:
    """The first class row of each step [steps, members] and the number of class rows; a step writes its members one by one."""
    kinds = np.array([t for t, _ in members], dtype=np.int32)
    written = (step_type[:, None] == kinds) * sizes[:, None]
    starts = offsets_of(written.reshape(-1))
    return starts[:-1].reshape(written.shape), int(starts[-1])


def _runs(starts: Ints, lengths: Ints) -> Ints:
    """Consecutive numbers from each start on, as many as its length; one range where each run continues the one before."""
    ends = starts + lengths
    if (starts[1:] == ends[:-1]).all():
        return np.arange(starts[0], ends[-1], dtype=np.int32)
    bounds = offsets_of(lengths)
    return np.repeat(starts - bounds[:-1], lengths) + np.arange(bounds[-1], dtype=np.int32)


def _reads(
    program: Program,
    groups: tuple[Group, ...],
    nodes: Sequence[Indices],
    sources: list[_Source],
    classes: tuple[ValueClass, ...],
    class_of: dict[Output, int],
    class_row: dict[Output, Ints],
) -> tuple[Read, ...]:
    group_of = {t: group for group in groups for t in group.types}
    wide = _widest(program)
    place = np.full(program.num_nodes * wide, -1, dtype=np.int32)
    for (t, b), class_rows in class_row.items():
        place[nodes[t] if wide == 1 else nodes[t] * wide + b] = class_rows
    reads: list[Read] = []
    for source in sources:
        t, port = source.type, source.port
        width = len(port.positions) if port.kind == "slots" else 1
        if not source.outputs:
            reads.append(_empty_read(source, width, len(nodes[t])))
            continue
        value_class = class_of[source.outputs[0]]
        end = classes[value_class].rows
        index = place.take(source.node * wide if source.out is None else source.node * wide + source.out)
        if source.filled is not None:
            index[~source.filled] = end
        group = group_of[t]
        recurrent = group.cyclic and any(producer in group.types for producer, _ in source.outputs)
        mine = group.step_type == t
        cuts = np.concatenate((group.step_lo[mine], group.step_hi[mine][-1:])) if recurrent else np.array([0, len(nodes[t])])
        slices = _slices(index, source.bounds[cuts] if source.bounds is not None else cuts * width, end)
        cuts = cuts.astype(np.int32)
        reads.append(Read(t, source.number, port.kind, width, value_class, recurrent, index, source.bounds, cuts, slices))
    return tuple(reads)


def _empty_read(source: _Source, width: int, rows: int) -> Read:
    """A port that finds nothing at all in this batch reads zeros; it belongs to no class."""
    cuts, slices = np.array([0, rows], dtype=np.int32), np.full(1, NOT_A_SLICE, np.int32)
    index = np.zeros(len(source.at), np.int32)
    return Read(source.type, source.number, source.port.kind, width, -1, False, index, source.bounds, cuts, slices)


def _slices(index: Ints, cuts: Ints, stop: int) -> Ints:
    """For each piece `index[cuts[i]:cuts[i+1]]` its first entry if it counts up by one (and never reaches `stop`)."""
    begin, end = cuts[:-1], cuts[1:]
    found = np.zeros(len(begin), dtype=np.int32)
    full = np.flatnonzero(end > begin)
    first, last = begin[full], end[full] - 1
    jumps = np.flatnonzero(np.diff(index) != 1)
    straight = (np.searchsorted(jumps, first) == np.searchsorted(jumps, last)) & (index[last] < stop)
    found[full] = np.where(straight, index[first], np.int32(NOT_A_SLICE))
    return found
