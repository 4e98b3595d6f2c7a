"""Planning in C: the same passes as `condense`, `layout` and `returns`, so that planning costs next to nothing.

Where there is no compiler, or C gives up (a cycle, a program that is not sound), the caller goes the way of numpy, which gives
the same plan or raises what is to be raised. A plan comes back as one array of integers; what Python sees are views of it.
"""

from __future__ import annotations

import functools
import time
from array import array

import numpy as np

from weft.graph.program import Ints, NodeType, Program
from weft.plan.library import address, is_plain, library
from weft.plan.plan import Group, Plan, Read, Return, ValueClass

KINDS = ("slots", "sum", "edges")
POLICIES = {"auto": 0, "condense": 0, "depth": 1, "agenda": 2}

# How many numbers tell where a plan's tables are, and how long the entries of these are, as in `c/tables.c` and `c/returns.c`.
HEADER, OF_GROUP, OF_OUTPUT, OF_CLASS, OF_READ = 17, 6, 4, 4, 13
DEVICE_END, AT_GROUPS, AT_READS = 7, 8, 16
STEP_TABLE, READ_OWNERS = 5, 11
BACK_HEADER, OF_BACK, BACK_DEVICE_END = 4, 10, 1


def plan_natively(program: Program, policy: str, max_rows: int | None, started: float) -> Plan | None:
    """The plan that `schedule` makes with numpy; None where C cannot make it."""
    made = library()
    kinds = described(program.types) if made is not None and program.num_nodes else None
    arrays = [program.type, program.ptr, program.src] + ([] if program.out is None else [program.out])
    if kinds is None or not all(map(is_plain, arrays)):
        return None
    sizes = array("q", (0, 0))
    work = made.weft_plan(
        program.num_nodes,
        program.num_arguments,
        len(program.types),
        address(kinds),
        *map(address, arrays[:3]),
        None if program.out is None else address(program.out),
        POLICIES[policy],
        max_rows or 0,
        sizes.buffer_info()[0],
    )
    return None if work is None else finished(work, program, policy, max_rows, sizes, started)


def finished(work: int, program: Program, policy: str, max_rows: int | None, sizes: array[int], started: float) -> Plan | None:
    """The plan that C has begun; None where it gives up."""
    total, table = sizes
    buffer = np.empty(total, dtype=np.int32)
    if not library().weft_fill(work, address(buffer)):
        return None
    return _plan(program, policy, max_rows, buffer, buffer[:table].tolist(), started)


@functools.lru_cache(maxsize=256)
def described(types: tuple[NodeType, ...]) -> Ints | None:
    """Node types as one array; None for ports that are not sound."""
    ports = [port for kind in types for port in kind.ports]
    if not all(port.kind in KINDS and port.positions and min(port.positions) >= 0 for port in ports):
        return None
    outputs = [max(kind.outputs, 0) for kind in types]
    port_ptr = np.cumsum([0, *(len(kind.ports) for kind in types)])
    position_ptr = np.cumsum([0, *(len(port.positions) for port in ports)])
    numbers = [KINDS.index(port.kind) for port in ports]
    positions = [position for port in ports for position in port.positions]
    return np.array([*outputs, *port_ptr, *numbers, *position_ptr, *positions], dtype=np.int32)


def _plan(program: Program, policy: str, max_rows: int | None, buffer: Ints, table: list[int], started: float) -> Plan:
    """Views of the arrays that C has filled in, under their names."""
    groups, pieces, classes, reads, types, at_row, at_steps, _ = table[:AT_GROUPS]
    at_groups, at_group_types, at_rows, at_counts, _, at_outputs, at_classes, _, at_reads = table[AT_GROUPS:HEADER]
    apart = -(-pieces // 4) * 4
    step_type, lo, hi = (buffer[at : at + pieces] for at in range(at_steps, at_steps + 3 * apart, apart))
    made_groups = []
    for at in range(at_groups, at_groups + groups * OF_GROUP, OF_GROUP):
        cyclic, types_from, types_to, first, last, _ = table[at : at + OF_GROUP]
        members = tuple(table[at_group_types + types_from : at_group_types + types_to])
        made_groups.append(Group(members, bool(cyclic), step_type[first:last], lo[first:last], hi[first:last]))
    counts = table[at_counts : at_counts + types]
    rows = tuple([buffer[at : at + count] for at, count in zip(table[at_rows : at_rows + types], counts, strict=True)])
    members_of: list[list[tuple[int, int]]] = [[] for _ in range(classes)]
    places: dict[tuple[int, int], int] = {}
    for at in range(at_outputs, at_classes, OF_OUTPUT):
        type, number, of_class, place = table[at : at + OF_OUTPUT]
        members_of[of_class].append((type, number))
        places[type, number] = place
    class_of = {member: number for number, members in enumerate(members_of) for member in members}
    class_row = {member: buffer[places[member] : places[member] + counts[member[0]]] for member in class_of}
    made_classes = tuple(
        [
            ValueClass(tuple(members), table[at], bool(table[at + 1]))
            for members, at in zip(members_of, range(at_classes, at_classes + classes * OF_CLASS, OF_CLASS), strict=True)
        ]
    )
    starts = range(at_reads, at_reads + reads * OF_READ, OF_READ)
    made_reads = tuple([_read(buffer, table[at : at + OF_READ], counts[table[at]]) for at in starts])
    row, seconds = buffer[at_row : at_row + program.num_nodes], time.perf_counter() - started
    plan = Plan(
        program, policy, tuple(made_groups), rows, row, made_classes, class_of, class_row, made_reads, seconds, max_rows
    )
    plan._derived["buffer"], plan._derived["table"] = buffer, table
    return plan


def _read(buffer: Ints, entry: list[int], rows: int) -> Read:
    type, port, kind, width, value_class, _, recurrent, length, pieces, at_index, at_offsets, _, at = entry
    offsets = buffer[at_offsets : at_offsets + rows + 1] if at_offsets else None
    index, cut = buffer[at_index : at_index + length], at + pieces + 1
    bounds, slices = buffer[at:cut], buffer[cut : cut + pieces]
    return Read(type, port, KINDS[kind], width, value_class, bool(recurrent), index, offsets, bounds, slices)


def device_parts(plan: Plan, training: bool) -> list[Ints]:
    """What a device reads of a plan and its returns, each in one piece; nothing of plans that were not made in C."""
    buffer, back = plan._derived.get("buffer"), plan._derived.get("returns buffer") if training else None
    found = [(buffer, DEVICE_END), (back, BACK_DEVICE_END)]
    return [array[: array[end]] for array, end in found if isinstance(array, np.ndarray)]


def step_table_natively(plan: Plan, number: int) -> Ints | None:
    """The table of a group's steps that a kernel reads, one line after the other; None for plans that were not made in C."""
    buffer, table, group = plan._derived.get("buffer"), plan._derived.get("table"), plan.groups[number]
    if not isinstance(buffer, np.ndarray) or not isinstance(table, list) or not group.cyclic:
        return None
    at = table[table[AT_GROUPS] + number * OF_GROUP + STEP_TABLE]
    width = 5 + 2 * sum([plan.program.types[t].outputs for t in group.types])
    return buffer[at : at + group.steps * width]


def owners_natively(plan: Plan, number: int) -> Ints | None:
    """The row that each edge of read `number` belongs to; None for plans that were not made in C."""
    buffer, table = plan._derived.get("buffer"), plan._derived.get("table")
    if not isinstance(buffer, np.ndarray) or not isinstance(table, list):
        return None
    at = table[table[AT_READS] + number * OF_READ + READ_OWNERS]
    return buffer[at : at + len(plan.reads[number].index)] if plan.reads[number].kind == "edges" else None


def returns_natively(plan: Plan) -> dict[tuple[int, int, int], Return] | None:
    """The returns of a plan that was made in C; None for any other."""
    buffer = plan._derived.get("buffer")
    if not isinstance(buffer, np.ndarray):
        return None
    made = library()
    back = np.empty(made.weft_returns_room(address(buffer)), dtype=np.int32)
    if not made.weft_returns(address(buffer), address(back), len(back)):
        return None
    plan._derived["returns buffer"] = back
    table = back[BACK_HEADER : BACK_HEADER + int(back[0]) * OF_BACK].tolist()
    found = [_return(plan, back, table[at : at + OF_BACK]) for at in range(0, len(table), OF_BACK)]
    return {(one.type, one.port, one.group): one for one in found}


def _return(plan: Plan, back: Ints, entry: list[int]) -> Return:
    number, group, first, last, index, count, single, offsets, cuts, pieces = entry
    read = plan.reads[number]
    slices = cuts + pieces + 1
    nothing = slices + pieces
    return Return(
        read.type,
        read.port,
        group,
        first,
        last,
        back[index : index + count],
        back[offsets : offsets + last - first + 1],
        None if single < 0 else back[single : single + last - first],
        back[cuts:slices],
        back[slices:nothing],
        back[nothing : nothing + (pieces + 3) // 4].view(np.bool_)[:pieces],
    )
