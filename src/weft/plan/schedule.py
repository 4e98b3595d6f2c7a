"""From a program to a plan, by the policy asked for; plans of equal structure are made once."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol

import numpy as np

from weft.errors import TypeMismatch
from weft.graph.program import Ints, Program
from weft.locks import lock
from weft.plan.agenda import agenda_steps
from weft.plan.condense import GroupOrder, condense
from weft.plan.depth import depth_steps
from weft.plan.graphs import GraphProgram, plan_graphs
from weft.plan.layout import lay_out
from weft.plan.levels import colevels, levels
from weft.plan.native import plan_natively
from weft.plan.plan import Plan
from weft.plan.verify import verify_plan

POLICIES = ("auto", "depth", "agenda", "condense")
VERIFIES = os.environ.get("WEFT_VERIFY") == "1"
"""Whether every plan is verified when it is made."""


class Order(Protocol):
    """What may be known of the order in which a program's nodes can run (see `condense`)."""

    def level_of(self, types: tuple[int, ...], /) -> Ints: ...

    def above(self) -> Ints: ...

    def edges(self) -> set[tuple[int, int]]: ...


def schedule(
    program: Program,
    policy: str = "auto",
    max_rows: int | None = None,
    known: Order | None = None,
) -> Plan:
    """Plan a program. `known` may hand in what was kept with the examples."""
    started = time.perf_counter()
    if policy not in POLICIES:
        raise TypeMismatch(f"policy: expected one of {', '.join(map(repr, POLICIES))}, got {policy!r}")
    if max_rows is not None and max_rows < 1:
        raise TypeMismatch(f"max_rows: expected a positive number or None, got {max_rows!r}")
    plan = from_graphs(program, policy, max_rows) if isinstance(program, GraphProgram) else None
    if plan is not None:
        return plan
    return _verified(
        plan_natively(program, policy, max_rows, started) or _with_numpy(program, policy, max_rows, known, started)
    )


def from_graphs(program: GraphProgram, policy: str, max_rows: int | None, with_returns: bool = False) -> Plan | None:
    """The plan of graphs that are kept; None where it is better made from their program."""
    started = time.perf_counter()
    plan = plan_graphs(program, policy, max_rows, started, with_returns) if policy in ("auto", "condense") else None
    return _verified(plan) if VERIFIES and plan is not None else plan


def _verified(plan: Plan) -> Plan:
    if VERIFIES:
        verify_plan(plan.unseen())  # a call must find out what it needs by itself
    return plan


def _with_numpy(program: Program, policy: str, max_rows: int | None, known: Order | None, started: float) -> Plan:
    """The slow twin of planning in C: what it does in numpy, pass by pass."""
    level_of, edges = (None, None) if known is None else (known.level_of, known.edges())
    if program.num_nodes == 0:
        orders: list[GroupOrder] = []
    elif policy in ("auto", "condense"):
        orders = condense(len(program.types), program.type, program.ptr, program.src, level_of, edges)
    else:
        orders = [_one_group(program, policy)]
    ahead = colevels(program.ptr, program.src) if known is None else known.above()
    return lay_out(program, policy, orders, ahead, max_rows, started)


def _one_group(program: Program, policy: str) -> GroupOrder:
    """Depth and agenda know no components: all types run in one group, in their own order."""
    level = levels(program.ptr, program.src)
    if policy == "depth":
        step = depth_steps(program.type, level)
    else:
        step = agenda_steps(program.type, level, program.ptr, program.src)
    types = tuple(int(t) for t in np.flatnonzero(np.bincount(program.type)))
    return GroupOrder(types, True, step, np.arange(program.num_nodes, dtype=np.int32))


_lock = lock()


class PlanCache:
    """The most recently used plans, by structure: so many of them, and of so many nodes together.

    >>> cache = PlanCache(2)
    >>> cache.get("a", lambda: 1), cache.get("a", lambda: 2)
    (1, 1)
    """

    def __init__(self, capacity: int = 1024, nodes: int = 1 << 20) -> None:
        self.capacity, self.nodes = capacity, nodes
        self._plans: OrderedDict[Hashable, object] = OrderedDict()
        self._held = 0

    def get(self, key: Hashable, make: Callable[[], object]) -> object:
        found = self._plans.get(key)
        return self.add(key, make() if found is None else found)

    def find(self, key: Hashable) -> object | None:
        """The plan, if it is kept."""
        return self._plans.get(key)

    def add(self, key: Hashable, found: object) -> object:
        """Keep a plan, or let it stay: it is the one that was used last."""
        with _lock:
            if key in self._plans:
                self._plans.move_to_end(key)
            else:
                self._plans[key] = found
                self._held += _size(found)
            while len(self._plans) > self.capacity or (self._held > self.nodes and len(self._plans) > 1):
                self._held -= _size(self._plans.popitem(last=False)[1])
        return found

    def __contains__(self, key: Hashable) -> bool:
        return key in self._plans

    def __len__(self) -> int:
        return len(self._plans)


def _size(plan: object) -> int:
    """How many nodes a plan has, or whatever holds one and says so."""
    program = getattr(plan, "program", None)
    return program.num_nodes if isinstance(program, Program) else 1
