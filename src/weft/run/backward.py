"""The backward sweep: groups in reverse; in each what is known beforehand, the steps from last to first, and the sums.

Gradients of states return along the plan's `Return`s: each class row collects the gradient rows of those who read it, in a
fixed order. What comes from later groups, or from the caller, is collected once for all rows; what comes from the same group
is collected step by step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.graph.ports import input_of, port_of
from weft.graph.tape import Name, Value
from weft.plan.plan import Group, Plan, Read
from weft.plan.returns import steps_that_return
from weft.run.collect import Collecting, pull_all
from weft.run.columns import Column, Listed, blocks
from weft.run.emit import Code
from weft.run.gather import Action, Gathering, addresses, through_index
from weft.run.gpu.backsweep import BackSweep
from weft.run.gpu.sweep import Walk, by_one_kernel
from weft.run.indices import BackIndex
from weft.run.somerows import SomeRows
from weft.run.spare import Spare
from weft.run.split import Split
from weft.run.typerun import TypeRun
from weft.run.walking import Walking, in_runs, run_piece, walkable

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
                self._sweep(number, group)
            for type in group.types:
                self._collect_recurrent(number, self.runs[type])
                self._whole(self.runs[type], "sums")
            for type in group.types:
                self._collect(self.runs[type])
        for spare, tensor in self.taken:
            spare.give_back([tensor], self.gradients.values())

    def _empty(self, run: TypeRun, shape: Sequence[int], dtype: torch.dtype | None) -> Tensor:
        """Memory for gradients that stay inside."""
        assert dtype is not None
        tensor = run.code.spare.take(shape, dtype, run.indices.device)
        self.taken.append((run.code.spare, tensor))
        return tensor

    def _reached(self, number: int, group: Group) -> set[int]:
        """The types of a group to which some gradient comes at all: from outside, or from others that one comes to."""
        reached: set[int] = set()
        while True:
            more = {
                type
                for type in group.types
                if type not in reached
                and any(self._arrives(number, self.runs[type], name, reached) for name in self._names(type))
            }
            if not more:
                return reached
            reached |= more

    def _names(self, type: int) -> frozenset[Name]:
        return self.runs[type].code.role.outputs

    def _arrives(self, number: int, run: TypeRun, name: Name, reached: set[int]) -> bool:
        if (run.type, name) in self.given:
            return True
        return name in run.code.role.exchanged and self._has_readers(number, run, name, reached)

    def _prepare(self, number: int, run: TypeRun, reached: set[int]) -> None:
        """Find out which outputs have a gradient at all, and pick the pieces for that case."""
        present = {name for name in self._names(run.type) if self._arrives(number, run, name, reached)}
        known = {name[1] for name in run.code.tape.inputs if name[0] == "ct"}
        self.present[run.type] = frozenset(present & known)
        self.cut[run.type] = run.code.with_cotangents(self.present[run.type])
        cut = self.cut[run.type][0]
        for name, value in cut.tape.inputs.items():
            if name[0] == "ct" and name[1] not in run.code.role.recurrent_out and self._takes(run, value):
                run.store[value.name] = self._outside(number, run, name[1], value)

    def _takes(self, run: TypeRun, value: Value) -> bool:
        return any(value is taken for piece in self.cut[run.type][0].pieces.values() for taken in piece.takes)

    def _readers(self, number: int, value_class: int, key: Name) -> list[tuple[TypeRun, Read, Name, BackIndex]]:
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
                if ("grad", name) in run.code.tape.outputs:
                    kept.append((run, read, name, back))
            self.feeds[number, key, value_class] = kept
        return kept

    def _has_readers(self, number: int, run: TypeRun, name: Any, reached: set[int]) -> bool:
        value_class = self.plan.class_of[run.type, name[0]]
        for reader, read, port_name, _ in self._readers(number, value_class, name[1]):
            if (reader.type in reached and port_name in reader.code.role.gradients) or (
                read.type,
                read.port,
                port_name,
            ) in self.returned:
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
            for _, read, port_name, back in self._readers(number, value_class, key):
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
                collecting = self._collecting(number, run, name[1], value, cut)
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

    # The steps of a group on a cycle.

    def _sweep(self, number: int, group: Group) -> None:
        types = [type for type in group.types if "back" in self.cut[type][1]]
        torch._foreach_zero_([end for type in types for end in self._make_room(self.runs[type])])
        runs = [self.runs[type] for type in types]
        if by_one_kernel(runs[0]) and BackSweep(self, number, group, runs).run():
            return
        if self._walk(number, group, runs):
            return
        steps = {type: self._steps(number, self.runs[type]) for type in types}
        functions = {type: [code.run for code in self._codes(self.runs[type])] for type in types}
        for type in reversed(group.step_type.tolist()):
            if type in steps:
                actions, columns = next(steps[type])
                for action in actions:
                    if action is not None:
                        action()
                functions[type].pop()(*columns)

    def _walk(self, number: int, group: Group, runs: list[TypeRun]) -> bool:
        """Do all steps without Python in between; False where that cannot be."""
        codes = {run.type: self._codes(run) for run in runs}
        for run in runs:
            walks = {id(code): code.walk for code in codes[run.type]}
            if not walkable([run] * len(walks), walks.values()):
                return False
        collecting = {run.type: self._all_collecting(number, run) for run in runs}
        if not all(each.at_once for one in collecting.values() for each in one.values()):
            return False
        walking = {run.type: self._walking(run, collecting[run.type]) for run in runs}
        for type, steps in in_runs(group.step_type.tolist()[::-1]):
            if type in walking:
                mine = codes[type]
                for code, many in in_runs(mine[: -steps - 1 : -1]):
                    walking[type].go(len(mine) - 1, len(mine) - 1 - many, code.walk)
                    del mine[-many:]
        return True

    def _all_collecting(self, number: int, run: TypeRun) -> dict[str, Collecting]:
        """By name the gradients of recurrent outputs that the steps read."""
        cut, codes = self.cut[run.type]
        found = {}
        for value in codes["back"].takes:
            name: Any = run.code.input_name.get(value.name)
            if name is not None and name[0] == "ct" and name[1] in run.code.role.recurrent_out:
                indexed = value.name in codes["back"].indexed
                found[value.name] = self._collecting(number, run, name[1], value, cut, indexed, True)
        return found

    def _walking(self, run: TypeRun, collecting: dict[str, Collecting]) -> Walking:
        """What every step of a type touches."""
        cut, codes = self.cut[run.type]
        code = codes["back"]
        walking = Walking(run, code.walk)
        for value in code.takes:
            at = run.recurrent(value)
            if value.name in collecting:
                walking.add(*map(Listed, collecting[value.name].both(0, len(run.cuts))[0]))
                walking.alive.append(collecting[value.name])
            elif at is not None and value.name in code.indexed:
                walking.add(*through_index(run, at, value))
            elif at is not None:
                walking.add_gathered(value, at, value in cut.pieces["sums"].takes)
            else:
                walking.add_given(value)
        for value in code.stores:
            if value.name not in run.store:
                run.store[value.name] = self._empty(run, run.shape(value), value.dtype)
            walking.add(addresses(run, value))
        return walking.ready()

    def _codes(self, run: TypeRun) -> list[Code]:
        """The backward piece of each step: one that returns gradients to the states it read, unless these need none."""
        full = self.cut[run.type][1]["back"]
        returning = steps_that_return(self.plan, run.type, self.learns)
        if all(returning):
            return [full] * len(returning)
        short = run.code.back_without_return(self.present[run.type])
        return [full if one else short for one in returning]

    def _make_room(self, run: TypeRun) -> list[Tensor]:
        """Memory for the gradient rows that a type gives back, with a row at the end, to be zeros, for rows nobody read."""
        rooms: dict[str, Tensor] = {}
        for name, value in self.cut[run.type][0].gradients.items():
            if name in run.code.role.recurrent_in:
                kind: Any = name[0]
                read = run.ports[port_of(run.kinds, name) or 0]
                if value.name in rooms:  # two inputs with one and the same gradient
                    self.returned[run.type, read.port, name] = rooms[value.name]
                    continue
                shape = value.shape or ()
                rows = run.rows * read.width if kind == "slots" else run.rows if kind == "sum" else run.edges
                tail = [size for size in shape[2 if kind == "slots" else 1 :] if isinstance(size, int)]
                room = self._empty(run, (rows + 1, *tail), value.dtype)
                self.returned[run.type, read.port, name] = rooms[value.name] = room
                known = run.store.get(value.name)
                if known is not None:
                    room[:-1].view(known.shape).copy_(known)
                run.store[value.name] = room[:-1].view(run.rows, read.width, *tail) if kind == "slots" else room[:-1]
        return [room[-1:] for room in rooms.values()]

    def _steps(self, number: int, run: TypeRun) -> Iterator[tuple[Sequence[Action | None], tuple[Any, ...]]]:
        """From the last step to the first: what to do before it, and the arguments of its piece."""
        cut, codes = self.cut[run.type]
        code = codes["back"]
        sources: list[Column | Collecting] = []
        for value in code.takes:
            sources += self._taken(number, run, value, cut, code)
        for value in code.stores:
            if value.name not in run.store:
                run.store[value.name] = self._empty(run, run.shape(value), value.dtype)
            sources.append(addresses(run, value) if value.name in code.addresses else run.column(value))
        sources += run.tail()
        for first, last in reversed(list(blocks(len(run.cuts)))):
            columns: list[Sequence[Any]] = []
            actions: list[Sequence[Action | None]] = []
            for source in sources:
                if isinstance(source, Collecting):
                    items, doing = source.both(first, last)
                    columns += items
                    actions.append(doing)
                    continue
                columns.append(source.block(first, last))
                if isinstance(source, Gathering) and source.acts:
                    actions.append(source.actions(first, last))
            doing_first = list(zip(*actions, strict=True)) if actions else [()] * (last - first)
            yield from zip(reversed(doing_first), reversed(list(zip(*columns, strict=True))), strict=True)

    def _taken(self, number: int, run: TypeRun, value: Value, cut: Split, code: Code) -> Sequence[Column | Collecting]:
        """Where a backward step finds a value: gradients of recurrent outputs are collected, some states gathered again."""
        name: Any = run.code.input_name.get(value.name)
        indexed, by_address = value.name in code.indexed, value.name in code.addresses
        if name is not None and name[0] == "ct" and name[1] in run.code.role.recurrent_out:
            return [self._collecting(number, run, name[1], value, cut, indexed, by_address)]
        at = run.recurrent(value)
        if at is not None and indexed:
            return through_index(run, at, value)
        if at is not None and value.name not in run.store:
            return [Gathering(run, at, value, value in cut.pieces["sums"].takes, by_address)]
        return [addresses(run, value) if by_address else run.column(value)]

    def _collecting(
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
            for reader, read, port_name, back in self._readers(number, self.plan.class_of[run.type, output], key)
            if reader.type in group.types and (read.type, read.port, port_name) in self.returned
        ]
