"""What plans that were made in C have in common, and how they differ: in the arrays, of which Python sees views."""

from __future__ import annotations

import functools
import time
from array import array
from collections.abc import Hashable

from weft.graph.program import Ints, NodeType, Program
from weft.plan.plan import Group, Plan, Read, ValueClass

KINDS = ("slots", "sum", "edges")


class Shape:
    """Groups, classes and reads without any row, from the numbers that `fill_shape` in `c/tables.c` has put together."""

    def __init__(self, told: bytes) -> None:
        numbers = iter(array("i", told))

        def some(count: int) -> tuple[int, ...]:
            return tuple([next(numbers) for _ in range(count)])

        groups, classes, outputs, reads = some(4)
        self.groups = [(bool(cyclic), some(many)) for cyclic, many in (some(2) for _ in range(groups))]
        placed = [some(3) for _ in range(outputs)]
        outputs_in_order = [(type, number) for type, number, _ in placed]
        members = [tuple([(type, number) for type, number, mine in placed if mine == one]) for one in range(classes)]
        self.classes = [(mine, bool(has_empty)) for mine, has_empty in zip(members, some(classes), strict=True)]
        self.reads = [some(7) for _ in range(reads)]
        self.class_of = {output: number for number, mine in enumerate(members) for output in mine}
        self.outputs = [(output, outputs_in_order.index(output)) for output in self.class_of]
        self.group_of = {type: number for number, (_, types) in enumerate(self.groups) for type in types}
        self.present = tuple(sorted(self.group_of))
        self._known: tuple[tuple[NodeType, ...], Hashable] | None = None

    def plan(
        self, program: Program, policy: str, max_rows: int | None, buffer: Ints, numbers: list[int], started: float
    ) -> Plan:
        """A plan of this shape; `numbers` are those that `fill_views` in `c/tables.c` has put together."""
        first = len(self.classes)
        views = iter([buffer[at:end] for at, end in zip(numbers[first::2], numbers[first + 1 :: 2], strict=True)])
        groups = [Group(types, cyclic, next(views), next(views), next(views)) for cyclic, types in self.groups]
        rows = tuple([next(views) for _ in program.types])
        class_rows = [next(views) for _ in self.outputs]
        class_row = {output: class_rows[at] for output, at in self.outputs}
        classes = [ValueClass(mine, count, empty) for (mine, empty), count in zip(self.classes, numbers, strict=False)]
        reads = []
        for type, port, kind, width, value_class, recurrent, has_offsets in self.reads:
            index, offsets, bounds, slices = next(views), next(views), next(views), next(views)
            many = offsets if has_offsets else None
            reads.append(Read(type, port, KINDS[kind], width, value_class, bool(recurrent), index, many, bounds, slices))
        made = tuple(groups), rows, tuple(classes), self.class_of, class_row, tuple(reads)
        plan = Plan(program, policy, *made, time.perf_counter() - started, max_rows, {"buffer": buffer})
        known = self._known
        if known is None or known[0] is not program.types:
            known = self._known = program.types, plan.shape
        plan.__dict__.update(group_of=self.group_of, present=self.present, shape=known[1])  # each would be found alike
        return plan


@functools.lru_cache(maxsize=1024)
def shape_of(told: bytes) -> Shape:
    """The shape that these numbers tell."""
    return Shape(told)
