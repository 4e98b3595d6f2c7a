"""What plans that were made in C have in common, and how they differ: in the arrays, of which Python sees views."""

from __future__ import annotations

import functools
import time
from array import array
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import cast

from weft.graph.program import Ints, NodeType, Program
from weft.plan.plan import Group, Plan, Read, ValueClass

KINDS = ("slots", "sum", "edges")
# An entry of the table of returns, as in `c/returns.c`: what is read of it, and how long it is.
BACK_FIRST, BACK_LAST, BACK_INDEX, BACK_COUNT, BACK_SINGLE, BACK_OFFSETS, BACK_TRAITS, BACK_SLICE, OF_BACK = (
    2,
    3,
    4,
    5,
    6,
    7,
    10,
    11,
    12,
)
ONE_READER = 2
BACK_DEVICE_END, BACK_HEADER = 1, 4
"""Which of the numbers before the table tells how far a device reads, and how many there are."""
# Which of the first numbers of a plan tell how far a device reads, where its shape and its numbers are, where these and all of
# it end, how much room its returns need, and whether they are there, right behind it; how many there are: as in `c/tables.c`.
DEVICE_END, AT_SHAPE, AT_VIEWS, TABLE_END, PLAN_END, BACK_ROOM, HAS_BACK, HEADER = 6, 16, 17, 18, 19, 20, 21, 22


class Shape:
    """Groups, classes and reads without any row, from the numbers that `fill_shape` in `c/tables.c` has put together.

    And where in the numbers of a plan each of its arrays is told, in the order of `fill_views`.
    """

    def __init__(self, told: bytes) -> None:
        numbers = iter(array("i", told))

        def some(count: int) -> tuple[int, ...]:
            return tuple([next(numbers) for _ in range(count)])

        groups, classes, outputs, reads, self.types = some(5)
        self.groups = [(bool(cyclic), some(many)) for cyclic, many in (some(2) for _ in range(groups))]
        placed = [some(3) for _ in range(outputs)]
        self.output = {(type, number): at for at, (type, number, _) in enumerate(placed)}
        members = [tuple([(type, number) for type, number, mine in placed if mine == one]) for one in range(classes)]
        self.classes = [(mine, bool(has_empty)) for mine, has_empty in zip(members, some(classes), strict=True)]
        self.reads = [some(7) for _ in range(reads)]
        self.class_of = {output: number for number, mine in enumerate(members) for output in mine}
        self.group_of = {type: number for number, (_, types) in enumerate(self.groups) for type in types}
        self.present = tuple(sorted(self.group_of))
        ways = [
            (type, port, group)
            for type, port, _, _, value_class, _, _ in self.reads
            for group, (_, types) in enumerate(self.groups)
            if value_class >= 0 and any(member in types for member, _ in members[value_class])
        ]
        self._ways = {way: OF_BACK * at for at, way in enumerate(ways)}
        self.back_end = BACK_HEADER + OF_BACK * len(ways)
        """Where the table of returns ends."""
        self._known: tuple[tuple[NodeType, ...], Hashable] | None = None
        self.largest_steps = [self.step_table(group) + 2 for group in range(groups)]
        """Of each group: where the rows of its largest step are told."""

    # Where the arrays of a plan begin in its numbers; where they end is the next number.

    def steps(self, group: int, column: int) -> int:
        """Types, first rows, last rows of a group's steps."""
        return len(self.classes) + 2 * (3 * group + column)

    def rows(self, type: int) -> int:
        return self.steps(len(self.groups), 0) + 2 * type

    def class_rows(self, output: tuple[int, int]) -> int:
        return self.rows(self.types) + 2 * self.output[output]

    def read(self, number: int, column: int) -> int:
        """Index, offsets, bounds and slices of a read."""
        return self.rows(self.types) + 2 * (len(self.output) + 4 * number + column)

    def step_table(self, group: int) -> int:
        return self.read(len(self.reads), 0) + 3 * group

    # Where single numbers are.

    def class_first(self, output: tuple[int, int]) -> int:
        """The first class row."""
        return self.step_table(len(self.groups)) + self.output[output]

    def owners(self, read: int) -> int:
        """Where the owners begin; they are as many as the read's index."""
        return self.step_table(len(self.groups)) + len(self.output) + 2 * read

    def first_slice(self, read: int) -> int:
        return self.owners(read) + 1

    def way(self, key: tuple[int, int, int]) -> int:
        """Where the entry begins, in the table of returns, of what comes back from a type's port to a group."""
        return self._ways[key]

    def known(self, types: tuple[NodeType, ...], find: Callable[[], Hashable]) -> Hashable:
        """What `Plan.shape` tells of all plans that have this shape and these types."""
        known = self._known
        if known is None or known[0] is not types:
            known = self._known = types, _interned(find())
        return known[1]


@functools.lru_cache(maxsize=1024)
def _interned(shape: Hashable) -> Hashable:
    """One object for all equal ones, so that comparing them is fast."""
    return shape


class NativePlan(Plan):
    """A plan that was made in C. Most calls look at a few of its numbers only: everything else is found when it is needed."""

    layout: Shape = cast(Shape, None)
    """None for a copy with other parts, which is a plan like any other."""
    buffer: Ints
    numbers: list[int]
    """As `fill_views` in `c/tables.c` has put them together."""
    place: int
    """Where the buffer is."""
    device_end: int
    """So many numbers of it a device reads."""
    back_room: int
    """So many numbers its returns take at most; 0 if they cannot be had."""
    numbers_at: int
    """Where the numbers lie in it."""
    back: Ints | None = None
    """What `weft_returns` has found."""
    back_place: int = 0
    """Where that is."""
    back_device_end: int = 0
    """So many numbers of it a device reads."""
    back_numbers: list[int] = []  # noqa: RUF012  # nobody adds to it
    """Its table."""
    back_traits: tuple[int, ...] | None = None
    """Of each way back: whether anything comes, rows have one reader at most, each has one, what comes first is a slice."""
    traits: Hashable
    """What decides everything about a plan that its numbers of rows do not: plans of equal traits answer alike."""
    traits_with_back: Hashable | None = None
    """Also about what comes back to whom, once that is found."""

    @staticmethod
    def of(
        layout: Shape,
        program: Program,
        policy: str,
        max_rows: int | None,
        buffer: Ints,
        place: int,
        told: list[int],
        started: float,
    ) -> NativePlan:
        """`told`: the first numbers of the buffer, which lies at `place`."""
        plan, at = NativePlan.__new__(NativePlan), told[AT_VIEWS]
        plan.program, plan.policy, plan.max_rows, plan._derived = program, policy, max_rows, {}
        plan.group_of, plan.present, plan.class_of = layout.group_of, layout.present, layout.class_of
        plan.layout, plan.traits = layout, (layout, None, program.feed is None)
        plan.buffer, plan.place, plan.device_end, plan.back_room = buffer, place, told[DEVICE_END], told[BACK_ROOM]
        plan.numbers, plan.numbers_at = buffer[at : told[TABLE_END]].tolist(), place + 4 * at
        plan.seconds = time.perf_counter() - started
        if told[HAS_BACK]:
            end = told[PLAN_END]
            plan.take_back(buffer[end : end + told[BACK_ROOM]], place + 4 * end)
        return plan

    def take_back(self, back: Ints, place: int) -> None:
        """The returns, which lie at `place`."""
        told: list[int] = back[: self.layout.back_end].tolist()
        self.back, self.back_place, self.back_device_end = back, place, told[BACK_DEVICE_END]
        self.back_numbers = told[BACK_HEADER:]
        self.back_traits = tuple(told[BACK_HEADER + BACK_TRAITS :: OF_BACK])
        self.traits_with_back = self.layout, self.back_traits, self.program.feed is None

    def view(self, at: int) -> Ints:
        """The array whose beginning is told at a place of the numbers."""
        return self.buffer[self.numbers[at] : self.numbers[at + 1]]

    @cached_property
    def groups(self) -> tuple[Group, ...]:  # type: ignore[override]  # set by nobody
        at = self.layout.steps
        return tuple(
            [
                Group(types, cyclic, self.view(at(g, 0)), self.view(at(g, 1)), self.view(at(g, 2)))
                for g, (cyclic, types) in enumerate(self.layout.groups)
            ]
        )

    @cached_property
    def rows(self) -> tuple[Ints, ...]:  # type: ignore[override]  # as groups
        return tuple([self.view(self.layout.rows(t)) for t in range(len(self.program.types))])

    @cached_property
    def classes(self) -> tuple[ValueClass, ...]:  # type: ignore[override]  # as groups
        told = zip(self.layout.classes, self.numbers, strict=False)
        return tuple([ValueClass(members, count, has_empty) for (members, has_empty), count in told])

    @cached_property
    def class_row(self) -> dict[tuple[int, int], Ints]:  # type: ignore[override]  # as groups
        return {output: self.view(self.layout.class_rows(output)) for output in self.class_of}

    @cached_property
    def reads(self) -> tuple[Read, ...]:  # type: ignore[override]  # as groups
        return tuple([self._read(number, *told) for number, told in enumerate(self.layout.reads)])

    def _read(
        self, number: int, type: int, port: int, kind: int, width: int, value_class: int, recurrent: int, has_offsets: int
    ) -> Read:
        index, offsets, bounds, slices = [self.view(self.layout.read(number, column)) for column in range(4)]
        many = offsets if has_offsets else None
        return Read(type, port, KINDS[kind], width, value_class, bool(recurrent), index, many, bounds, slices)

    @cached_property
    def shape(self) -> Hashable:
        return self.layout.known(self.program.types, lambda: super(NativePlan, self).shape)


def native(plan: Plan | None) -> NativePlan | None:
    """The plan, if C has made it."""
    return plan if type(plan) is NativePlan and plan.layout is not None else None


@functools.lru_cache(maxsize=1024)
def shape_of(told: bytes) -> Shape:
    """The shape that these numbers tell."""
    return Shape(told)
