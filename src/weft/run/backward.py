"""The backward sweep: groups in reverse; in each what is known beforehand, the steps from last to first, and the sums.

Gradients of states return along the plan's `Return`s: each class row collects the gradient rows of those who read it, in a
fixed order. What comes from later groups, or from the caller, is collected once for all rows; what comes from the same group
is collected step by step.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import torch
from torch import Tensor

from weft.graph.ports import input_of, port_of
from weft.graph.tape import Name, Value
from weft.plan.plan import Group, Plan, Read
from weft.run.backsteps import BackSteps
from weft.run.collect import Collecting, pull_all
from weft.run.columns import blocks
from weft.run.cpu.walking import run_piece
from weft.run.emit import Code
from weft.run.gpu.backsweep import BackSweep
from weft.run.gpu.sweep import Walk
from weft.run.indices import BackIndex
from weft.run.somerows import SomeRows
from weft.run.spare import Spare
from weft.run.split import Split
from weft.run.typerun import TypeRun

Reached = Set[tuple[int, Name]]
"""Outputs, by (type, output name), to which a gradient comes."""

Given = dict[tuple[int, Name], Tensor | SomeRows]
"""Gradients of outputs from outside, by (type, output name), rows in type order."""


class Backward:
    """One backward pass over a plan."""

    def __init__(self, plan: Plan, runs: dict[int, TypeRun], given: Given, learns: dict[int, bool]) -> None:
        self.plan, self.runs, self.given, self.learns = plan, runs, given, learns
        self.returned: dict[tuple[int, int, Name], Tensor] = {}
        """Gradient rows that each (type, port, key) gives back, one tensor over all rows."""
        self.cut: dict[int, tuple[Split, dict[str, Code]]] = {}
        self.present: dict[int, frozenset[Name]] = {}
        self.gradients: dict[tuple[int, Name], Tensor] = {}
        """Gradients of captured and fed tensors, by (type, input name)."""
        self.taken: list[tuple[Spare, Tensor]] = []
        """Memory that other backward passes may have afterwards."""
        self.feeds: dict[tuple[int, Name, int], list[tuple[TypeRun, Read, Name, BackIndex]]] = {}
        self.swept: dict[int, tuple[Walk, BackSweep]] = {}
        """Groups whose steps ran as kernels."""

    def run(self) -> None:
        for number in range(len(self.plan.groups) - 1, -1, -1):
            group = self.plan.groups[number]
            reached = self._reached(number, group)
            for type in group.types:
                self._prepare(number, self.runs[type], reached)
            for type in group.types:
                self._whole(self.runs[type], "late")
            if any("back" in self.cut[type][1] for type in group.types):
                BackSteps(self, number, group).run()
            for type in group.types:
                self._collect_recurrent(number, self.runs[type])
                self._whole(self.runs[type], "sums")
            for type in group.types:
                self._collect(self.runs[type])
        for spare, tensor in self.taken:
            spare.give_back([tensor], self.gradients.values())

    def empty(self, run: TypeRun, shape: Sequence[int], dtype: torch.dtype | None) -> Tensor:
        """Memory for gradients that stay inside."""
        assert dtype is not None
        tensor = run.code.spare.take(shape, dtype, run.indices.device)
        self.taken.append((run.code.spare, tensor))
        return tensor

    def _reached(self, number: int, group: Group) -> Reached:
        """The outputs of a group to which some gradient comes at all: from outside, or from others that one comes to."""
        left = {(type, name) for type in group.types for name in self.runs[type].code.role.outputs}
        reached: set[tuple[int, Name]] = set()
        while more := {(type, name) for type, name in left if self._arrives(number, self.runs[type], name, reached)}:
            reached |= more
            left -= more
        return reached

    def _arrives(self, number: int, run: TypeRun, name: Name, reached: Reached) -> bool:
        if (run.type, name) in self.given:
            return True
        return name in run.code.role.exchanged and self._has_readers(number, run, name, reached)

    def _prepare(self, number: int, run: TypeRun, reached: Reached) -> None:
        """Find out which outputs have a gradient at all, and pick the pieces for that case."""
        known = {name[1] for name in run.code.tape.inputs if name[0] == "ct"}
        self.present[run.type] = frozenset(name for name in run.code.role.outputs & known if (run.type, name) in reached)
        self.cut[run.type] = run.code.with_cotangents(self.present[run.type])
        cut = self.cut[run.type][0]
        for name, value in cut.tape.inputs.items():
            if name[0] == "ct" and name[1] not in run.code.role.recurrent_out and self._takes(run, value):
                run.store[value.name] = self._outside(number, run, name[1], value)

    def _takes(self, run: TypeRun, value: Value) -> bool:
        return any(value is taken for piece in self.cut[run.type][0].pieces.values() for taken in piece.takes)

    def readers(self, number: int, value_class: int, key: Name) -> list[tuple[TypeRun, Read, Name, BackIndex]]:
        """Everyone who read rows of this class that this group wrote, and has a gradient for them."""
        kept = self.feeds.get((number, key, value_class))
        if kept is None:
            kept = []
            for read in self.plan.reads:
                if read.value_class != value_class:
                    continue
                back = self.runs[read.type].indices.back(read.type, read.port, number)
                if back is None:
                    continue
                run = self.runs[read.type]
                name = input_of(run.kinds[read.port], key)
                if run.code.tape.outputs.get(("grad", name)) is not None:
                    kept.append((run, read, name, back))
            self.feeds[number, key, value_class] = kept
        return kept

    def _has_readers(self, number: int, run: TypeRun, name: Any, reached: Reached) -> bool:
        value_class = self.plan.class_of[run.type, name[0]]
        for reader, read, port_name, _ in self.readers(number, value_class, name[1]):
            if (read.type, read.port, port_name) in self.returned:
                return True
            if port_name in reader.code.role.gradients:
                if any((reader.type, output) in reached for output in reader.code.routes[port_name]):
                    return True
        return False

    def _outside(self, number: int, run: TypeRun, name: Any, value: Value) -> Tensor:
        """The gradient of an output over all rows, as far as it comes from outside the group; zeros if nothing does."""
        total = self._outside_or_none(number, run, name)
        if isinstance(total, SomeRows):
            return total.dense()
        return run.empty(value).zero_() if total is None else total

    def _outside_or_none(self, number: int, run: TypeRun, name: Any) -> Tensor | SomeRows | None:
        total = self.given.get((run.type, name))
        if name in run.code.role.exchanged:
            output, key = name
            value_class = self.plan.class_of[run.type, output]
            for _, read, port_name, back in self.readers(number, value_class, key):
                rows = self.returned.get((read.type, read.port, port_name))
                if rows is None or read.type in self.plan.groups[number].types:
                    continue
                part = pull_all(rows, back)
                where = run.indices.class_rows(run.type, output)
                if isinstance(where, tuple):
                    part = part[where[0] - back.back.first : where[1] - back.back.first]
                else:
                    part = part.index_select(0, where - back.back.first)
                total = part if total is None else (total.dense() if isinstance(total, SomeRows) else total) + part
        return total

    def _collect_recurrent(self, number: int, run: TypeRun) -> None:
        """Gradients of recurrent outputs that only the sums read: they were not collected step by step."""
        cut = self.cut[run.type][0]
        for value in cut.pieces["sums"].takes:
            name: Any = run.code.input_name.get(value.name)
            if name is not None and name[0] == "ct" and value.name not in run.store:
                collecting = self.collecting(number, run, name[1], value, cut)
                for first, last in blocks(len(run.cuts)):
                    for action in collecting.both(first, last)[1]:
                        if action is not None:
                            action()

    def _whole(self, run: TypeRun, stage: str) -> None:
        code = self.cut[run.type][1].get(stage)
        if code is not None:
            run_piece(run, code, {})

    def _collect(self, run: TypeRun) -> None:
        """Hand on the gradients of a type's inputs."""
        for name, value in self.cut[run.type][0].gradients.items():
            tensor = run.store.get(value.name)
            if tensor is None:
                continue
            kind = name[0]
            port = port_of(run.kinds, name)
            if port is not None:
                read = run.ports[port]
                if name not in run.code.role.recurrent_in:
                    flat = tensor.flatten(0, 1) if kind == "slots" else tensor
                    self.returned[run.type, read.port, name] = flat
            else:
                self.gradients[run.type, name] = tensor
        run.store.clear()

    def collecting(
        self,
        number: int,
        run: TypeRun,
        name: Any,
        value: Value,
        cut: Split,
        indexed: bool = False,
        by_address: bool = False,
    ) -> Collecting:
        """The gradient of a recurrent output: from outside, plus what the group's own readers return."""
        outside, inner = self._outside_or_none(number, run, name), self._inside(number, run, name)
        keep = any(value is taken for taken in cut.pieces["sums"].takes)
        return Collecting(run, value, name[0], outside, inner, keep, indexed, by_address)

    def parts_of_gradient(self, number: int, run: TypeRun, name: Any) -> tuple[Tensor | None, list[tuple[Tensor, BackIndex]]]:
        """Where the gradient of a recurrent output comes from: outside the group, and the group's own readers."""
        outside = self._outside_or_none(number, run, name)
        return outside.dense() if isinstance(outside, SomeRows) else outside, self._inside(number, run, name)

    def _inside(self, number: int, run: TypeRun, name: Any) -> list[tuple[Tensor, BackIndex]]:
        """Gradient rows that readers of the same group give back, with the way back."""
        output, key = name
        group = self.plan.groups[number]
        return [
            (self.returned[read.type, read.port, port_name], back)
            for reader, read, port_name, back in self.readers(number, self.plan.class_of[run.type, output], key)
            if reader.type in group.types and (read.type, read.port, port_name) in self.returned
        ]
