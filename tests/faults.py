"""Deliberate faults in the engine. Each is a small, believable mistake; the equivalence suite must notice every one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import weft.graph.rows as rows_module
import weft.run.collect as collect_module
import weft.run.forward as forward_module
from weft.api.graph_core import GraphCore
from weft.api.vertexcall import VertexCall
from weft.graph.cell import Trace
from weft.graph.held import Held
from weft.run.backward import Backward
from weft.run.collect import Collecting
from weft.run.columns import Addresses, Cut
from weft.run.execution import Execution
from weft.run.gather import _Select, _Sum
from weft.run.indices import Indices
from weft.run.results import Results
from weft.run.typerun import TypeRun

Make = Callable[[Any], Any]
"""From the right piece of engine to the wrong one."""

FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {}

FAULTS_OF_TRACING = ("every tie gets the whole gradient",)
"""These show only in cells that are traced while they are there."""

FAULTS_OF_KERNELS = ("a kernel gathers other rows", "a kernel collects other gradients")
"""These show only where operations are fused: with the backend "auto"."""


@contextmanager
def replaced(owner: Any, name: str, make: Make) -> Iterator[None]:
    """The engine with one attribute changed."""
    right = owner.__dict__[name]
    setattr(owner, name, make(right))
    try:
        yield
    finally:
        setattr(owner, name, right)


def fault(owner: Any, name: str) -> Callable[[Make], Make]:
    """Register `make` under its own name, with spaces."""

    def register(make: Make) -> Make:
        FAULTS[make.__name__.replace("_", " ")] = lambda: replaced(owner, name, make)
        return make

    return register


@fault(_Select, "__call__")
def wrong_gather_index(right: Any) -> Any:
    def call(self: Any) -> None:
        torch.index_select(self.arena, 0, self.index.roll(1), out=self.out)

    return call


@fault(forward_module, "through_index")
def a_kernel_gathers_other_rows(right: Any) -> Any:
    def through_index(run: Any, at: Any, value: Any) -> Any:
        arena, index = right(run, at, value)
        return arena, Addresses(index.tensor.roll(1), index.starts)

    return through_index


@fault(Collecting, "_through_index")
def a_kernel_collects_other_gradients(right: Any) -> Any:
    def collected(self: Any, first: int, last: int) -> Any:
        rows, index, *outer = right(self, first, last)
        return [rows, index[:1] + index[:-1], *outer]

    return collected


@fault(_Sum, "__call__")
def last_child_left_out_of_a_sum(right: Any) -> Any:
    def call(self: Any) -> None:
        right(self)
        ends = self.bounds[1:][self.bounds.diff() > 1].long() - 1
        rows = torch.nonzero(self.bounds.diff() > 1)[:, 0]
        self.out.index_add_(0, rows, self.arena.index_select(0, self.index[ends]), alpha=-1)

    return call


@fault(Execution, "_make_arenas")
def row_of_zeros_is_not_zero(right: Any) -> Any:
    def make_arenas(self: Any) -> Any:
        arenas = right(self)
        for (number, _), arena in arenas.items():
            if self.plan.classes[number].has_empty:
                arena[-1:].fill_(1)
        return arenas

    return make_arenas


@fault(Results, "rows")
def swapped_rows(right: Any) -> Any:
    def output(self: Any, *args: Any) -> Tensor:
        result: Tensor = right(self, *args)
        return torch.cat([result[1:2], result[:1], result[2:]])

    return output


@fault(Backward, "_collect")
def dropped_gradient(right: Any) -> Any:
    def collect(self: Any, run: Any) -> None:
        right(self, run)
        captured = [key for key in self.gradients if key[0] == run.type and key[1][0] == "capture"]
        for key in captured[:1]:
            del self.gradients[key]

    return collect


@fault(Backward, "_whole")
def parameter_gradients_from_the_last_level_only(right: Any) -> Any:
    def whole(self: Any, run: Any, stage: str) -> None:
        code = self.cut[run.type][1].get(stage)
        if stage == "sums" and code is not None:
            for value in code.takes:
                if value.rows is not None and value.rows.kind == "n" and value.row_dim == 0:
                    kept = run.whole(value).clone()
                    kept[: sum(run.cuts.sizes[:-1]) * value.rows.times] = 0
                    run.store[value.name] = kept
        right(self, run, stage)

    return whole


@fault(Execution, "_gradients")
def gradients_of_one_tensor_are_not_added(right: Any) -> Any:
    def gradients(self: Any, tensors: Any, sweep: Any) -> list[Tensor | None]:
        results: list[Tensor | None] = [None] * len(tensors)
        for key, gradient in sweep.gradients.items():
            for at, found in enumerate(right(self, tensors, SimpleNamespace(gradients={key: gradient}))):
                if found is not None:
                    results[at] = found
        return results

    return gradients


@fault(GraphCore, "key")
def plans_of_other_graphs_are_reused(right: Any) -> Any:
    return property(lambda self: self.num_vertices)


@fault(Indices, "bounds")
def wrong_segment_bounds(right: Any) -> Any:
    def bounds(self: Any, *arguments: Any) -> Cut:
        cut: Cut = right(self, *arguments)
        pieces = [torch.cat([piece[:1], (piece[1:-1] - 1).clamp_min(0), piece[-1:]]) for piece in cut.block(0, len(cut.cuts))]
        return Cut(torch.cat(pieces), cut.cuts)

    return bounds


@fault(Backward, "_outside_or_none")
def gradient_from_the_caller_is_lost_inside_a_cycle(right: Any) -> Any:
    def outside(self: Any, number: int, run: Any, name: Any) -> Tensor | None:
        return None if name in run.code.role.recurrent_out else right(self, number, run, name)

    return outside


@fault(collect_module, "bag_sum")
def only_one_reader_sends_its_gradient_back(right: Any) -> Any:
    def bag_sum(rows: Tensor, index: Tensor, bounds: Tensor) -> Tensor:
        filled = bounds.diff() > 0
        first = rows.index_select(0, index[bounds[:-1][filled].long()])
        return rows.new_zeros((len(filled), *rows.shape[1:])).index_copy(0, torch.nonzero(filled)[:, 0], first)

    return bag_sum


@fault(rows_module, "segment_max")
def every_tie_gets_the_whole_gradient(right: Any) -> Any:
    def segment_max(per_edge: Tensor, seg: Tensor, rows: int) -> Tensor:
        top: Tensor = right(per_edge, seg, rows).detach()
        tied = per_edge.detach() == top.index_select(0, seg)
        carrier = top.new_zeros(top.shape).index_add(0, seg, torch.where(tied, per_edge - per_edge.detach(), 0))
        return top + carrier

    return segment_max


@fault(TypeRun, "_filled")
def defaults_where_there_are_children(right: Any) -> Any:
    return lambda self, position: ~right(self, position)


@fault(TypeRun, "_count")
def one_child_too_many_is_counted(right: Any) -> Any:
    return lambda self: right(self) + 1


@fault(Execution, "_edge_index")
def rows_of_other_edges(right: Any) -> Any:
    def edge_index(self: Any, t: int, name: Any) -> Any:
        rows, exists = right(self, t, name)
        return rows.roll(1), exists

    return edge_index


@fault(Execution, "_to_fed_rows")
def input_gradients_in_other_rows(right: Any) -> Any:
    return lambda self, t, name, gradient, tensor: right(self, t, name, gradient.roll(1, 0), tensor)


@fault(VertexCall, "_last_round")
def states_of_the_first_round_are_returned(right: Any) -> Any:
    def last_round(self: Any, rows: Tensor) -> Tensor:
        return rows if self.rounds is None else rows[self.graph.num_vertices :][: self.graph.num_vertices]

    return last_round


@fault(Trace, "holds")
def a_changed_setting_is_overlooked(right: Any) -> Any:
    return lambda self: True


@fault(Held, "tensors")
def a_replaced_tensor_is_overlooked(right: Any) -> Any:
    first: dict[Held, list[Tensor]] = {}

    def tensors(self: Held) -> list[Tensor] | None:
        found = right(self)
        return found and first.setdefault(self, found)

    return tensors
