"""Planning in C: the same passes as `condense`, `layout` and `returns`, so that planning costs next to nothing.

Where there is no compiler, or C gives up (a cycle, a program that is not sound), the caller goes the way of numpy, which gives
the same plan or raises what is to be raised. A plan comes back as one array of integers; what Python sees are views of it.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from weft.graph.program import Ints, NodeType, Program
from weft.plan.library import address, is_plain, library
from weft.plan.plan import Plan, Return
from weft.plan.shape import (
    AT_SHAPE,
    AT_VIEWS,
    BACK_COUNT,
    BACK_ROOM,
    BACK_TRAITS,
    HEADER,
    KINDS,
    OF_BACK,
    PLAN_END,
    NativePlan,
    native,
    shape_of,
)

Longs = npt.NDArray[np.int64]
POLICIES = {"auto": 0, "condense": 0, "depth": 1, "agenda": 2}


def plan_natively(program: Program, policy: str, max_rows: int | None, started: float) -> Plan | None:
    """The plan that `schedule` makes with numpy; None where C cannot make it."""
    made = library()
    kinds = described(program.types) if made is not None and program.num_nodes else None
    arrays = [program.type, program.ptr, program.src] + ([] if program.out is None else [program.out])
    if kinds is None or not all(map(is_plain, arrays)):
        return None
    size = program.num_nodes + program.num_arguments
    buffer = kinds.memory(size)
    place = address(buffer)
    work = made.weft_plan(
        program.num_nodes,
        program.num_arguments,
        len(program.types),
        kinds.place,
        *map(address, arrays[:3]),
        None if program.out is None else address(program.out),
        POLICIES[policy],
        max_rows or 0,
        place,
        len(buffer),
        False,
    )
    return finished(work, buffer, place, kinds, size, program, policy, max_rows, started)


def finished(
    work: int | None,
    buffer: Ints,
    place: int,
    kinds: Described,
    size: int,
    program: Program,
    policy: str,
    max_rows: int | None,
    started: float,
) -> Plan | None:
    """The plan that C has made in a buffer, or has begun, where that is too small; None where it gives up."""
    if work is not None:
        buffer = np.empty(buffer.item(0), dtype=np.int32)
        place = address(buffer)
        if not library().weft_fill(work, place):
            return None
    told = buffer[:HEADER].tolist()
    if not told[0]:
        return None
    kinds.rate = (told[PLAN_END] + told[BACK_ROOM]) / size
    shape = shape_of(buffer[told[AT_SHAPE] : told[AT_VIEWS]].tobytes())
    return NativePlan.of(shape, program, policy, max_rows, buffer, place, told, started)


LEAST, MORE = 64, 1.125
"""Of the room for plans: so many numbers at least, and so many times what the last one took."""


class Described:
    """Node types as C reads them."""

    __slots__ = ("array", "place", "rate")

    def __init__(self, array: Ints) -> None:
        self.array, self.place = array, address(array)
        self.rate = 0.0
        """How many numbers the last plan and its returns took for each of its nodes and arguments."""

    def memory(self, size: int) -> Ints:
        """For a plan of so many nodes and arguments: mostly it is enough. What is not used of it is not touched."""
        return np.empty(LEAST + int(MORE * self.rate * size), dtype=np.int32)


_described: dict[int, tuple[tuple[NodeType, ...], Described | None]] = {}
MOST_DESCRIBED = 256


def described(types: tuple[NodeType, ...]) -> Described | None:
    """Node types as one array; None for ports that are not sound. Mostly they are the very types of the last call."""
    found = _described.get(id(types))
    if found is None or found[0] is not types:
        if len(_described) >= MOST_DESCRIBED:
            _described.clear()
        found = _described[id(types)] = types, _as_array(types)
    return found[1]


@functools.lru_cache(maxsize=256)
def _as_array(types: tuple[NodeType, ...]) -> Described | None:
    ports = [port for kind in types for port in kind.ports]
    if not all(port.kind in KINDS and port.positions and min(port.positions) >= 0 for port in ports):
        return None
    outputs = [max(kind.outputs, 0) for kind in types]
    port_ptr = np.cumsum([0, *(len(kind.ports) for kind in types)])
    position_ptr = np.cumsum([0, *(len(port.positions) for port in ports)])
    numbers = [KINDS.index(port.kind) for port in ports]
    positions = [position for port in ports for position in port.positions]
    return Described(np.array([*outputs, *port_ptr, *numbers, *position_ptr, *positions], dtype=np.int32))


def device_parts(plan: Plan, training: bool) -> list[tuple[int, int]]:
    """What a device reads of a plan and its returns, each in one piece: its address, and how many integers it has; nothing of
    plans that were not made in C."""
    made = native(plan)
    if made is None:
        return []
    mine = made.place, made.device_end
    return [mine, (made.back_place, made.back_device_end)] if training and find_returns(made) is not None else [mine]


def step_table_natively(plan: Plan, number: int) -> Ints | None:
    """The table of a group's steps that a kernel reads, one line after the other; None for plans that were not made in C."""
    made = native(plan)
    return None if made is None or not made.groups[number].cyclic else made.view(made.layout.step_table(number))


def owners_natively(plan: Plan, number: int) -> Ints | None:
    """The row that each edge of read `number` belongs to; None for plans that were not made in C."""
    made = native(plan)
    if made is None or made.reads[number].kind != "edges":
        return None
    at = made.numbers[made.layout.owners(number)]
    return made.buffer[at : at + len(made.reads[number].index)]


def find_returns(plan: NativePlan) -> Ints | None:
    """Have C find the returns of a plan, once; None where it cannot."""
    if plan.back is None:
        back = np.empty(plan.back_room, dtype=np.int32)
        place = address(back)
        if not len(back) or not library().weft_returns(plan.place, place):
            return None
        plan.take_back(back, place)
    return plan.back


def returns_natively(plan: Plan) -> dict[tuple[int, int, int], Return] | None:
    """The returns of a plan that was made in C; None for any other."""
    made = native(plan)
    if made is None or (back := find_returns(made)) is None:
        return None
    table = made.back_numbers
    entries = [table[at : at + BACK_TRAITS] for at in range(0, len(table), OF_BACK) if table[at + BACK_COUNT]]
    found = [_return(plan, back, *entry) for entry in entries]
    return {(one.type, one.port, one.group): one for one in found}


def _return(
    plan: Plan,
    back: Ints,
    number: int,
    group: int,
    first: int,
    last: int,
    index: int,
    count: int,
    single: int,
    offsets: int,
    cuts: int,
    pieces: int,
) -> Return:
    read, slices = plan.reads[number], cuts + pieces + 1
    nothing = slices + pieces
    bounds, starts, without = back[cuts:slices], back[slices:nothing], back[nothing : nothing + pieces]
    if single >= 0:
        rows = back[single : single + last - first]
        return Return(read.type, read.port, group, first, last, count, bounds, starts, without, single=rows)
    several = back[index : index + count], back[offsets : offsets + last - first + 1]
    return Return(read.type, read.port, group, first, last, count, bounds, starts, without, *several)


MOST_WANTED = 64
"""So many kinds of results are told apart in C."""


def wanted_natively(plan: Plan, wanted: Longs, bits: int) -> list[tuple[int, int, Ints, Ints, Ints]] | None:
    """Wanted results by kind: type, output, places among the wanted ones, nodes, rows within the type; None where C cannot.

    `wanted` are references: a node, and in the last `bits` bits one of its outputs.
    """
    made = native(plan)
    if made is None or not wanted.flags.c_contiguous:
        return None
    program, count = made.program, len(wanted)
    out = np.empty(3 * MOST_WANTED + 3 * count + program.num_nodes, dtype=np.int32)
    given = made.layout.types, address(program.type), program.num_nodes, address(wanted), count, bits, MOST_WANTED, address(out)
    kinds = library().weft_wanted(made.place, made.layout.rows(0), *given)
    told, found, start = out[: 3 * kinds].tolist(), [], 0
    for type, output, end in zip(told[::3], told[1::3], told[2::3], strict=True):
        first, last = 3 * MOST_WANTED + start, 3 * MOST_WANTED + end
        found.append(
            (type, output, out[first:last], out[first + count : last + count], out[first + 2 * count : last + 2 * count])
        )
        start = end
    return found or None
