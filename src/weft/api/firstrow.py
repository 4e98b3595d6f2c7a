"""The tensors of one vertex of a call, for code that must be looked at with real numbers."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from weft.graph.program import Program
from weft.graph.tape import Name
from weft.plan.levels import levels
from weft.run.reference import RealRow


class Answers:
    """What a vertex would be answered, by the names under which code asks for it; of children the first stands for all."""

    def __init__(self, row: RealRow) -> None:
        self.row = row

    def get(self, name: Name, /) -> Tensor | None:
        row, (kind, *what) = self.row, name
        child = row.children[0] if row.children else None
        if kind == "feed":
            found = tree_leaves(row.feed(what[0]))[what[1]]
        elif kind == "slot":
            found = row.slot(*what)
        elif kind == "filled":
            found = row.slot_filled(*what)
        elif kind == "slot_edge":
            found = tree_leaves(row.slot_edge(what[0]))[what[1]]
        elif kind == "count":
            found = row.count()
        elif kind == "sum":
            found = row.child_sum(*what)
        elif kind == "edge" and child is not None:
            found = row.slot(child, *what)
        elif kind == "edge_feed" and child is not None:
            found = tree_leaves(row.slot_edge(child))[what[0]]
        else:
            return None
        return found.detach() if isinstance(found, Tensor) else None


def lowest(program: Program, candidates: Any) -> tuple[int, set[int]]:
    """The candidate with the fewest levels below it, and all nodes that it needs."""
    level = levels(program.ptr, program.src)
    node = int(candidates[level[candidates].argmin()])
    needed: set[int] = set()
    pending = [node]
    while pending:
        at = pending.pop()
        below = program.src[int(program.ptr[at]) : int(program.ptr[at + 1])].tolist()
        fresh = {each for each in below if each >= 0} - needed
        needed |= fresh
        pending += fresh
    return node, needed
