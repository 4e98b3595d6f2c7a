"""The backward steps of a group that feeds itself, from the last to the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.graph.ports import port_of
from weft.graph.tape import Value
from weft.plan.plan import Group
from weft.plan.returns import steps_that_return
from weft.run.collect import Collecting
from weft.run.columns import Column, Listed, blocks
from weft.run.cpu.walking import Walking, in_runs, walkable
from weft.run.emit import Code
from weft.run.gather import Action, Gathering, addresses, through_index
from weft.run.gpu.backsweep import BackSweep
from weft.run.gpu.sweep import by_one_kernel
from weft.run.split import Split
from weft.run.typerun import TypeRun

if TYPE_CHECKING:
    from weft.run.backward import Backward


class BackSteps:
    """One group of one backward pass."""

    def __init__(self, backward: Backward, number: int, group: Group) -> None:
        self.backward, self.number, self.group = backward, number, group

    def run(self) -> None:
        """As kernels, or as C functions over all steps, or step by step."""
        types = [type for type in self.group.types if "back" in self.backward.cut[type][1]]
        ends = [end for type in types for end in self._make_room(self.backward.runs[type])]
        if ends:  # there may be steps that return nothing and only compute again what sums need
            torch._foreach_zero_(ends)
        runs = [self.backward.runs[type] for type in types]
        if by_one_kernel(runs[0]) and BackSweep(self.backward, self.number, self.group, runs).run():
            return
        if self._walk(runs):
            return
        steps = {type: self._steps(self.backward.runs[type]) for type in types}
        functions = {type: [code.run for code in self._codes(self.backward.runs[type])] for type in types}
        for type in reversed(self.group.step_type.tolist()):
            if type in steps:
                actions, columns = next(steps[type])
                for action in actions:
                    if action is not None:
                        action()
                functions[type].pop()(*columns)

    def _walk(self, runs: list[TypeRun]) -> bool:
        """Do all steps without Python in between; False where that cannot be."""
        codes = {run.type: self._codes(run) for run in runs}
        for run in runs:
            walks = {id(code): code.walk for code in codes[run.type]}
            if not walkable([run] * len(walks), walks.values()):
                return False
        collecting = {run.type: self._all_collecting(run) for run in runs}
        if not all(each.at_once for one in collecting.values() for each in one.values()):
            return False
        walking = {run.type: self._walking(run, collecting[run.type]) for run in runs}
        for type, steps in in_runs(self.group.step_type.tolist()[::-1]):
            if type in walking:
                mine = codes[type]
                for code, many in in_runs(mine[: -steps - 1 : -1]):
                    walking[type].go(len(mine) - 1, len(mine) - 1 - many, code.walk)
                    del mine[-many:]
        return True

    def _all_collecting(self, run: TypeRun) -> dict[str, Collecting]:
        """By name the gradients of recurrent outputs that the steps read."""
        cut, codes = self.backward.cut[run.type]
        found = {}
        for value in codes["back"].takes:
            name: Any = run.code.input_name.get(value.name)
            if name is not None and name[0] == "ct" and name[1] in run.code.role.recurrent_out:
                indexed = value.name in codes["back"].indexed
                found[value.name] = self.backward.collecting(self.number, run, name[1], value, cut, indexed, True)
        return found

    def _walking(self, run: TypeRun, collecting: dict[str, Collecting]) -> Walking:
        """What every step of a type touches."""
        cut, codes = self.backward.cut[run.type]
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
                run.store[value.name] = self.backward.empty(run, run.shape(value), value.dtype)
            walking.add(addresses(run, value))
        return walking.ready()

    def _codes(self, run: TypeRun) -> list[Code]:
        """The backward piece of each step: one that returns gradients to the states it read, unless these need none."""
        full = self.backward.cut[run.type][1]["back"]
        returning = steps_that_return(self.backward.plan, run.type, self.backward.learns)
        if all(returning):
            return [full] * len(returning)
        short = run.code.back_without_return(self.backward.present[run.type])
        return [full if one else short for one in returning]

    def _make_room(self, run: TypeRun) -> list[Tensor]:
        """Memory for the gradient rows that a type gives back, with a row at the end, to be zeros, for rows nobody read."""
        rooms: dict[str, Tensor] = {}
        for name, value in self.backward.cut[run.type][0].gradients.items():
            if name in run.code.role.recurrent_in:
                kind: Any = name[0]
                read = run.ports[port_of(run.kinds, name) or 0]
                if value.name in rooms:  # two inputs with one and the same gradient
                    self.backward.returned[run.type, read.port, name] = rooms[value.name]
                    continue
                shape = value.shape or ()
                rows = run.rows * read.width if kind == "slots" else run.rows if kind == "sum" else run.edges
                tail = [size for size in shape[2 if kind == "slots" else 1 :] if isinstance(size, int)]
                room = self.backward.empty(run, (rows + 1, *tail), value.dtype)
                self.backward.returned[run.type, read.port, name] = rooms[value.name] = room
                known = run.store.get(value.name)
                if known is not None:
                    room[:-1].view(known.shape).copy_(known)
                run.store[value.name] = room[:-1].view(run.rows, read.width, *tail) if kind == "slots" else room[:-1]
        return [room[-1:] for room in rooms.values()]

    def _steps(self, run: TypeRun) -> Iterator[tuple[Sequence[Action | None], tuple[Any, ...]]]:
        """From the last step to the first: what to do before it, and the arguments of its piece."""
        cut, codes = self.backward.cut[run.type]
        code = codes["back"]
        sources: list[Column | Collecting] = []
        for value in code.takes:
            sources += self._taken(run, value, cut, code)
        for value in code.stores:
            if value.name not in run.store:
                run.store[value.name] = self.backward.empty(run, run.shape(value), value.dtype)
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

    def _taken(self, run: TypeRun, value: Value, cut: Split, code: Code) -> Sequence[Column | Collecting]:
        """Where a backward step finds a value: gradients of recurrent outputs are collected, some states gathered again."""
        name: Any = run.code.input_name.get(value.name)
        indexed, by_address = value.name in code.indexed, value.name in code.addresses
        if name is not None and name[0] == "ct" and name[1] in run.code.role.recurrent_out:
            return [self.backward.collecting(self.number, run, name[1], value, cut, indexed, by_address)]
        at = run.recurrent(value)
        if at is not None and indexed:
            return through_index(run, at, value)
        if at is not None and value.name not in run.store:
            return [Gathering(run, at, value, value in cut.pieces["sums"].takes, by_address)]
        return [addresses(run, value) if by_address else run.column(value)]
