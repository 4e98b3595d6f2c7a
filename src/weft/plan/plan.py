"""The plan: a merged program in execution order, as a frozen value that can be printed, cached, verified and drawn.

Nodes of one type are numbered in the order in which they run: their *rows*. A *step* is one type over a range of its rows. A
*group* is a set of types that feed each other, and its steps in order. Outputs that some port reads together live in one *value
class*: an arena whose rows are again in execution order, so that every step writes a slice. A *read* says, for one port of one
type, which class rows it gathers; where these are consecutive, the gather is a slice.
"""

from __future__ import annotations

from collections.abc import Hashable
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from weft.graph.program import Ints, Program

Bools = npt.NDArray[np.bool_]

NOT_A_SLICE = -1


@dataclass(eq=False)
class Group:
    """Types that run together. Step `s` is type `step_type[s]` over its rows `step_lo[s]:step_hi[s]`."""

    types: tuple[int, ...]
    cyclic: bool
    step_type: Ints
    step_lo: Ints
    step_hi: Ints

    @property
    def steps(self) -> int:
        return len(self.step_type)


@dataclass(eq=False)
class ValueClass:
    """Outputs (type, output) that share an arena of `rows` rows; row `rows` is all zeros if `has_empty`."""

    members: tuple[tuple[int, int], ...]
    rows: int
    has_empty: bool


@dataclass(eq=False)
class Read:
    """What one port of one type gathers: class rows, in the order of the type's rows.

    `offsets` (rows + 1) bounds each row's part of `index` for ports of kind "sum" and "edges"; slots have a fixed width.
    `slices` holds, for each piece in `bounds` (the type's steps, or all rows at once), the first class row if the piece is
    consecutive.
    """

    type: int
    port: int
    kind: str
    width: int
    value_class: int
    recurrent: bool
    index: Ints
    offsets: Ints | None
    bounds: Ints
    slices: Ints


@dataclass(eq=False)
class Return:
    """How gradients come back from one read to the rows of a class that one group wrote: `count` gradient rows in all.

    The gradient of class row `first + i` is the sum of gradient rows `index[offsets[i]:offsets[i+1]]` of the read, in that
    order. Where the read gathers no class row twice, there is `single` instead, with the one gradient row (or the number of
    gradient rows, a row of zeros). `slices` as in `Read`, and `nothing` is 1 for the pieces to which no gradient comes back.
    """

    type: int
    port: int
    group: int
    first: int
    last: int
    count: int
    bounds: Ints
    slices: Ints
    nothing: Ints
    index: Ints | None = None
    offsets: Ints | None = None
    single: Ints | None = None

    def bags(self) -> tuple[Ints, Ints]:
        """Index and offsets, also where there are single rows."""
        if self.single is None:
            assert self.index is not None and self.offsets is not None
            return self.index, self.offsets
        zeros = self.single.max() if self.count < len(self.single) else NOT_A_SLICE
        comes = self.single != zeros
        return self.single[comes], np.concatenate([[0], np.cumsum(comes)]).astype(np.int32)


@dataclass(eq=False)
class Plan:
    """Everything that execution needs to know about structure. See the module's page for the words."""

    program: Program
    policy: str
    groups: tuple[Group, ...]
    rows: tuple[Ints, ...]
    """For each type its nodes, in row order."""
    classes: tuple[ValueClass, ...]
    class_of: dict[tuple[int, int], int]
    class_row: dict[tuple[int, int], Ints]
    """For each (type, output) the class row of every row of the type."""
    reads: tuple[Read, ...]
    seconds: float = 0.0
    max_rows: int | None = None
    """No step is longer than this, where it is given."""
    _derived: dict[object, object] = field(default_factory=dict, repr=False)

    def unseen(self) -> Self:
        """The same plan, of which nothing has been found out yet; what is found out about it the plan does not know."""
        twin = copy(self)
        twin._derived = {}
        return twin

    @cached_property
    def row(self) -> Ints:
        """For each node its row within its type."""
        found = np.empty(self.program.num_nodes, dtype=np.int32)
        for nodes in self.rows:
            found[nodes] = np.arange(len(nodes), dtype=np.int32)
        return found

    @cached_property
    def group_of(self) -> dict[int, int]:
        return {type: number for number, group in enumerate(self.groups) for type in group.types}

    @cached_property
    def present(self) -> tuple[int, ...]:
        """The types that have nodes."""
        return tuple([type for type, rows in enumerate(self.rows) if len(rows)])

    @cached_property
    def shape(self) -> Hashable:
        """Who feeds whom, without any row: plans of one shape differ in sizes alone."""
        groups = tuple([(group.types, group.cyclic) for group in self.groups])
        reads = tuple([(read.type, read.port, read.value_class, read.recurrent) for read in self.reads])
        return self.program.types, groups, reads, tuple([value_class.members for value_class in self.classes])

    def type_steps(self, type: int) -> tuple[Ints, Ints]:
        """The row ranges in which a type runs."""
        group = self.groups[self.group_of[type]]
        if len(group.types) == 1:
            return group.step_lo, group.step_hi
        mine = group.step_type == type
        return group.step_lo[mine], group.step_hi[mine]

    def class_span(self, group: int, value_class: int) -> tuple[int, int]:
        """The class rows that a group writes: one range, since groups run one after the other."""
        spans = [
            self.class_row[member]
            for member in self.classes[value_class].members
            if self.group_of.get(member[0]) == group and len(self.class_row[member])
        ]
        if not spans:
            return 0, 0
        return min(int(span[0]) for span in spans), max(int(span[-1]) for span in spans) + 1

    @property
    def num_steps(self) -> int:
        return sum(group.steps for group in self.groups)
