"""What one batched call computes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from weft.graph.cell import Trace
from weft.graph.program import Ints
from weft.graph.tape import Name
from weft.plan.plan import Plan
from weft.run.code import CellCode, Codes, Role
from weft.run.spare import Spare
from weft.run.wanted import Wanted


@dataclass(eq=False)
class CompiledCell:
    """A traced cell and its compiled pieces, one set per role."""

    trace: Trace
    codes: dict[Role, CellCode] = field(default_factory=dict)
    spare: Spare = field(default_factory=Spare)
    """Memory of plans whose first type this is, between two calls."""
    tree: Any = None
    """The structure of what the cell pushes; None if it pushes nothing."""
    owner: Any = None
    """Whose code was traced, kept alive: cells are known by its address, which must stay its own."""
    recent: list[Any] = field(default_factory=list)
    """The kinds of the last calls (`weft.run.kind`)."""
    kept: OrderedDict[Any, Codes] = field(default_factory=OrderedDict)
    """The compiled pieces of this cell and those that it ran with."""

    def own_name(self, name: Name) -> Name:
        """What is pushed and is a state, too, is known as the state: one tensor, one gradient."""
        return self._twins.get(name, name)

    @cached_property
    def _twins(self) -> dict[Name, Name]:
        outputs = self.trace.tape.outputs
        states = {id(outputs["out", name]): name for name in self.trace.outputs if isinstance(name[0], int)}
        pushed = [name for name in self.trace.outputs if name[0] == "push"]
        return {name: states[id(outputs["out", name])] for name in pushed if id(outputs["out", name]) in states}

    def code(self, role: Role) -> CellCode:
        if role not in self.codes:
            self.codes[role] = CellCode(self.trace.tape, role, self.trace.name)
        return self.codes[role]


@dataclass(eq=False)
class Call:
    """What one batched call computes: a plan, a cell for each type, the fed tensors, and which outputs are wanted."""

    plan: Plan
    cells: dict[int, CompiledCell]
    feeds: dict[tuple[Any, ...], Tensor]
    """Leaves of the fed nests, by the feed's name and the leaf's number; after a type's number, for that type alone."""
    edges: Sequence[Tensor]
    wanted: Sequence[Wanted]
    device: torch.device
    recompute: bool = False
    backend: str = "eager"
    everyone: Sequence[Tensor] = ()
    """Parameters that take part with zeros where the call does not use them: processes that train together expect them all."""
    graph: bool = False
    """Whether launches on a GPU may be captured and replayed."""
    captured: Sequence[Tensor] | None = None
    """The tensors that the plan's cells capture, one cell after the other, where they were fetched already."""
    feed: Ints | None = None
    """For each node its row of what is fed, where that is not as the plan's program says."""
    alike: list[Any] | None = None
    """Shapes of plans, and kinds (`weft.run.kind`), of calls that differ from this one in plan and numbers only (`on`)."""

    def without_graph(self) -> Call:
        """The same without plan and tensors, for `on`."""
        return replace(self, plan=cast(Plan, None), feeds={}, edges=(), everyone=(), captured=None, alike=[])

    def on(self, plan: Plan, feeds: dict[tuple[Any, ...], Tensor], captured: Sequence[Tensor]) -> Call:
        """The same call with another plan and other tensors, of which the same ones need gradients."""
        made = Call.__new__(Call)
        made.__dict__ = {**self.__dict__, "plan": plan, "feeds": feeds, "captured": captured}
        return made
