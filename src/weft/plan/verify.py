"""What a plan must hold to, one sentence for each rule that is broken. Everything is derived anew from the program.

Rules come in stages: rows, steps, order (here), classes and reads (`verify_reads`), returns (`verify_returns`). A stage is
looked at only where the ones before it hold. `WEFT_VERIFY=1` in the environment has every plan verified when it is made.

Cost: a few sorts and some ten passes over nodes and arguments for every port, several times the cost of planning.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.errors import StructureError
from weft.graph.program import Ints
from weft.graph.verify import counted, verify_program
from weft.plan.plan import Plan
from weft.plan.verify_reads import broken_classes, broken_reads
from weft.plan.verify_returns import broken_returns


def verify_plan(plan: Plan, full: bool = True) -> None:
    """Raise `StructureError` that says which rules a plan breaks and where; do nothing if it breaks none.

    With `full=False` the program is taken as sound, and the way of the gradients, which is made on demand, is left out.

    >>> import numpy as np
    >>> from dataclasses import replace
    >>> from weft.graph.program import NodeType, Program
    >>> from weft.plan.schedule import schedule
    >>> pair = Program((NodeType("leaf"),), np.zeros(2, np.int32), np.zeros(3, np.int32), np.zeros(0, np.int32))
    >>> plan = schedule(pair)
    >>> verify_plan(plan)
    >>> verify_plan(replace(plan, rows=(np.array([0, 0], np.int32),)))
    Traceback (most recent call last):
    weft.errors.StructureError: broken plan: node 0 is in 2 rows; every node runs exactly once.
    """
    if full:
        verify_program(plan.program)
    stages = [_broken_rows, _broken_groups, _broken_steps, _broken_order, broken_classes, broken_reads]
    if full:
        stages.append(broken_returns)
    for stage in stages:
        broken = list(stage(plan))
        if broken:
            raise StructureError(f"broken plan: {' '.join(broken)}")


def _broken_rows(plan: Plan) -> Iterator[str]:
    program = plan.program
    n, types = program.num_nodes, len(program.types)
    if len(plan.rows) != types:
        yield f"there are rows for {counted(len(plan.rows), 'type')}, but the program has {types}."
        return
    nodes = np.concatenate([*plan.rows, np.zeros(0, np.int32)])
    outside = (nodes < 0) | (nodes >= n)
    if outside.any():
        yield f"a row holds node {nodes[outside.argmax()]}, but the program has {counted(n, 'node')}."
        return
    times = np.bincount(nodes, minlength=n)
    if (times != 1).any():
        node = int((times != 1).argmax())
        yield f"node {node} is in {counted(int(times[node]), 'row')}; every node runs exactly once."
        return
    sizes = [len(rows) for rows in plan.rows]
    kind = np.repeat(np.arange(types), sizes)
    row = np.concatenate([*(np.arange(size) for size in sizes), np.zeros(0, np.int64)])
    wrong = program.type[nodes] != kind
    if wrong.any():
        at = int(wrong.argmax())
        yield f"row {row[at]} of type {kind[at]} is node {nodes[at]}, which has type {program.type[nodes[at]]}."


def _broken_groups(plan: Plan) -> Iterator[str]:
    listed = [t for group in plan.groups for t in group.types]
    for t in sorted({*listed, *(t for t, rows in enumerate(plan.rows) if len(rows))}):
        if not 0 <= t < len(plan.rows) or not len(plan.rows[t]):
            yield f"type {t} is in a group, but it has no nodes."
        elif listed.count(t) != 1:
            yield f"type {t} is in {counted(listed.count(t), 'group')}; a type with nodes is in exactly one."
    for number, group in enumerate(plan.groups):
        if not len(group.step_type) == len(group.step_lo) == len(group.step_hi):
            yield f"group {number} has steps with a type, a first or a last row missing."
        strange = ~np.isin(group.step_type, group.types)
        if strange.any():
            at = int(strange.argmax())
            yield f"step {at} of group {number} runs type {group.step_type[at]}, which is not in it."


def _broken_steps(plan: Plan) -> Iterator[str]:
    step_type, lo, hi, group = steps_of(plan)
    first = np.searchsorted(group, group)  # steps are counted within their group

    def name(at: int) -> str:
        return f"step {at - first[at]} of group {group[at]} (type {step_type[at]}, rows {lo[at]}:{hi[at]})"

    empty = hi <= lo
    if empty.any():
        yield f"{name(int(empty.argmax()))} runs nothing."
    if plan.max_rows is not None and (hi - lo > plan.max_rows).any():
        yield f"{name(int((hi - lo > plan.max_rows).argmax()))} is longer than max_rows, {plan.max_rows}."
    order = np.argsort(step_type, kind="stable")
    begins = np.concatenate((np.ones(1, np.bool_), np.diff(step_type[order]) != 0))[: len(order)]
    due = np.where(begins, 0, np.roll(hi[order], 1))
    if (lo[order] != due).any():
        at = int((lo[order] != due).argmax())
        yield f"{name(int(order[at]))} should start at row {due[at]}: the steps of a type follow each other from row 0 on."
    ends = np.roll(begins, -1)
    have = np.array([len(rows) for rows in plan.rows], dtype=np.int64)[step_type[order]]
    short = ends & (hi[order] != have)
    if short.any():
        at = int(short.argmax())
        yield f"{name(int(order[at]))} is the last of its type, which has {counted(int(have[at]), 'row')}."
    unrun = sorted(set(np.flatnonzero([len(rows) for rows in plan.rows]).tolist()) - set(step_type.tolist()))
    if unrun:
        yield f"no step runs type {unrun[0]}, which has {counted(len(plan.rows[unrun[0]]), 'row')}."


def steps_of(plan: Plan) -> tuple[Ints, Ints, Ints, Ints]:
    """Type, first row, end and group of every step, in the order of running."""
    none = np.zeros(0, dtype=np.int32)
    number = np.repeat(np.arange(len(plan.groups), dtype=np.int32), [len(group.step_type) for group in plan.groups])
    return (
        np.concatenate([*(group.step_type for group in plan.groups), none]),
        np.concatenate([*(group.step_lo for group in plan.groups), none]),
        np.concatenate([*(group.step_hi for group in plan.groups), none]),
        number,
    )


def _broken_order(plan: Plan) -> Iterator[str]:
    """Arguments before users, whether or not a port reads them."""
    program = plan.program
    step_type, lo, hi, group_of_step = steps_of(plan)
    step = np.zeros(program.num_nodes, dtype=np.int64)
    by_type = np.argsort(step_type, kind="stable")
    step[np.concatenate([*plan.rows, np.zeros(0, np.int32)])] = np.repeat(by_type, (hi - lo)[by_type])
    reader = np.repeat(np.arange(program.num_nodes), np.diff(program.ptr))[program.src >= 0]
    source = program.src[program.src >= 0]
    group, source_group = group_of_step[step[reader]], group_of_step[step[source]]
    later = source_group > group
    if later.any():
        at = int(later.argmax())
        yield (
            f"node {reader[at]} runs in group {group[at]} and reads node {source[at]}, which runs only in group "
            f"{source_group[at]}; groups run after those that feed them."
        )
    inside = source_group == group
    cyclic = np.array([group.cyclic for group in plan.groups], dtype=np.bool_)
    hidden = inside & ~cyclic[group] if len(cyclic) else inside
    if hidden.any():
        at = int(hidden.argmax())
        yield f"group {group[at]} says it is not cyclic, but its node {reader[at]} reads its node {source[at]}."
    unready = inside & (step[source] >= step[reader])
    if unready.any():
        at = int(unready.argmax())
        first = int(np.searchsorted(group_of_step, group[at]))
        yield (
            f"node {reader[at]} runs in step {step[reader[at]] - first} of group {group[at]} and reads node {source[at]}, "
            f"which runs in step {step[source[at]] - first}; arguments are computed by earlier steps."
        )
