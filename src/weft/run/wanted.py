"""Wanted results: which rows of which outputs the caller receives."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.graph.program import Ints
from weft.graph.tape import Name
from weft.plan.plan import Plan


@dataclass(frozen=True, eq=False)
class Wanted:
    """One tensor of results: the rows of `nodes`, in that order, or of all nodes.

    `type`: they are all of this type. `known_rows`: and in the plan that runs these are their rows.
    """

    name: Name
    nodes: Ints | None = None
    type: int | None = None
    known_rows: Ints | None = None

    def types(self, plan: Plan) -> tuple[int, ...]:
        """The types whose output is wanted."""
        if self.type is not None:
            return (self.type,)
        if self.nodes is None:
            return plan.present
        return tuple(np.flatnonzero(np.bincount(plan.program.type[self.nodes])).tolist())

    def kind(self, plan: Plan) -> tuple[Hashable, ...]:
        """Equal for what recipes fetch alike, whichever nodes it is."""
        return self.name, self.nodes is None, *self.types(plan)

    @cached_property
    def key(self) -> bytes:
        """Equal for equal nodes."""
        return b"" if self.nodes is None else np.asarray(self.nodes, np.int64).tobytes()

    def rows(self, plan: Plan) -> Ints:
        """The row of each of the nodes within its type."""
        assert self.nodes is not None
        rows: Ints = plan.row[self.nodes] if self.known_rows is None else self.known_rows
        return rows

    def parts(self, plan: Plan) -> list[tuple[int, Ints | None, Ints]]:
        """For some nodes: by type, where in the result (None: everywhere), and which rows of the type."""
        assert self.nodes is not None
        rows = self.rows(plan)
        kinds = self.types(plan)
        if len(kinds) == 1:
            return [(kinds[0], None, rows)]
        of = plan.program.type[self.nodes]
        places = [(t, np.flatnonzero(of == t)) for t in kinds]
        return [(t, at.astype(np.int32), rows[at]) for t, at in places]


def only_type(plan: Plan, nodes: Ints) -> int | None:
    """The type that some nodes have in common, if they do."""
    types = plan.program.type[nodes]
    return int(types[0]) if len(types) and (types == types[0]).all() else None
