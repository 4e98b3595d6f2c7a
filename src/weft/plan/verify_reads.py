"""Rules of value classes and reads: where results are kept, and which of them every port gathers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from weft.graph.program import Ints, Port
from weft.graph.verify import counted
from weft.plan.levels import Indices
from weft.plan.plan import NOT_A_SLICE, Group, Plan, Read


def broken_classes(plan: Plan) -> Iterator[str]:
    """Every output of a type with nodes has its class; the rows of a class are written once each, in execution order."""
    kinds = plan.program.types
    outputs = {(t, b) for t, rows in enumerate(plan.rows) if len(rows) for b in range(kinds[t].outputs)}
    listed = [output for value_class in plan.classes for output in value_class.members]
    for t, b in sorted(outputs | set(listed) | set(plan.class_of) | set(plan.class_row)):
        name = f"output {b} of type {t}"
        if (t, b) not in outputs:
            yield f"{name} is in a class, but there is no such output."
        elif listed.count((t, b)) != 1:
            yield f"{name} is in {counted(listed.count((t, b)), 'class')}; every output is a member of exactly one."
        elif not any(plan.class_of.get((t, b)) == c and (t, b) in plan.classes[c].members for c in range(len(plan.classes))):
            yield f"{name} is said to be in class {plan.class_of.get((t, b))}, which does not list it."
        elif (t, b) not in plan.class_row or len(plan.class_row[t, b]) != len(plan.rows[t]):
            yield f"{name} does not have a class row for each of its {counted(len(plan.rows[t]), 'row')}."
        else:
            continue
        return
    for number in range(len(plan.classes)):
        yield from _broken_class(plan, number)


def _broken_class(plan: Plan, number: int) -> Iterator[str]:
    value_class = plan.classes[number]
    rows = np.concatenate([plan.class_row[member] for member in value_class.members] or [np.zeros(0, np.int32)])
    if len(rows) != value_class.rows:
        yield f"class {number} has {counted(value_class.rows, 'row')}, but its members write {len(rows)}."
        return
    outside = (rows < 0) | (rows >= value_class.rows)
    if outside.any():
        row = int(rows[outside.argmax()])
        yield f"row {row} of class {number} is written, but the class has {counted(value_class.rows, 'row')}."
        return
    times = np.bincount(rows, minlength=value_class.rows)
    if (times != 1).any():
        row = int((times != 1).argmax())
        yield f"row {row} of class {number} is written {times[row]} times; every row of a class is written exactly once."
        return
    written: list[Ints] = []
    step: list[Ints] = []
    base = 0
    for group in plan.groups:
        for t, b in value_class.members:
            if t in group.types:
                mine = np.flatnonzero(group.step_type == t)
                sizes = group.step_hi[mine] - group.step_lo[mine]
                jumps = np.diff(plan.class_row[t, b]) != 1
                jumps[group.step_lo[mine][1:] - 1] = False
                if jumps.any():
                    row = int(jumps.argmax())
                    yield f"rows {row} and {row + 1} of type {t} run in one step, but are not side by side in class {number}."
                written.append(plan.class_row[t, b])
                step.append(np.repeat(mine + base, sizes).astype(np.int32))
        base += len(group.step_type)
    if written:
        in_order = np.concatenate(step)[np.argsort(np.concatenate(written), kind="stable")]
        back = np.diff(in_order) < 0
        if back.any():
            row = int(back.argmax()) + 1
            yield f"row {row} of class {number} is written before row {row - 1}; class rows are in the order of running."


def broken_reads(plan: Plan) -> Iterator[str]:
    """Every port of every type with nodes gathers exactly the class rows of the program's arguments, in their order."""
    wanted = {(t, p) for t, rows in enumerate(plan.rows) if len(rows) for p in range(len(plan.program.types[t].ports))}
    listed = [(read.type, read.port) for read in plan.reads]
    for t, p in sorted(wanted | set(listed)):
        if (t, p) not in wanted:
            yield f"port {p} of type {t} has a read, but there is no such port with anything to read."
        elif listed.count((t, p)) != 1:
            yield f"port {p} of type {t} has {counted(listed.count((t, p)), 'read')}; expected exactly one."
    if set(listed) != wanted or len(listed) != len(wanted):
        return
    arguments = Arguments(plan)
    holes: set[int] = set()
    sound = True
    for read in plan.reads:
        broken = list(_broken_read(plan, read, arguments))
        yield from broken
        sound = sound and not broken
        if sound and read.value_class >= 0 and (read.index == plan.classes[read.value_class].rows).any():
            holes.add(read.value_class)
    for number, value_class in enumerate(plan.classes if sound else ()):
        if value_class.has_empty != (number in holes):
            says, truth = ("has", "none") if value_class.has_empty else ("has no", "one")
            yield f"class {number} says it {says} empty reads, but {truth} of its reads is empty."


class Arguments:
    """For every argument of the program: who reads it, at which position, and where its value is kept."""

    def __init__(self, plan: Plan) -> None:
        program = plan.program
        self.reader = np.repeat(np.arange(program.num_nodes), np.diff(program.ptr))
        self.position = np.arange(program.num_arguments) - program.ptr[self.reader]
        self.filled = program.src >= 0
        self.source = np.where(self.filled, program.src, 0)
        self.type = program.type[self.source] if program.num_nodes else self.source
        self.out = np.zeros_like(program.src) if program.out is None else program.out
        shape = program.num_nodes, max([1, *(kind.outputs for kind in program.types)])
        classes, rows = np.full(shape, -1), np.full(shape, -1)
        for (t, b), class_rows in plan.class_row.items():
            classes[plan.rows[t], b] = plan.class_of[t, b]
            rows[plan.rows[t], b] = class_rows
        self.value_class = classes[self.source, self.out] if program.num_nodes else self.source
        self.class_row = rows[self.source, self.out] if program.num_nodes else self.source

    def of_port(self, plan: Plan, t: int, port: Port) -> tuple[Ints, Ints | None]:
        """The arguments that a port reads, -1 for none, in the order of the type's rows; for bags also their bounds."""
        mine = np.flatnonzero(plan.program.type[self.reader] == t)
        row, position = plan.row[self.reader[mine]], self.position[mine]
        if port.kind == "slots":
            table = np.full((len(plan.rows[t]), len(port.positions)), -1, dtype=np.int32)
            for column, wanted in enumerate(port.positions):
                here = position == wanted
                table[row[here], column] = mine[here]
            return table.reshape(-1), None
        taken = (position >= port.positions[0]) & self.filled[mine]
        mine, row = mine[taken], row[taken]
        bounds = np.cumsum(np.concatenate(([0], np.bincount(row, minlength=len(plan.rows[t])))))
        return mine[np.argsort(row, kind="stable")].astype(np.int32), bounds.astype(np.int32)


def _broken_read(plan: Plan, read: Read, arguments: Arguments) -> Iterator[str]:
    port = plan.program.types[read.type].ports[read.port]
    where = f"port {read.port} of type {read.type}"
    width = len(port.positions) if port.kind == "slots" else 1
    if (read.kind, read.width) != (port.kind, width):
        yield f"{where} reads {read.kind!r} of width {read.width}; the program says {port.kind!r} of width {width}."
        return
    wanted, bounds = arguments.of_port(plan, read.type, port)
    divided = read.offsets is bounds if read.offsets is None or bounds is None else np.array_equal(read.offsets, bounds)
    if not divided:
        yield f"{where} does not divide its arguments among the rows as the program does."
        return
    exists = wanted >= 0
    exists[exists] = arguments.filled[wanted[exists]]
    if not exists.any():
        yield from _broken_nothing(plan, read, len(wanted), where)
        return
    at = wanted[exists]
    classes = arguments.value_class[at]
    if (classes != read.value_class).any():
        strange = at[(classes != read.value_class).argmax()]
        source = f"output {arguments.out[strange]} of node {arguments.source[strange]}"
        yield f"{where} reads class {read.value_class}, but {source} is in class {arguments.value_class[strange]}."
        return
    index = np.full(len(wanted), plan.classes[read.value_class].rows)
    index[exists] = arguments.class_row[at]
    if not np.array_equal(read.index, index):
        yield f"{where} does not gather the class rows of its arguments{_place(read.index, index)}."
        return
    group = next(group for group in plan.groups if read.type in group.types)
    yield from _broken_pieces(plan, read, group, bool(np.isin(arguments.type[at], group.types).any()), where)


def _broken_nothing(plan: Plan, read: Read, arguments: int, where: str) -> Iterator[str]:
    """A port that finds nothing in the whole batch reads from no class."""
    if read.value_class != -1 or read.recurrent or len(read.index) != arguments or read.index.any():
        yield f"{where} finds nothing to read, so it must read no class, with an index of zeros."
    if read.bounds.tolist() != [0, len(plan.rows[read.type])] or read.slices.tolist() != [NOT_A_SLICE]:
        yield f"{where} finds nothing to read, so it must be one piece that is no slice."


def _broken_pieces(plan: Plan, read: Read, group: Group, recurrent: bool, where: str) -> Iterator[str]:
    if read.recurrent != recurrent:
        says, truth = ("is", "no row") if read.recurrent else ("is not", "a row")
        yield f"{where} says it {says} recurrent, but it reads {truth} of its own group."
        return
    mine = group.step_type == read.type
    rows = len(plan.rows[read.type])
    bounds = [*group.step_lo[mine].tolist(), rows] if recurrent else [0, rows]
    if read.bounds.tolist() != bounds:
        pieces = "the steps of its type" if recurrent else "one piece over all its rows"
        yield f"{where} is cut at rows {_shown(read.bounds)}; expected {pieces}, {_shown(np.array(bounds))}."
        return
    if len(read.slices) != len(bounds) - 1:
        yield f"{where} has {counted(len(read.slices), 'slice')} for {counted(len(bounds) - 1, 'piece')}."
        return
    cuts = read.bounds * read.width if read.offsets is None else read.offsets[read.bounds]
    claims = Pieces(np.arange(len(read.slices)), cuts[:-1], cuts[1:], read.slices)
    yield from broken_slices(where, read.index, claims, plan.classes[read.value_class].rows)


class Pieces(NamedTuple):
    """Some pieces of an index: their numbers, where they begin and end, and the first entry that each claims to count from."""

    number: Indices
    begin: Ints
    end: Ints
    claim: Ints


def broken_slices(where: str, index: Ints, pieces: Pieces, stop: int) -> Iterator[str]:
    """A piece is a slice exactly where it counts up by one and stays below `stop`; an empty one may claim any row there is."""
    number, begin, end, claim = pieces
    size = end - begin
    empty = size == 0
    low = np.where(empty, 0, index[np.where(empty, 0, begin)] if len(index) else 0)
    piece = np.repeat(np.arange(len(size)), size)
    inside = np.arange(len(piece)) - np.repeat(np.cumsum(size) - size, size)
    entry = index[begin[piece] + inside]
    off = (entry != low[piece] + inside) | (entry >= stop)
    straight = np.bincount(piece[off], minlength=len(size)) == 0
    claimed = claim != NOT_A_SLICE
    false = ~empty & claimed & ~(straight & (claim == low))
    if false.any():
        at = int(false.argmax())
        yield f"piece {number[at]} of {where} says it is a slice from row {claim[at]}, but it is not."
    missed = ~empty & ~claimed & straight
    if missed.any():
        at = int(missed.argmax())
        yield f"piece {number[at]} of {where} is a slice from row {low[at]}, but does not say so."
    wild = empty & claimed & ((claim < 0) | (claim > stop))
    if wild.any():
        at = int(wild.argmax())
        yield f"piece {number[at]} of {where} is empty, but says it is a slice from row {claim[at]}, which does not exist."


def _place(found: Ints, wanted: Ints) -> str:
    """Where two arrays first differ, in words."""
    if len(found) != len(wanted):
        return f": there are {len(found)}, expected {len(wanted)}"
    at = int((found != wanted).argmax())
    return f": number {at} is {found[at]}, expected {wanted[at]}"


def _shown(numbers: Ints) -> str:
    shown = [str(number) for number in numbers.tolist()]
    return " ".join(shown if len(shown) <= 8 else [*shown[:6], "...", shown[-1]])
