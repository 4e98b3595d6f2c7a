"""Planning in C: the same passes as `condense`, `layout` and `returns`, so that planning costs next to nothing.

Where there is no compiler, or C gives up (a cycle, a program that is not sound), the caller goes the way of numpy, which gives
the same plan or raises what is to be raised. A plan comes back as one array of integers; what Python sees are views of it.
"""

from __future__ import annotations

import functools
import time
from array import array
from itertools import pairwise

import numpy as np

from weft.graph.program import Ints, NodeType, Program
from weft.plan.library import address, is_plain, library
from weft.plan.plan import Group, Plan, Read, Return, ValueClass

KINDS = ("slots", "sum", "edges")
POLICIES = {"auto": 0, "condense": 0, "depth": 1, "agenda": 2}

# The first numbers of a plan, and how long the entries of its tables are, as in `c/layout.c` and `c/returns.c`.
HEADER, OF_GROUP, OF_OUTPUT, OF_CLASS, OF_READ, OF_BACK = 16, 5, 4, 4, 10, 9


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
    groups, pieces, classes, reads, types, at_rows, at_row, at_steps = table[:8]
    at_groups, at_group_types, at_first, _, at_outputs, at_classes, _, at_reads = table[8:HEADER]
    step_type, lo, hi = (buffer[at : at + pieces] for at in range(at_steps, at_steps + 3 * pieces, pieces))
    made_groups = []
    for at in range(at_groups, at_groups + groups * OF_GROUP, OF_GROUP):
        cyclic, types_from, types_to, first, last = table[at : at + OF_GROUP]
        members = tuple(table[at_group_types + types_from : at_group_types + types_to])
        made_groups.append(Group(members, bool(cyclic), step_type[first:last], lo[first:last], hi[first:last]))
    first_rows = table[at_first : at_first + types + 1]
    rows = tuple(buffer[at_rows + first : at_rows + last] for first, last in pairwise(first_rows))
    members_of: list[list[tuple[int, int]]] = [[] for _ in range(classes)]
    places: dict[tuple[int, int], int] = {}
    for at in range(at_outputs, at_classes, OF_OUTPUT):
        type, number, of_class, place = table[at : at + OF_OUTPUT]
        members_of[of_class].append((type, number))
        places[type, number] = place
    class_of = {member: number for number, members in enumerate(members_of) for member in members}
    class_row = {member: buffer[places[member] : places[member] + len(rows[member[0]])] for member in class_of}
    made_classes = tuple(
        ValueClass(tuple(members), table[at], bool(table[at + 1]))
        for members, at in zip(members_of, range(at_classes, at_classes + classes * OF_CLASS, OF_CLASS), strict=True)
    )
    starts = range(at_reads, at_reads + reads * OF_READ, OF_READ)
    made_reads = tuple(_read(buffer, table[at : at + OF_READ], len(rows[table[at]])) for at in starts)
    row, seconds = buffer[at_row : at_row + program.num_nodes], time.perf_counter() - started
    plan = Plan(
        program, policy, tuple(made_groups), rows, row, made_classes, class_of, class_row, made_reads, seconds, max_rows
    )
    plan._derived["buffer"] = buffer
    return plan


def _read(buffer: Ints, entry: list[int], rows: int) -> Read:
    type, port, kind, width, value_class, _, recurrent, length, pieces, at = entry
    index, rest = at + length, at + 2 * length
    offsets = None
    if KINDS[kind] != "slots":
        offsets = buffer[rest : rest + rows + 1]
        rest += rows + 1
    bounds, slices = buffer[rest : rest + pieces + 1], buffer[rest + pieces + 1 : rest + 2 * pieces + 1]
    arguments, gathered = buffer[at:index], buffer[index : index + length]
    return Read(type, port, KINDS[kind], width, value_class, bool(recurrent), arguments, gathered, offsets, bounds, slices)


def returns_natively(plan: Plan) -> dict[tuple[int, int, int], Return] | None:
    """The returns of a plan that was made in C; None for any other."""
    buffer = plan._derived.get("buffer")
    if not isinstance(buffer, np.ndarray):
        return None
    made = library()
    back = np.empty(made.weft_returns_room(address(buffer)), dtype=np.int32)
    if not made.weft_returns(address(buffer), address(back)):
        return None
    table = back[1 : 1 + int(back[0]) * OF_BACK].tolist()
    found = [_return(plan, back, table[at : at + OF_BACK]) for at in range(0, len(table), OF_BACK)]
    return {(one.type, one.port, one.group): one for one in found}


def _return(plan: Plan, back: Ints, entry: list[int]) -> Return:
    number, group, first, last, index, count, single, rest, pieces = entry
    read = plan.reads[number]
    cuts = rest + last - first + 1
    slices = cuts + pieces + 1
    nothing = slices + pieces
    return Return(
        read.type,
        read.port,
        group,
        first,
        last,
        back[index : index + count],
        back[rest:cuts],
        None if single < 0 else back[single : single + last - first],
        back[cuts:slices],
        back[slices:nothing],
        back[nothing : nothing + (pieces + 3) // 4].view(np.bool_)[:pieces],
    )
