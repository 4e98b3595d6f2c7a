"""What the workloads have in common: a case to measure, its targets, and the step that weft takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

import weft
from benchmarks import data
from benchmarks.harness import Instance, Mode, Variant, training
from weft.api.structure import Seen, Table, plan_tree, tree_program
from weft.api.vertexcall import VertexCall
from weft.graph.program import NodeType
from weft.plan.plan import Plan
from weft.plan.returns import returns
from weft.run.options import Options as EngineOptions

HAND = "hand-batched"
PRODUCTS = "matrix products alone"
ONE = "one by one"
WEFT = "weft"
PLANNING, WAY_BACK = "weft, planning alone", "weft, planning and way back"

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """What weft wants to reach: the time of `of` at most `at_most` times that of `against` (a variant's name, or `HAND`)."""

    mode: Mode
    against: str
    at_most: float
    aim: float | None = None
    of: str = WEFT


@dataclass(frozen=True)
class CaseSpec:
    """One size of one workload. `build` makes its instances in a dtype, all with the same parameters and data."""

    workload: str
    label: str
    batch: int
    build: Callable[[torch.dtype], list[Instance]]
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True)
class Options:
    """Which sizes of a workload to make. `batches` replaces the workload's own; `quick` keeps the small ones."""

    data: str | None = None
    batches: tuple[int, ...] = ()
    quick: bool = False

    def folder(self) -> Path:
        """Where the data lies, for workloads that need any."""
        return data.folder(self.data)

    def choose(self, usual: Sequence[int], quick: Sequence[int]) -> Sequence[int]:
        return self.batches or (quick if self.quick else usual)


class _WeftStep:
    """A step from cached graphs of the examples: merging and planning are part of it.

    Each call gets the examples in another order, as training would bring them, so no plan of the batch can be kept.
    """

    def __init__(
        self,
        model: nn.Module,
        graphs: Sequence[weft.Graph],
        inputs: Sequence[Tensor],
        labels: Sequence[Tensor],
        roots_only: bool,
    ) -> None:
        self.model, self.graphs, self.inputs, self.labels, self.roots_only = model, graphs, inputs, labels, roots_only
        self.generator = np.random.default_rng(0)
        self.shuffle()

    def shuffle(self) -> None:
        self.places = self.generator.permutation(len(self.graphs)).tolist()
        self.shuffled = [self.graphs[place] for place in self.places]
        self.x = torch.cat([self.inputs[place] for place in self.places])
        self.y = torch.cat([self.labels[place] for place in self.places]) if self.labels else torch.empty(0)

    def run(self) -> Tensor:
        merged = weft.Graph.batch(self.shuffled)
        pushed: Tensor = self.model(merged, self.x, at=merged.roots if self.roots_only else None)
        return pushed

    @cached_property
    def node_types(self) -> tuple[tuple[NodeType, ...], Table]:
        """What the model's cells make of the vertices: found once, whatever the batch."""
        merged = weft.Graph.batch(self.graphs)
        call = VertexCall(self.model, merged, torch.cat(list(self.inputs)), None, None, None, EngineOptions.of({}))
        _, kinds, seen, _ = call.cells()
        return kinds.types, seen.table

    def planned(self) -> Plan:
        """What a step does to merge and plan its batch."""
        kinds, table = self.node_types
        merged = weft.Graph.batch(self.shuffled)
        return plan_tree(merged, tree_program(merged, kinds, Seen(merged, table), False), "auto", None)

    def plan(self) -> None:
        self.planned()

    def plan_back(self) -> None:
        """A plan, and the way by which gradients come back in training."""
        returns(self.planned())

    def in_order(self, rows: Tensor) -> Tensor:
        """Outputs brought back from the shuffled into the given order of the examples."""
        per_root = len(rows) == len(self.graphs)
        sizes = [1 if per_root else self.graphs[place].num_vertices for place in self.places]
        pieces = dict(zip(self.places, rows.split_with_sizes(sizes), strict=True))
        return torch.cat([pieces[place] for place in range(len(self.graphs))])


def weft_variants(
    model: nn.Module,
    graphs: Sequence[weft.Graph],
    inputs: Sequence[Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    labels: Sequence[Tensor] = (),
    roots_only: bool = False,
) -> list[Variant]:
    """weft itself, and merging and planning alone. `loss` gets outputs (of the roots only) and labels."""
    step = _WeftStep(model, graphs, inputs, labels, roots_only)

    return [
        Variant(WEFT, "weft", training(lambda: loss(step.run(), step.y)), step.run, step.in_order, step.shuffle),
        Variant(WAY_BACK, "planning", step.plan_back, step.plan_back, prepare=step.shuffle),
        Variant(PLANNING, "planning", step.plan, step.plan, prepare=step.shuffle),
    ]


def part(model: nn.Module, kind: type[T]) -> T:
    """The submodule of that class."""
    return next(module for module in model.modules() if isinstance(module, kind))


def readable(rows: Tensor) -> Tensor:
    """Rows of a buffer that is still being written: autograd needs them copied before it may keep them."""
    return rows.clone() if torch.is_grad_enabled() else rows


def squares(rows: Tensor, _: Tensor | None = None) -> Tensor:
    """A loss that reaches every output."""
    return rows.square().sum()
