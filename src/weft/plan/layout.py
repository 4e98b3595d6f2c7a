"""Layout: give every node a row, every exchanged value an arena row, and every port the rows it gathers.

Rows follow execution order, so a step writes a slice. Within a step, nodes with the longest way still above them come first: a
batch of chains then keeps its sequences in order of length, a batch of full trees keeps siblings side by side, and what a step
reads is a slice of what was written, a view instead of a copy:

    level 2    a2                     reads  a1          rows 6 -> 3
    level 1    a1 b1 c1               reads  a0 b0 c0    rows 3,4,5 -> 0,1,2
    level 0    a0 b0 c0               (sequences a, b, c of length 3, 2, 2)

Cost: two stable radix sorts and a dozen array passes; nothing per node in Python. It loses where a level reads from several
earlier levels (irregular trees): those gathers stay index gathers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from weft.graph.program import Ints, Port, Program
from weft.plan.condense import GroupOrder
from weft.plan.levels import offsets as offsets_of
from weft.plan.levels import stable_order
from weft.plan.plan import NOT_A_SLICE, Group, Plan, Read, ValueClass


def lay_out(
    program: Program, policy: str, orders: Sequence[GroupOrder], above: Ints, max_rows: int | None, started: float
) -> Plan:
    """Turn an order of steps into a plan. `above` is the longest way from each node to one that nobody reads."""
    n, types = program.num_nodes, len(program.types)
    step = np.zeros(n, dtype=np.int32)
    base = 0
    for order in orders:
        step[order.nodes] = order.step + np.int32(base)
        base += order.steps
    top = int(above.max(initial=0))
    first = stable_order(np.int32(top) - above, top + 1)
    order_nodes = first[stable_order(step[first], base)].astype(np.int32)
    type_in_order = program.type[order_nodes]
    by_type = order_nodes[stable_order(type_in_order, types)]
    counts = np.bincount(program.type, minlength=types)
    bounds = offsets_of(counts)
    rows = tuple(by_type[bounds[t] : bounds[t + 1]] for t in range(types))
    row = np.empty(n, dtype=np.int32)
    row[by_type] = np.arange(n, dtype=np.int32) - np.repeat(bounds[:-1], counts).astype(np.int32)

    groups = _groups(orders, step[order_nodes], type_in_order, counts, base, max_rows)
    sources = {
        (t, p): _sources(program, rows[t], port)
        for t, kind in enumerate(program.types)
        for p, port in enumerate(kind.ports)
        if counts[t]
    }
    classes, class_of, class_row = _classes(program, groups, counts, sources)
    reads = _reads(program, groups, rows, sources, classes, class_of, class_row)
    return Plan(
        program, policy, groups, rows, row, classes, class_of, class_row, reads, time.perf_counter() - started, max_rows
    )


def _groups(
    orders: Sequence[GroupOrder], step: Ints, type: Ints, counts: Ints, steps: int, max_rows: int | None
) -> tuple[Group, ...]:
    """Cut the execution order into steps of one type, none longer than `max_rows`."""
    sizes = np.bincount(step, minlength=steps)
    starts = offsets_of(sizes)[:-1]
    step_type = type[starts] if steps else np.zeros(0, dtype=np.int32)
    group_sizes = [order.steps for order in orders]
    which = np.repeat(np.arange(len(orders)), group_sizes)
    if max_rows is not None:
        pieces = -(-sizes // max_rows)
        number = np.arange(pieces.sum()) - np.repeat(offsets_of(pieces)[:-1], pieces)
        step_type, which = np.repeat(step_type, pieces), np.repeat(which, pieces)
        sizes = np.minimum(np.repeat(sizes, pieces) - number * max_rows, max_rows)
    lo = np.zeros(len(sizes), dtype=np.int32)
    for t in np.flatnonzero(counts):
        mine = np.flatnonzero(step_type == t)
        lo[mine] = offsets_of(sizes[mine])[:-1]
    hi = (lo + sizes).astype(np.int32)
    cuts = np.searchsorted(which, np.arange(len(orders) + 1))
    return tuple(
        Group(order.types, order.cyclic, step_type[a:b].astype(np.int32), lo[a:b], hi[a:b])
        for order, a, b in zip(orders, cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)
    )


def _sources(program: Program, nodes: Ints, port: Port) -> tuple[Ints, Ints | None]:
    """The argument positions (into `src`) that a port of these nodes reads, -1 for none; for bags also their bounds."""
    begin, end = program.ptr[nodes], program.ptr[nodes + 1]
    if port.kind == "slots":
        at = begin[:, None] + np.array(port.positions, dtype=np.int32)
        return np.where(at < end[:, None], at, np.int32(-1)).reshape(-1), None
    begin = np.minimum(begin + np.int32(port.positions[0]), end)
    lengths = end - begin
    bounds = offsets_of(lengths)
    at = np.repeat(begin - bounds[:-1], lengths) + np.arange(bounds[-1], dtype=np.int32)
    filled = program.src[at] >= 0
    if not filled.all():
        kept = np.concatenate((np.zeros(1, np.int32), np.cumsum(filled, dtype=np.int32)))
        at, bounds = at[filled], kept[bounds]
    return at.astype(np.int32), bounds.astype(np.int32)


def _outputs_read(program: Program, at: Ints) -> tuple[Ints, Ints | None]:
    """For argument positions: the producing nodes (-1 for none) and which of their outputs."""
    node = (
        np.where(at >= 0, program.src[np.maximum(at, 0)], np.int32(-1)) if len(program.src) else np.full(len(at), -1, np.int32)
    )
    return node, None if program.out is None else program.out[np.maximum(at, 0)]


Sources = dict[tuple[int, int], tuple[Ints, Ints | None]]


def _classes(
    program: Program, groups: tuple[Group, ...], counts: Ints, sources: Sources
) -> tuple[tuple[ValueClass, ...], dict[tuple[int, int], int], dict[tuple[int, int], Ints]]:
    """Join outputs that one port reads; number the rows of each class in execution order."""
    outputs = [(t, b) for t, kind in enumerate(program.types) for b in range(kind.outputs) if counts[t]]
    parent = {output: output for output in outputs}

    def find(output: tuple[int, int]) -> tuple[int, int]:
        while parent[output] != output:
            parent[output] = parent[parent[output]]
            output = parent[output]
        return output

    empties: set[tuple[int, int]] = set()
    wide = max((kind.outputs for kind in program.types), default=1)
    for (_, _), (at, _) in sources.items():
        node, out = _outputs_read(program, at)
        filled = node >= 0
        key = program.type[node[filled]].astype(np.int64) * wide + (0 if out is None else out[filled])
        read = [divmod(int(k), wide) for k in np.flatnonzero(np.bincount(key, minlength=1))]
        for output in read:
            parent[find(output)] = find(read[0])
        if read and not filled.all():
            empties.add(read[0])
    members: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for output in outputs:
        members.setdefault(find(output), []).append(output)
    holes = {find(output) for output in empties}

    step_type = np.concatenate([group.step_type for group in groups]) if groups else np.zeros(0, np.int32)
    sizes = np.concatenate([group.step_hi - group.step_lo for group in groups]) if groups else np.zeros(0, np.int32)
    classes: list[ValueClass] = []
    class_of: dict[tuple[int, int], int] = {}
    class_row: dict[tuple[int, int], Ints] = {}
    for root, mine in members.items():
        per_step = np.zeros((len(sizes), len(mine)), dtype=np.int64)
        for column, (t, _) in enumerate(mine):
            per_step[:, column] = np.where(step_type == t, sizes, 0)
        starts = offsets_of(per_step.reshape(-1))
        for column, (t, b) in enumerate(mine):
            here = step_type == t
            start = starts[:-1].reshape(len(sizes), len(mine))[here, column]
            lengths = sizes[here]
            class_row[t, b] = (np.arange(counts[t]) + np.repeat(start - offsets_of(lengths)[:-1], lengths)).astype(np.int32)
            class_of[t, b] = len(classes)
        classes.append(ValueClass(tuple(mine), int(starts[-1]), root in holes))
    return tuple(classes), class_of, class_row


def _reads(
    program: Program,
    groups: tuple[Group, ...],
    rows: tuple[Ints, ...],
    sources: Sources,
    classes: tuple[ValueClass, ...],
    class_of: dict[tuple[int, int], int],
    class_row: dict[tuple[int, int], Ints],
) -> tuple[Read, ...]:
    group_of = {t: number for number, group in enumerate(groups) for t in group.types}
    wide = max((kind.outputs for kind in program.types), default=1)
    place = np.full((program.num_nodes, wide), -1, dtype=np.int32)
    for (t, b), class_rows in class_row.items():
        place[rows[t], b] = class_rows
    reads: list[Read] = []
    for (t, p), (at, bounds) in sources.items():
        port: Port = program.types[t].ports[p]
        node, out = _outputs_read(program, at)
        filled = node >= 0
        if not filled.any():
            reads.append(_empty_read(t, p, port, at, bounds))
            continue
        one = int(np.argmax(filled))
        value_class = class_of[int(program.type[node[one]]), 0 if out is None else int(out[one])]
        index = np.where(filled, place[node, 0 if out is None else out], np.int32(classes[value_class].rows))
        types_read = np.flatnonzero(np.bincount(program.type[node[filled]]))
        group = groups[group_of[t]]
        recurrent = group.cyclic and any(group_of[int(source)] == group_of[t] for source in types_read)
        mine = group.step_type == t
        cuts = np.concatenate((group.step_lo[mine], group.step_hi[mine][-1:])) if recurrent else np.array([0, len(rows[t])])
        element = bounds[cuts] if bounds is not None else cuts * len(port.positions)
        width = len(port.positions) if port.kind == "slots" else 1
        slices = _slices(index, element, classes[value_class].rows)
        reads.append(Read(t, p, port.kind, width, value_class, recurrent, at, index, bounds, cuts.astype(np.int32), slices))
    return tuple(reads)


def _empty_read(t: int, p: int, port: Port, at: Ints, bounds: Ints | None) -> Read:
    """A port that finds nothing at all in this batch reads zeros; it belongs to no class."""
    width = len(port.positions) if port.kind == "slots" else 1
    rows = len(bounds) - 1 if bounds is not None else len(at) // max(width, 1)
    cuts = np.array([0, rows], dtype=np.int32)
    return Read(
        t, p, port.kind, width, -1, False, at, np.zeros(len(at), np.int32), bounds, cuts, np.full(1, NOT_A_SLICE, np.int32)
    )


def _slices(index: Ints, cuts: Ints, stop: int) -> Ints:
    """For each piece `index[cuts[i]:cuts[i+1]]` its first entry if it counts up by one (and never reaches `stop`)."""
    found = np.full(len(cuts) - 1, NOT_A_SLICE, dtype=np.int32)
    if not len(index):
        return np.zeros(len(cuts) - 1, dtype=np.int32)
    breaks = np.concatenate((np.zeros(1, np.int32), np.cumsum(np.diff(index) != 1, dtype=np.int32)))
    begin, end = cuts[:-1], cuts[1:]
    full = end > begin
    last = np.maximum(end - 1, 0)
    straight = full & (breaks[last] == breaks[np.minimum(begin, len(index) - 1)]) & (index[last] < stop)
    found[straight] = index[begin[straight]]
    found[~full] = 0
    return found
