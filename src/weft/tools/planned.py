"""`weft.plan`: what a call would run, without running it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from weft.api.function import VertexFunction, prepared
from weft.errors import StructureError, TypeMismatch
from weft.lazy.batched import Batched
from weft.lazy.entry import batched
from weft.lazy.netmodule import BatchedModule
from weft.plan.plan import Plan
from weft.run.call import Call, CompiledCell
from weft.run.calls import observe
from weft.run.options import Options
from weft.tools.explain import WIDTH, explain
from weft.tools.html import fragment, page
from weft.tools.perfetto import trace_json
from weft.tools.pieces import Pieces
from weft.tools.stats import stats

SETTINGS = ("stack", "in_dims", "cache", "granularity", "ragged", *Options.__dataclass_fields__)
"""Keywords that are `weft.batched`'s own; all others go to the function."""


class Planned:
    """A plan to look at: its numbers, a text, a page, a trace. `weft.plan` makes it.

    `plan` is the plan itself, `cells` the traced cell of each type; the plan and the cells stay with the model, so that a
    later call with the same structure finds them.
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        cells: dict[int, CompiledCell],
        call: Callable[[], Call],
        examples: int,
        record_s: float,
        plan_s: float,
        cached: bool,
        max_rows: int | None,
        complete: bool = True,
    ) -> None:
        self.name, self.examples, self.cached, self.max_rows, self.complete = name, examples, cached, max_rows, complete
        self.record_s, self.plan_s = record_s, plan_s
        self.plan, self.cells, self._call = plan, cells, call

    @cached_property
    def pieces(self) -> Pieces:
        """What would run, piece by piece."""
        return Pieces.of(self._call())

    def stats(self) -> dict[str, int | float]:
        """The numbers of the plan, as a flat dict."""
        return stats(self)

    def explain(self, width: int = WIDTH) -> str:
        """What runs, in which order, and why it is not less, as text; sentences take at most `width` columns."""
        return explain(self, width)

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

    A function or module is planned as `weft.batched` would run it; where its path depends on values, up to where the first one
    is needed (`complete` is 0 then).

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
        return plan_recorded(fn_or_model, inputs, keywords)
    if not 1 <= len(inputs) <= 2:
        raise TypeMismatch(
            f"weft.plan: {type(fn_or_model).__name__} takes a graph and, perhaps, x; got {len(inputs)} inputs besides the model"
        )
    return _plan_vertices(fn_or_model, *inputs, **keywords)


def _plan_vertices(model: VertexFunction, *inputs: Any, **keywords: Any) -> Planned:
    started = time.perf_counter()
    vertices = prepared(model, *inputs, **keywords)
    found, cells, _, _, tree, cached = vertices.plan()
    seconds = time.perf_counter() - started
    plan_s = 0.0 if cached else found.seconds

    def call() -> Call:
        return vertices.engine_call(found, cells, tree, "eager")  # the plan is the same for every backend

    times = seconds - plan_s, plan_s
    return Planned(vertices.name, found, cells, call, vertices.graph.num_graphs, *times, cached, vertices.options.max_rows)


def plan_recorded(fn: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Planned:
    """The plan of what a batched function, or one that is not batched yet, records for these inputs."""
    if not callable(fn):
        raise TypeMismatch(f"weft.plan: expected a model, a block or a function, got {type(fn).__name__}")
    own = {name: keywords.pop(name) for name in list(keywords) if name in SETTINGS}
    net = fn if isinstance(fn, Batched | BatchedModule) or hasattr(fn, "collate_examples") else batched(fn, **own)
    started = time.perf_counter()
    seen = observe(lambda: net(*inputs, **keywords))
    seconds = time.perf_counter() - started
    name = _shown_name(fn)
    if seen is None:
        raise StructureError(f"weft.plan: {name}: nothing is computed for these inputs, so there is nothing to plan")
    plan_s = 0.0 if seen.cached else seen.call.plan.seconds
    count = len(inputs[0]) if inputs and hasattr(inputs[0], "__len__") else 1
    call, times = seen.call, (seconds - plan_s, plan_s)
    return Planned(name, call.plan, call.cells, lambda: call, count, *times, seen.cached, call.plan.max_rows, seen.final)


def _shown_name(fn: Any) -> str:
    """What the user calls it: the name of a block, a function, or the class of a module, batched or not."""
    fn = getattr(fn, "one_example", fn)
    fn = fn.fn if isinstance(fn, Batched | BatchedModule) else fn
    name = fn.name if hasattr(fn, "eval_one") else getattr(fn, "__name__", type(fn).__name__)
    return str(name)
