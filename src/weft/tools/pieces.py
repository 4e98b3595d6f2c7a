"""What a plan runs, piece by piece: the cut of every type's cell, the gathers in front of it, and all batches in order.

A *batch* is one piece of a cell over one range of rows. Of each type, `before` and `after` are one batch each, over all rows;
`during` is one batch per step. A piece that neither computes something per row nor writes states is none. Numbers are those of
inference; what runs backward is counted for the case that every output has a gradient. A cell that is not traced counts
as few operations without a look inside.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import cast

import torch

from weft.graph.ops import is_product
from weft.graph.ports import port_of
from weft.plan.plan import NOT_A_SLICE, Plan, Read
from weft.plan.returns import steps_that_return
from weft.run.call import Call
from weft.run.code import CellCode
from weft.run.execution import Execution
from weft.run.indices import Indices
from weft.run.split import BACKWARD, FORWARD, Split


@dataclass(frozen=True)
class PieceCount:
    """How much a piece does: operations in it, matrix products among them, and over how many ranges of rows it runs."""

    operations: int
    products: int
    batches: int
    spared: int = 0
    """Products that steps do not do because the states they read need no gradient."""

    @property
    def all_products(self) -> int:
        return self.products * self.batches - self.spared


@dataclass(frozen=True, eq=False)
class Gather:
    """One state key that one port of a type reads: in how many pieces, and whether they are views of the arena."""

    read: Read
    key: str
    times: int
    is_view: bool


@dataclass(frozen=True, eq=False)
class TypePieces:
    """One type of a plan: its forward and backward pieces by stage, what it gathers, and how often rows are reordered."""

    type: int
    name: str
    group: int
    rows: int
    steps: int
    forward: dict[str, PieceCount]
    backward: dict[str, PieceCount]
    gathers: list[Gather]
    reorders: int
    fallback: str | None


@dataclass(frozen=True)
class Batch:
    """One piece of a type's cell over its rows `lo:hi`."""

    group: int
    type: int
    stage: str
    step: int
    lo: int
    hi: int

    @property
    def rows(self) -> int:
        return self.hi - self.lo


@dataclass(frozen=True)
class Arena:
    """The memory of one state key: its rows, bytes of one row, and how many rows each type writes, in the order of types."""

    key: str
    rows: int
    row_bytes: int
    written: tuple[tuple[int, int], ...]

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(eq=False)
class Pieces:
    """Everything that a planned call would run; types in the order of their groups."""

    plan: Plan
    types: dict[int, TypePieces] = field(default_factory=dict)
    arenas: list[Arena] = field(default_factory=list)

    @staticmethod
    def of(call: Call) -> Pieces:
        found = Pieces(call.plan)
        with torch.no_grad():
            inference = Execution(call)
        with torch.enable_grad():
            training = Execution(call)
        for t in (t for group in call.plan.groups for t in group.types):
            found.types[t] = _type_pieces(t, call, inference, training)
        found.arenas = _arenas(inference)
        return found

    def told(self, t: int) -> str:
        """A type's name, with its group where others have the same name."""
        kind = self.types[t]
        alone = sum(other.name == kind.name for other in self.types.values()) == 1
        return kind.name if alone else f"{kind.name} (group {kind.group + 1})"

    def batches(self) -> Iterator[Batch]:
        """All batches of the forward pass in the order in which they run."""
        for number, group in enumerate(self.plan.groups):
            yield from self._whole(number, "before")
            steps = zip(group.step_type.tolist(), group.step_lo.tolist(), group.step_hi.tolist(), strict=True)
            swept = {t for t in group.types if self.steps_of(t)}
            for step, (t, lo, hi) in enumerate(steps):
                if t in swept:
                    yield Batch(number, t, "during", step, lo, hi)
            yield from self._whole(number, "after")

    def _whole(self, number: int, stage: str) -> Iterator[Batch]:
        for t in self.plan.groups[number].types:
            if stage in self.types[t].forward:
                yield Batch(number, t, stage, 0, 0, self.types[t].rows)

    def steps_of(self, t: int) -> int:
        """In how many steps a type's recurrence runs; 0 if it has none."""
        piece = self.types[t].forward.get("during")
        return 0 if piece is None else piece.batches


def _type_pieces(t: int, call: Call, inference: Execution, training: Execution) -> TypePieces:
    plan = call.plan
    steps = len(plan.type_steps(t)[0])
    head = (t, plan.program.types[t].name, plan.group_of[t], len(plan.rows[t]), steps)
    code = inference.codes[t]
    forward = {stage: _count(code.split, stage, steps) for stage in FORWARD if _does_something(code, stage)}
    learning = training.codes[t].split
    backward = {stage: _count(learning, stage, steps) for stage in BACKWARD if learning.pieces[stage].gives}
    if "back" in backward:
        backward["back"] = replace(backward["back"], spared=_spared(t, plan, training))
    reason = call.cells[t].trace.fallback
    return TypePieces(*head, forward, backward, _gathers(inference.indices, t, code), _reorders(t, code, inference), reason)


def _does_something(code: CellCode, stage: str) -> bool:
    """Whether a piece computes something for its rows, or writes states; constants alone make no batch."""
    compiled = code.codes.get(stage)
    per_row = any(value.shape is None or value.row_dim is not None for value in code.split.pieces[stage].values)
    return compiled is not None and (per_row or bool(compiled.stores))


def _count(cut: Split, stage: str, steps: int) -> PieceCount:
    values = cut.pieces[stage].values
    products = sum(is_product(value.target) for value in values)
    return PieceCount(len(values), products, steps if stage in ("during", "back") else 1)


def _spared(t: int, plan: Plan, training: Execution) -> int:
    """Products that only serve to return gradients, at steps that return none."""
    code = training.codes[t]
    idle = steps_that_return(plan, t, training.learns).count(False)
    if not idle:
        return 0
    left_out = code.only_for_return(code.split)
    return idle * sum(is_product(value.target) for value in left_out)


def _gathers(indices: Indices, t: int, code: CellCode) -> list[Gather]:
    """What the forward pieces gather, by the same rules as the engine: views where every piece of a read is a slice."""
    plan = indices.plan
    reads = {read.port: read for read in plan.reads if read.type == t}
    found: list[Gather] = []
    pieces = code.split.pieces
    during = {id(value) for value in pieces["during"].takes}
    after = {id(value) for value in pieces["after"].takes}
    for name, value in code.split.tape.inputs.items():
        port, key = port_of(plan.program.types[t].ports, name), str(name[-1])
        taken = id(value) in during or id(value) in after or any(value is other for other in pieces["before"].takes)
        if port is None or not taken:
            continue
        read = reads[port]
        if read.value_class < 0:
            continue
        slices = read.kind != "sum" and bool((read.slices != NOT_A_SLICE).all())
        per_step = id(value) in during and name in code.role.recurrent_in
        if per_step:
            found.append(Gather(read, key, len(read.slices), slices))
        if not per_step or (slices and id(value) in after):
            found.append(Gather(read, key, 1, read.kind != "sum" and indices.read(read).whole_slice is not None))
    return found


def _reorders(t: int, code: CellCode, execution: Execution) -> int:
    """How many fed tensors and results are copied because the caller's rows are in another order than this type's."""
    taken = {id(value) for stage in FORWARD for value in code.split.pieces[stage].takes}
    kinds = [name[0] for name, value in code.split.tape.inputs.items() if id(value) in taken]
    fed = kinds.count("feed") if execution.indices.rows(t) is not None else 0
    edges = kinds.count("edge_feed") + kinds.count("slot_edge")
    names = [execution.call.cells[t].own_name(wanted.name) for wanted in execution.call.wanted]
    results = sum(name in code.split.outputs for name in names)
    return fed + edges + (results if execution.indices.nodes(t) is not None else 0)


def _arenas(execution: Execution) -> list[Arena]:
    plan = execution.plan
    found: dict[tuple[int, str], Arena] = {}
    for t, code in execution.codes.items():
        for name, spec in execution.call.cells[t].trace.outputs.items():
            if name in code.role.exchanged:
                output, key = cast(tuple[int, Hashable], name)
                number = plan.class_of[t, output]
                value_class = plan.classes[number]
                written = tuple((member, len(plan.rows[member])) for member, _ in value_class.members)
                row_bytes = torch.Size(spec.shape).numel() * spec.dtype.itemsize
                found[number, str(key)] = Arena(str(key), value_class.rows + int(value_class.has_empty), row_bytes, written)
    return list(found.values())
