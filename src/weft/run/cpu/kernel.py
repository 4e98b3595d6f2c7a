"""The C text of one kernel: a loop over rows, in it loops over the numbers of a row.

Rows are cut where any operation begins or ends to read another: four gates joined in one row, of which each is then used on
its own, are four segments of equal width. Operations on segments of equal width share one inner loop and hand on their
numbers in registers, joins and slices included. Only what is read in another arrangement than it was computed in (a single
number for a whole row, another width) is put in memory first and read by a later loop; what goes to memory anyway is not cut.

Memory likes one stream of numbers better than several: a row that is computed in several segments at once is put together
beside and then copied to its place. What is put beside lies on the stack, of which a function takes little (`Stack`): a row
that has no room there is written in its place at once, and where one is needed that has no place, there is no kernel.

A row of 150 numbers is nine vectors of 16 and a rest of six. The rest is computed as a tenth vector that overlaps the ninth:
computing a number twice is much cheaper than computing it alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from weft.cc import NAME
from weft.graph.tape import Value, operands
from weft.run.cpu.formulas import LANES, pointwise
from weft.run.formulas import JOINS
from weft.run.rowview import place_of, row_width

MOST_SEGMENTS = 512
"""More than these are not worth a kernel: its text would be long and its loops short."""

SHORT = 4
"""Loops of so many turns, and fewer than are computed at once, are kept from being written out turn by turn: compilers take up
to five times as long for that, and the result is no faster."""

STACK = 1 << 18
"""Bytes that one function puts on the stack at most: the smallest stacks of threads have twice as many."""


@dataclass(eq=False)
class Stack:
    """The room on the stack that a function has left; the kernels of a walk share one."""

    left: int = STACK

    def take(self, row: Value) -> bool:
        """Room for one row, if there is any."""
        assert row.dtype is not None
        size = -(-(row_width(row) or 0) * row.dtype.itemsize // 64) * 64
        if size > self.left:
            return False
        self.left -= size
        return True


@dataclass(frozen=True, eq=False)
class Input:
    """What a kernel reads. `slots`: each row is that many rows of other memory, found through an index.

    `plus`: and to each row one of a further tensor is added (or the same one to all, where its rows are 0 numbers apart).
    """

    value: Value
    slots: int = 0
    plus: bool = False


@dataclass(frozen=True)
class _Read:
    """Numbers `first` to `last` of a row; `alone`: the one number at `first`, for every number that is computed."""

    base: Value
    first: int
    last: int
    alone: bool = False


@dataclass(eq=False)
class _Segment:
    value: Value
    first: int
    last: int
    arguments: dict[int, _Read]
    """By the operands' ids; a join has one."""

    @property
    def width(self) -> int:
        return self.last - self.first

    def reads(self) -> Iterator[_Read]:
        return iter(self.arguments.values())


@dataclass(eq=False)
class _Loop:
    width: int
    segments: list[_Segment] = field(default_factory=list)


class NoKernel(Exception):
    """A run of operations that cuts its rows into too many parts, or needs too much memory beside."""


def kernel_text(run: list[Value], inputs: list[Input], outputs: list[Value], stack: Stack) -> str:
    """The text of `NAME(first row, last row, inputs..., outputs...)`; an indexed input is memory and index."""
    return _Kernel(run, inputs, outputs, stack).text()


def _arguments(value: Value, first: int, last: int) -> dict[int, _Read]:
    """What the numbers `first` to `last` of a value are computed from."""
    if value.target in JOINS:
        start = 0
        for part in value.args[0]:
            width = row_width(part) or 0
            if start <= first and last <= start + width:
                return {id(part): _read(part, first - start, last - start)}
            start += width
        raise AssertionError("a segment crosses the parts of a join")
    return {id(operand): _read(operand, first, last) for operand in operands(value)}


def _read(operand: Value, first: int, last: int) -> _Read:
    place = place_of(operand)
    assert place is not None
    if place.width == 1:
        return _Read(place.base, place.offset, place.offset + 1, last - first > 1)
    return _Read(place.base, place.offset + first, place.offset + last)


class _Kernel:
    def __init__(self, run: list[Value], inputs: list[Input], outputs: list[Value], stack: Stack) -> None:
        self.run, self.inputs, self.outputs = run, inputs, outputs
        self.number = {id(value): i for i, value in enumerate([*(one.value for one in inputs), *run])}
        self.inside = {id(value) for value in run}
        self.slots = {id(one.value): one.slots for one in inputs if one.slots}
        self.plus = {id(one.value) for one in inputs if one.plus}
        self.outward = {id(value) for value in outputs}
        self.cuts = self._cuts()
        self.loop_of: dict[tuple[int, int], int] = {}
        self.loops = self._loops()
        self.stored = self._stored()
        self.kept = [value for value in run if id(value) in self.stored and id(value) not in self.outward]
        if not all(stack.take(value) for value in self.kept):
            raise NoKernel
        self.beside = {id(value) for value in outputs if len(self.cuts[id(value)]) > 2 and stack.take(value)}

    # Where rows are cut.

    def _cuts(self) -> dict[int, set[int]]:
        """Where each value's row is cut: where others begin or end to read it, and where what it reads is cut."""
        cuts = {id(value): {0, row_width(value) or 0} for value in self.run}
        for one in self.inputs:
            width = row_width(one.value) or 0
            cuts[id(one.value)] = {0, width} | {width // one.slots * slot for slot in range(one.slots)}
        links = [link for value in self.run for link in self._links(value, cuts)]
        changed = True
        while changed:
            before = sum(map(len, cuts.values()))
            for value, base, shift, first, last in links:
                mine, theirs = cuts[id(value)], cuts[id(base)]
                mine |= {cut - shift for cut in theirs if first <= cut - shift <= last}
                if id(base) in self.inside and (base.target in JOINS or id(base) not in self.outward):
                    theirs |= {cut + shift for cut in mine if first <= cut <= last}
            changed = sum(map(len, cuts.values())) != before
            if sum(len(cuts[id(value)]) for value in self.run) > MOST_SEGMENTS:
                raise NoKernel
        return cuts

    def _links(self, value: Value, cuts: dict[int, set[int]]) -> Iterator[tuple[Value, Value, int, int, int]]:
        """(value, base, shift, first, last): numbers first to last of the value are made of those `shift` further in base."""
        start, parts = 0, value.args[0] if value.target in JOINS else ()
        for operand in parts or operands(value):
            place = place_of(operand)
            assert place is not None
            width = row_width(operand) or 0 if parts else row_width(value) or 0
            cuts[id(value)].add(start)
            if place.width > 1 or width == 1:
                yield value, place.base, place.offset - start, start, start + width
            start += width if parts else 0

    # Which segments share a loop.

    def _loops(self) -> list[_Loop]:
        loops: list[_Loop] = []
        for value in self.run:
            at = sorted(self.cuts[id(value)])
            for first, last in pairwise(at):
                segment = _Segment(value, first, last, _arguments(value, first, last))
                earliest = max((self._earliest(read) for read in segment.reads()), default=0)
                loop = next((i for i in range(earliest, len(loops)) if loops[i].width == segment.width), len(loops))
                if loop == len(loops):
                    loops.append(_Loop(segment.width))
                loops[loop].segments.append(segment)
                self.loop_of[id(value), first] = loop
        return loops

    def _segments_read(self, read: _Read) -> list[int]:
        """Where the segments begin that a read touches."""
        at = sorted(self.cuts[id(read.base)])
        return [first for first, last in pairwise(at) if first < read.last and last > read.first]

    def _in_register(self, read: _Read) -> bool:
        return not read.alone and {read.first, read.last} <= self.cuts[id(read.base)] and len(self._segments_read(read)) == 1

    def _earliest(self, read: _Read) -> int:
        if id(read.base) not in self.inside:
            return 0
        later = 0 if self._in_register(read) else 1
        return max(self.loop_of[id(read.base), first] for first in self._segments_read(read)) + later

    def _stored(self) -> set[int]:
        """Values of which a row must be in memory: others need them, or another loop reads them."""
        found = set(self.outward)
        for number, loop in enumerate(self.loops):
            for segment in loop.segments:
                for read in segment.reads():
                    if id(read.base) in self.inside and not self._at_hand(read, number):
                        found.add(id(read.base))
        return found

    def _at_hand(self, read: _Read, loop: int) -> bool:
        return self._in_register(read) and self.loop_of.get((id(read.base), read.first)) == loop

    # The text.

    def text(self) -> str:
        dtype = self.run[0].dtype
        assert dtype is not None
        lines = [f"void {NAME}(long first, long last, {', '.join(self._parameters())}) {{"]
        kept = [*self.kept, *(value for value in self.outputs if id(value) in self.beside)]
        lines += [f"  real r{self.number[id(value)]}[{row_width(value)}] __attribute__((aligned(64)));" for value in kept]
        lines.append("  for (long i = first; i < last; i++) {")
        for value in [*(one.value for one in self.inputs), *self.outputs]:
            lines += self._row(value)
        for number, loop in enumerate(self.loops):
            lines += self._loop(number, loop, LANES[dtype])
        lines += [self._copy(value) for value in self.outputs if id(value) in self.beside]
        return "\n".join([*lines, "  }", "}"]) + "\n"

    def _parameters(self) -> Iterator[str]:
        for one in self.inputs:
            yield f"const real *restrict P{self.number[id(one.value)]}"
            if one.slots:
                yield f"const int *restrict I{self.number[id(one.value)]}"
            if one.plus:
                yield f"const real *restrict O{self.number[id(one.value)]}, long S{self.number[id(one.value)]}"
        for value in self.outputs:
            yield f"real *restrict P{self.number[id(value)]}"

    def _row(self, value: Value) -> Iterator[str]:
        """Where the row that is computed or read begins; for an indexed input, where each of its slots does."""
        at, width, slots = self.number[id(value)], row_width(value) or 0, self.slots.get(id(value), 0)
        if id(value) in self.beside:
            return
        if slots:
            for slot in range(slots):
                yield f"    const real *restrict r{at}_{slot} = P{at} + (long)I{at}[i * {slots} + {slot}] * {width // slots};"
        else:
            const = "" if id(value) in self.outward else "const "
            yield f"    {const}real *restrict r{at} = P{at}{f' + i * {width}' if value.rows is not None else ''};"
        if id(value) in self.plus:
            yield f"    const real *restrict o{at} = O{at} + i * S{at};"

    def _copy(self, value: Value) -> str:
        at, width = self.number[id(value)], row_width(value)
        return f"    __builtin_memcpy(P{at} + i * {width}, r{at}, {width} * sizeof(real));"

    def _loop(self, number: int, loop: _Loop, lanes: int) -> Iterator[str]:
        width = loop.width
        if width > lanes and width % lanes:
            yield f"    for (long k = 0; k < {width}; k += {lanes})"
            yield f"    for (long j = k < {width - lanes} ? k : {width - lanes}, end = j + {lanes}; j < end; j++) {{"
        else:
            if SHORT <= width < lanes:
                yield "#pragma GCC unroll 1"
            yield f"    for (long j = 0; j < {width}; j++) {{"
        for segment in loop.segments:
            at = self.number[id(segment.value)]
            texts = {key: self._argument(argument, number) for key, argument in segment.arguments.items()}
            yield f"      real x{at}_{segment.first} = {self._formula(segment.value, texts)};"
            if id(segment.value) in self.stored:
                yield f"      r{at}[{segment.first} + j] = x{at}_{segment.first};"
        yield "    }"

    def _formula(self, value: Value, texts: dict[int, str]) -> str:
        if value.target in JOINS:
            return next(iter(texts.values()))
        return pointwise(value, lambda operand: texts[id(operand)])

    def _argument(self, argument: _Read, loop: int) -> str:
        at, first, slots = self.number[id(argument.base)], argument.first, self.slots.get(id(argument.base), 0)
        if self._at_hand(argument, loop):
            return f"x{at}_{first}"
        name, along = f"r{at}", "" if argument.alone else " + j"
        plus = f" + o{at}[{first}{along}]" if id(argument.base) in self.plus else ""
        if slots:
            each = (row_width(argument.base) or 0) // slots
            name, first = f"r{at}_{first // each}", first % each
        return f"({name}[{first}{along}]{plus})" if plus else f"{name}[{first}{along}]"
