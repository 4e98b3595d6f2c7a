"""Calls that repeat an earlier one on other graphs: what can be seen at once tells what that one found out.

Checking what a call was given and finding its cells takes Python longer than planning some dozen trees. All of it is the same
for a call that looks like one that ran: the same kind of rows, of vertices and options, in the same mood of torch. What cannot
be seen at once is compared: the model's types and state, and everything that the traces of its cells depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from weft.api.function import VertexFunction
from weft.api.graph import Graph
from weft.api.inputs import leading
from weft.api.modelcache import Kinds
from weft.graph.held import Held
from weft.graph.placed import type_of
from weft.graph.program import Ints
from weft.graph.stored import is_as_stored
from weft.graph.transforms import stands_for_others
from weft.graph.uncast import uncast
from weft.plan.graphs import GraphProgram, KeptGraphs
from weft.plan.plan import Plan
from weft.plan.schedule import PlanCache, from_graphs
from weft.run.batched import run_batched
from weft.run.call import Call
from weft.run.options import Options

Result = Callable[[list[Tensor]], Any]

MOST_LOOKS, MOST_ALIKE = 64, 2
"""So many are remembered of one model, and of calls that look alike: training and evaluation."""
_MORE = frozenset({"edges", "rounds", "init", "at"})
"""Calls with these find out everything anew."""


def looks(graph: Any, x: Any, keywords: dict[str, Any]) -> Hashable | None:
    """What calls have in common that one repeat serves; None for those that none does.

    Options are taken as they came: those of a call that ran are sound.
    """
    if type(x) is not Tensor or not isinstance(graph, Graph) or not _MORE.isdisjoint(keywords):
        return None
    together = graph.together
    if not isinstance(together, KeptGraphs) or x.is_nested or x.layout is not _STRIDED or not is_as_stored(x):
        return None
    count, shape, device = graph.num_vertices, x.shape, x.device
    if not count or not shape or shape[0] != count:
        return None
    kind = type_of(device)
    if kind == "meta" or is_distributed():  # the first knows no autocast, in the second all parameters take part
        return None
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    of_rows = shape[1:], x.dtype, device, x.requires_grad
    of_graph = together.kinds, together.root_kinds, together.types, graph.type_names, graph.device
    options = (*keywords.items(), *map(type, keywords.values()))  # 1 is no option where True is one
    return of_rows, of_graph, torch.is_grad_enabled(), autocast, torch.get_default_dtype(), options


_STRIDED = torch.strided
_can_be_distributed: bool = torch.distributed.is_available()


def is_distributed() -> bool:
    """Whether processes train together."""
    return _can_be_distributed and torch.distributed.is_initialized()


class Repeat:
    """What calls of one kind have in common: everything but structure and numbers."""

    def __init__(self, model: VertexFunction, kinds: Kinds, table: Ints, call: Call, options: Options, result: Result) -> None:
        """`table`: the node type of each kind of vertex."""
        self.kinds, self.table, self.options, self.result = kinds, table, options, result
        given = (*(call.captured or ()), *call.feeds.values())
        self.trains = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
        self.casts = torch.is_autocast_enabled(type_of(call.device))
        self.call = call.without_graph()
        self.held = Held([cell.trace for cell in call.cells.values()])
        self.seen = _seen(model)

    def run(self, model: VertexFunction, graph: Graph, x: Tensor, plans: PlanCache) -> list[Tensor] | None:
        """The rows of the results; None where something is not as it was."""
        if stands_for_others() or forward_ad._current_level >= 0:
            return None
        captured = self.held.tensors() if _seen(model) == self.seen else None
        plan = None if captured is None else self._plan(graph, plans)
        if plan is None or captured is None:
            return None
        call = self.call.on(plan, {("x", 0): x}, captured)
        if not self.casts:
            return run_batched(call)
        with uncast(type_of(call.device)):
            return run_batched(call)

    def _plan(self, graph: Graph, plans: PlanCache) -> Plan | None:
        policy, max_rows = self.options.policy, self.options.max_rows
        key = plan_key(graph, self.kinds, None, self.options, False)
        found: Any = plans.find(key)
        if found is None:
            assert isinstance(graph.together, KeptGraphs)
            program = GraphProgram(self.kinds.types, graph.together, self.table, None)
            found = from_graphs(program, policy, max_rows, self.trains)
        return None if found is None else plans.add(key, found)  # type: ignore[return-value]  # a model keeps plans there


def _seen(model: VertexFunction) -> Any:
    """What the traces of its cells do not watch of a model: its types, its state, where it is and what it computes with."""
    first, dtype = leading(model)
    return model.vertex_functions(), [*model.state_shapes.items()], first[0].device if first else None, dtype


def plan_key(graph: Graph, kinds: Kinds, rounds: int | None, options: Options, with_edges: bool) -> Hashable:
    """Calls of a model with equal ones have equal plans."""
    return graph.key, kinds.number, rounds, options.policy, options.max_rows, with_edges
