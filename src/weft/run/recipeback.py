"""The recipe of a backward pass: as `Backward` does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from weft.graph.ports import port_of
from weft.graph.segments import bag_sum
from weft.graph.tape import Name, Value
from weft.plan.plan import NOT_A_SLICE, Group
from weft.run.backward import Backward
from weft.run.emit import Code
from weft.run.execution import Execution
from weft.run.indices import BackIndex, Indices
from weft.run.recipe import NoRecipe, Recipe, Writer
from weft.run.recipeforward import Saved
from weft.run.recipetypes import TypeText
from weft.run.wanted import Wanted


@dataclass(eq=False)
class Room:
    """Gradient rows that a port gives back, and how many there are."""

    rows: str
    count: str


@dataclass(frozen=True)
class Taken:
    """Rows that an index names; without one, rows in order."""

    rows: str
    index: str | None = None


@dataclass(eq=False)
class Way:
    """The way back from one reader."""

    key: tuple[int, int, int]
    room: Room


class BackText:
    """Writes the recipe of a backward pass that was just done."""

    parameters: str
    """Of the function that is written."""
    type_text: type[TypeText] = TypeText
    writer_class: type[Writer] = Writer
    take: Callable[..., Tensor]
    """Rows of one tensor, plus rows of another."""
    put: Callable[..., None]
    """Write rows to their places."""

    def __init__(
        self,
        execution: Execution,
        backward: Backward,
        before: Recipe,
        tensors: Sequence[Tensor],
        grads: Sequence[Tensor | None],
    ) -> None:
        self.execution, self.plan, self.backward = execution, execution.plan, backward
        self.tensors, self.grads = tensors, grads
        self.writer = self.writer_class(execution.indices, before)
        about: Saved = before.about
        names, arenas, self.first_steps = about.names, about.arenas, about.first_steps
        kept = [self.writer.fresh() for _ in (*names, *arenas)]
        if kept:
            self.writer.say(f"({', '.join(kept)},) = saved")
            self.writer.say("saved.clear()")
        self.arenas = dict(zip(arenas, kept[len(names) :], strict=True))
        inputs = execution.input_numbers()
        self.types = {t: self.type_text(self.writer, run, self.arenas, inputs) for t, run in backward.runs.items()}
        for variable, (t, name) in zip(kept, names, strict=False):
            self.types[t].store[name] = variable
        self.given: dict[tuple[int, Name], list[Taken]] = {}
        self.returned: dict[tuple[int, int, Name], Room] = {}
        self.gradients: dict[tuple[int, Name], str] = {}

    def recipe(self) -> Recipe:
        self._give()
        for number in range(len(self.plan.groups) - 1, -1, -1):
            group = self.plan.groups[number]
            for t in group.types:
                self._prepare(number, self.types[t])
            for t in group.types:
                self._whole(self.types[t], "late")
            if any("back" in self.backward.cut[t][1] for t in group.types):
                self.sweep(number, group)
            for t in group.types:
                self._nothing_left(self.types[t])
                self._whole(self.types[t], "sums")
            for t in group.types:
                self._collect(self.types[t])
        return self.writer.recipe(self.parameters, f"[{', '.join(self._results())}]")

    def sweep(self, number: int, group: Group) -> None:
        """The steps of a group that feeds itself."""
        raise NoRecipe("steps of a recurrence")

    def _give(self) -> None:
        """Gradients of the wanted outputs, by type and output."""
        cells = self.execution.call.cells
        for i, (wanted, grad) in enumerate(zip(self.execution.call.wanted, self.grads, strict=True)):
            if wanted.nodes is not None and grad is not None:
                self._give_some(i, wanted)
                continue
            for t, text in self.types.items() if grad is not None else ():
                name = cells[t].own_name(wanted.name)
                if name not in text.code.split.outputs:
                    continue
                self.given.setdefault((t, name), []).append(Taken(f"grads[{i}]", None if text.all_nodes() else text.nodes()))

    def _give_some(self, at: int, wanted: Wanted) -> None:
        """Gradients of some rows; the others' are zeros."""
        raise NotImplementedError

    def _prepare(self, number: int, text: TypeText) -> None:
        cut = self.backward.cut[text.type][0]
        taken = [value for piece in cut.pieces.values() for value in piece.takes]
        for name, value in cut.tape.inputs.items():
            if name[0] == "ct" and name[1] not in text.code.role.recurrent_out and any(value is one for one in taken):
                parts = self.outside(number, text, name[1])
                text.store[value.name] = self.sum_of(parts, text, value)

    def sum_of(self, parts: list[Taken], text: TypeText, value: Value) -> str:
        """The gradient of an output, from all parts of it."""
        return self.total(parts) or self.writer.let(f"{text.empty(value)}.zero_()")

    def _back(self, key: tuple[int, int, int]) -> BackIndex | None:
        """One way back, if it is there; it must be there, or not, in every plan of this recipe."""
        self.writer.ask(("way", key), lambda indices: indices.back(*key) is not None)
        return self.writer.indices.back(*key)

    def readers(self, number: int, text: TypeText, name: Any) -> list[tuple[int, Way]]:
        """The types that give gradients back to an output, each with the way."""
        found = []
        for run, read, port_name, _ in self.backward.readers(number, self.plan.class_of[text.type, name[0]], name[1]):
            self._back((read.type, read.port, number))
            room = self.returned.get((read.type, read.port, port_name))
            if room is not None:
                found.append((run.type, Way((read.type, read.port, number), room)))
        for read in self.plan.reads:
            if read.value_class == self.plan.class_of[text.type, name[0]]:
                self._back((read.type, read.port, number))
        return found

    def outside(self, number: int, text: TypeText, name: Any) -> list[Taken]:
        """Where the gradient of an output comes from, as far as that is outside the group."""
        parts = list(self.given.get((text.type, name), []))
        if name in text.code.role.exchanged:
            for reader, way in self.readers(number, text, name):
                if reader not in self.plan.groups[number].types:
                    parts.append(self._own_part(text, name[0], way, self._pulled(way)))
        return parts

    def total(self, parts: list[Taken]) -> str | None:
        """The sum of some rows, in order."""
        total: str | None = None
        take = self.writer.bind(self.take)
        pending = list(parts)
        while pending:
            one = pending.pop(0)
            if total is None and one.index is not None:
                more = pending.pop(0) if pending and pending[0].index is not None else None
                second = "" if more is None else f", {more.rows}, {more.index}"
                total = self.writer.let(f"{take}({one.rows}, {one.index}{second})")
            else:
                rows = one.rows if one.index is None else self.writer.let(f"{one.rows}.index_select(0, {one.index})")
                total = rows if total is None else self.writer.let(f"{total} + {rows}")
        return total

    def _pulled(self, way: Way) -> Taken:
        """The gradient of all class rows that a group wrote, from a reader outside it."""
        key, room, w = way.key, way.room, self.writer
        if w.ask(("slice", key), lambda indices: back_of(indices, key).slices[0] != NOT_A_SLICE):
            first = w.fact(("slice", key), lambda indices: back_of(indices, key).slices[0])
            many = w.fact(("many", key), lambda indices: back_of(indices, key).back.last - back_of(indices, key).back.first)
            return Taken(w.let(f"{room.rows}.narrow(0, {first}, {many})"))
        if w.ask(("all read", key), lambda indices: _all_read(back_of(indices, key))):
            return Taken(room.rows, self.single(way))
        w.ask(("one reader", key), partial(one_reader, key))  # decides where index and bounds come from
        index = w.fact(("back index", key), lambda indices: back_of(indices, key).index)
        bounds = w.fact(("back bounds", key), lambda indices: back_of(indices, key).bounds)
        return Taken(w.let(f"{w.bind(bag_sum)}({room.rows}, {index}, {bounds})"))

    def single(self, way: Way) -> str:
        return self.writer.fact(("single", way.key), lambda indices: back_of(indices, way.key).single)

    def _own_part(self, text: TypeText, output: int, way: Way, taken: Taken) -> Taken:
        """A type's rows among those that a group wrote."""
        type, key, w = text.type, way.key, self.writer

        if text.class_range(output):
            if w.ask(("whole", type, output, key), partial(is_whole, type, output, key)):
                return taken
            first = w.fact(("from", type, output, key), partial(first_within, type, output, key))
            if taken.index is None:
                return Taken(w.let(f"{taken.rows}.narrow(0, {first}, {text.n})"))
            return Taken(taken.rows, w.let(f"{taken.index}.narrow(0, {first}, {text.n})"))
        first = w.fact(("first of", key), lambda indices: back_of(indices, key).back.first)
        where = w.let(f"{text.class_rows(output)} - {first}")
        if taken.index is None:
            return Taken(taken.rows, where)
        return Taken(taken.rows, w.let(f"{taken.index}.index_select(0, {where})"))

    def _whole(self, text: TypeText, stage: str) -> None:
        code = self.backward.cut[text.type][1].get(stage)
        if code is not None:
            self.run_whole(text, code)

    def run_whole(self, text: TypeText, code: Code) -> None:
        """A piece over all rows of a type."""
        text.run_whole(code)

    def _nothing_left(self, text: TypeText) -> None:
        for value in self.backward.cut[text.type][0].pieces["sums"].takes:
            name: Any = text.code.input_name.get(value.name)
            if name is not None and name[0] == "ct" and value.name not in text.store:
                raise NoRecipe("gradients that only sums read")

    def _collect(self, text: TypeText) -> None:
        for name, value in self.backward.cut[text.type][0].gradients.items():
            rows = text.store.get(value.name)
            if rows is None:
                continue
            port = port_of(text.kinds, name)
            if port is None:
                self.gradients[text.type, name] = rows
            elif name not in text.code.role.recurrent_in:
                flat = self.writer.let(f"{rows}.flatten(0, 1)") if name[0] == "slots" else rows
                self.returned[text.type, port, name] = Room(flat, f"{flat}.shape[0]")

    # Results.

    def _results(self) -> list[str]:
        """The gradient of each of the call's tensors."""
        execution, found, w = self.execution, dict[int, str](), self.writer
        some_absent = any(cell.trace.fallback is not None for cell in execution.call.cells.values())
        for (t, name), rows in self.gradients.items():
            at = execution.kind.input(t, name)
            if at is None or not execution.needs[at]:
                continue
            grad = rows if name[0] == "capture" else self._to_fed_rows(self.types[t], name, rows, f"tensors[{at}]")
            if at in found:
                grad = w.let(f"{w.bind(_added)}({found[at]}, {grad})" if some_absent else f"{found[at]} + {grad}")
            found[at] = grad
        for at, tensor in enumerate(self.tensors):
            if id(tensor) in execution.must and execution.needs[at] and (at not in found or some_absent):
                zeros = f"torch.zeros_like(tensors[{at}])"
                found[at] = w.let(zeros if at not in found else f"{zeros} if {found[at]} is None else {found[at]}")
        return [found.get(at, "None") for at in range(len(execution.needs))]

    def _to_fed_rows(self, text: TypeText, name: Any, grad: str, tensor: str) -> str:
        w = self.writer
        if name[0] != "feed":
            raise NoRecipe("gradients of edges")
        if text.in_order():
            w.say(f"if {grad}.shape[0] != {tensor}.shape[0]:")
            w.say(
                f"    {grad} = torch.cat([{grad}, {grad}.new_zeros(({tensor}.shape[0] - {grad}.shape[0], *{grad}.shape[1:]))])"
            )
            return grad
        out = w.let(f"torch.zeros_like({tensor}, memory_format=torch.contiguous_format)")
        if text.is_fed():  # some rows may be fed twice
            w.say(f"{out}.index_add_(0, {text.fed_rows()}, {grad})")
        else:
            w.say(f"{w.bind(self.put)}({out}, {text.fed_rows()}, {grad})")
        return out


def _added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The sum of gradients of which some may not exist: what code does that depends on values may use no parameter."""
    return other if one is None else one if other is None else one + other


def back_of(indices: Indices, key: tuple[int, int, int]) -> BackIndex:
    found = indices.back(*key)
    assert found is not None
    return found


def one_reader(key: tuple[int, int, int], indices: Indices) -> bool:
    """Whether each row that comes back has one reader at most."""
    return back_of(indices, key).single is not None


def is_whole(type: int, output: int, key: tuple[int, int, int], indices: Indices) -> bool:
    """Whether a type's rows are all that come back."""
    back = back_of(indices, key).back
    return indices.class_rows(type, output) == (back.first, back.last)


def first_within(type: int, output: int, key: tuple[int, int, int], indices: Indices) -> int:
    """Where a type's rows begin among those that come back."""
    rows = indices.class_rows(type, output)
    assert isinstance(rows, tuple)
    return rows[0] - back_of(indices, key).back.first


def _all_read(back: BackIndex) -> bool:
    """Whether each row that comes back has exactly one reader."""
    return back.back.single is not None and back.back.count == len(back.back.single)
