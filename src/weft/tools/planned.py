"""`weft.plan`: what a call would run, without running it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from weft.api.function import VertexFunction
from weft.api.graph import Graph
from weft.api.vertexcall import VertexCall
from weft.errors import TypeMismatch
from weft.plan.plan import Plan
from weft.run.batched import Call, CompiledCell
from weft.run.options import Options
from weft.tools.explain import explain
from weft.tools.html import fragment, page
from weft.tools.perfetto import trace_json
from weft.tools.pieces import Pieces
from weft.tools.stats import stats


class Planned:
    """A plan to look at: its numbers, a text, a page, a trace. `weft.plan` makes it.

    `plan` is the plan itself, `cells` the traced cell of each type; the plan and the cells stay with the model, so that a
    later call with the same structure finds them.
    """

    def __init__(
        self, name: str, call: Call, examples: int, record_s: float, plan_s: float, cached: bool, max_rows: int | None
    ) -> None:
        self.name, self.examples, self.cached, self.max_rows = name, examples, cached, max_rows
        self.record_s, self.plan_s = record_s, plan_s
        self._call = call

    @property
    def plan(self) -> Plan:
        return self._call.plan

    @property
    def cells(self) -> dict[int, CompiledCell]:
        return self._call.cells

    @cached_property
    def pieces(self) -> Pieces:
        """What would run, piece by piece."""
        return Pieces.of(self._call)

    def stats(self) -> dict[str, int | float]:
        """The numbers of the plan, as a flat dict."""
        return stats(self)

    def explain(self) -> str:
        """What runs, in which order, and why it is not less, as text."""
        return explain(self)

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write one page that needs nothing else."""
        Path(path).write_text(page(self), encoding="utf-8")

    def _repr_html_(self) -> str:
        return fragment(self)

    def to_perfetto(self, path: str | PathLike[str]) -> None:
        """Write the planned batches in the Chrome trace event format, as ui.perfetto.dev and chrome://tracing load it."""
        Path(path).write_text(trace_json(self), encoding="utf-8")

    def __repr__(self) -> str:
        numbers = self.stats()
        shown = ("examples", "nodes", "types", "levels", "batches", "lower_bound", "gathers", "gathers_avoided")
        return f"<plan of {self.name}: {', '.join(f'{key}={numbers[key]}' for key in shown)}>"


def plan(fn_or_model: Any, *inputs: Any, **keywords: Any) -> Planned:
    """Plan a call without running it. Takes what the call takes: its inputs, its keywords and the options.

    >>> import torch, weft
    >>> class Count(weft.VertexFunction):
    ...     def __init__(self):
    ...         super().__init__(state={"size": ()})
    ...     def forward(self, v):
    ...         size = v.gather().sum("size") + 1
    ...         v.scatter(size=size)
    ...         v.push(size)
    >>> planned = weft.plan(Count(), weft.Graph.full_binary_tree(8))
    >>> numbers = planned.stats()
    >>> numbers["nodes"], numbers["levels"], numbers["batches"], numbers["lower_bound"]
    (15, 4, 4, 4)
    """
    if not isinstance(fn_or_model, VertexFunction):
        name = getattr(fn_or_model, "__name__", None)
        came = type(fn_or_model).__name__ if name is None else f"{type(fn_or_model).__name__} {name!r}"
        raise TypeMismatch(
            f"weft.plan: expected a weft.VertexFunction, got {came}; other functions cannot be planned in this version"
        )
    if not 1 <= len(inputs) <= 2:
        raise TypeMismatch(
            f"weft.plan: {type(fn_or_model).__name__} takes a graph and, perhaps, x; got {len(inputs)} inputs besides the model"
        )
    return _plan_vertices(fn_or_model, *inputs, **keywords)


def _plan_vertices(
    model: VertexFunction,
    graph: Any,
    x: Any = None,
    *,
    edges: Any = None,
    rounds: int | None = None,
    init: Mapping[str, Tensor] | None = None,
    at: Any = None,
    **options: Any,
) -> Planned:
    if not isinstance(graph, Graph):
        raise TypeMismatch(f"weft.plan: {type(model).__name__}: expected a weft.Graph, got {type(graph).__name__}")
    started = time.perf_counter()
    vertices = VertexCall(model, graph, x, edges, rounds, init, Options.of(options), at)
    found, cells, tree, cached = vertices.plan()
    seconds = time.perf_counter() - started
    call = vertices.engine_call(found, cells, tree, "eager")  # the plan is the same for every backend
    plan_s = 0.0 if cached else found.seconds
    return Planned(vertices.name, call, graph.num_graphs, seconds - plan_s, plan_s, cached, vertices.options.max_rows)
