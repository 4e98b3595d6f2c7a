"""The recipe of a forward pass on a GPU, for plans whose recurrences all run as kernels."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from weft.graph.tape import Name, Value
from weft.plan.plan import Group
from weft.run.emit import Code
from weft.run.gpu.apart import asked_few_rows, rows_apart, step_call
from weft.run.gpu.chosen import numbers_of
from weft.run.gpu.firststep import FirstStep, first_step
from weft.run.gpu.forwardsweep import exchanged, is_fed_on, kept_sum, prepared
from weft.run.gpu.launch import fresh_behind
from weft.run.gpu.launchtext import Apart, say_launches
from weft.run.gpu.rowcopy import put_rows, take_rows
from weft.run.recipe import NoRecipe, Recipe
from weft.run.recipeforward import ForwardText, only_fed
from weft.run.recipetypes import TypeText
from weft.run.wanted import Wanted


class GpuForwardText(ForwardText):
    """Writes the recipe of a forward pass that was just done on a GPU."""

    parameters = "tensors, chosen, records, device, stream, fresh"

    def recipe(self) -> Recipe:
        found = {number: first_step(self, number, group) for number, group in enumerate(self.plan.groups)}
        self.first_steps = {number: first for number, first in found.items() if first is not None}
        return super().recipe()

    def make_arena(self, number: int, key: Name, arena: Tensor) -> str:
        """Leaves that a first step takes from elsewhere have no memory in it."""
        first = next((one for one in self.first_steps.values() if one.read.value_class == number), None)
        if first is None:
            return super().make_arena(number, key, arena)
        reader, output = self.types[first.reader], dict(self.plan.classes[number].members)[first.reader]
        sizes = f"({', '.join(map(str, (reader.n, *arena.shape[1:])))},)"
        every, alone = self.writer.fresh(), self.writer.fresh()
        bound = self.writer.bind(fresh_behind)
        self.writer.say(f"({every}, {alone}) = {bound}(fresh, {self.types[first.source].n}, {sizes}, {arena.dtype})")
        reader.parts[output, key] = alone
        return every

    def in_result(self, number: int, value: str | None, outputs: list[str]) -> str | None:
        """States that the caller receives are not kept again; autograd watches over them."""
        for first in self.first_steps.values():
            if (first.reader, first.state) == (number, value) or (first.read.value_class, None) == (number, value):
                self.seen = True
                return outputs[first.result]
        return None

    def run_whole(self, text: TypeText, code: Code, places: dict[str, str]) -> None:
        """A piece that only hands on what is fed takes it straight to its place, or leaves it to a first step."""
        if any(first.source == text.type for first in self.first_steps.values()):
            return
        fed = only_fed(text, code)
        if fed is None:
            text.run_whole(code, places)
            return
        for value, name in fed.items():
            text.feed_into(name, places[value], self.writer.bind(take_rows))

    def sweep(self, number: int, group: Group) -> None:
        first = self.types[group.types[0]]
        fits = asked_few_rows(self.writer, first)
        found = prepared(number, group, self.execution.runs) if fits else None
        if found is None:
            raise NoRecipe("steps that run one by one")
        members = [self.types[t] for t in group.types]
        for text in members:
            self._make_places(text)
        code, piece = first.code.codes["during"], first.code.split.pieces["during"]
        least = rows_apart(self.writer, first, number, piece)
        apart = None if least is None else Apart(least, [step_call(self.writer, first, code, {})])
        special = self.first_steps.get(number)
        if special is not None:
            self._first_step(special, first, code)
        begin = int(special is not None)
        say_launches(self.writer, number, found, members, lambda text, source: text.argument(source), apart, begin)

    def _first_step(self, first: FirstStep, text: TypeText, code: Code) -> None:
        source, states = self.types[first.source], text.code.role.recurrent_in
        read = [value for value in code.takes if text.code.input_name.get(value.name) in states]
        rows = first.rows(source)
        known = {value.name: first.leaves(source, value, "0", rows) for value in read}
        self.writer.say(f"lo, hi = 0, {rows}")
        self.writer.say(step_call(self.writer, text, code, known))

    def _make_places(self, text: TypeText) -> None:
        run, code = self.execution.runs[text.type], text.code.codes["during"]
        for value in code.takes:
            if kept_sum(run, value):
                text.store[value.name] = text.empty(value)
        for value in code.stores:
            if is_fed_on(run, value):
                text.fed_on[value.name] = text.whole(value)
            names = exchanged(run, value)
            if not names:
                over = text.code.split.laid_over.get(value.name)
                fits = over is not None and over.readers | {value.name} <= code.fused
                text.store[value.name] = text.store[over.kept] if over is not None and fits else text.empty(value)
            elif text.class_range(names[0][0]):
                text.store[value.name] = text.class_part(*names[0])
            else:
                text.in_class[value.name] = names[0]

    def of_some(self, wanted: Wanted) -> str:
        """Some rows; which ones, the call says."""
        call, types = self.execution.call, wanted.types(self.plan)
        if not types:
            raise NoRecipe("the rows of no nodes")
        which = [numbers_of(call, wanted, t) for t in types]
        parts = [self._some(t, call.cells[t].own_name(wanted.name), one["rows"]) for t, one in zip(types, which, strict=True)]
        if len(parts) == 1:
            return parts[0]
        value = self.types[types[0]].code.split.outputs[call.cells[types[0]].own_name(wanted.name)]
        count = self.writer.let(" + ".join(f"{one['places']}.shape[0]" for one in which))
        return self._put(
            [count, *_tail(value)], value, [f"{one['places']}, {part}" for one, part in zip(which, parts, strict=True)]
        )

    def _some(self, t: int, name: Any, rows: str) -> str:
        """Some rows of one type."""
        text = self.types[t]
        if name not in text.code.split.outputs or text.code.split.outputs[name].row_dim != 0:
            raise NoRecipe("nodes without a result")
        if name in text.code.role.exchanged:
            output, key = name
            return self.writer.let(f"{self.arenas[self.plan.class_of[t, output], key]}.index_select(0, {rows})")
        return self.writer.let(f"{text.whole(text.code.split.outputs[name])}.index_select(0, {rows})")

    def _put(self, sizes: list[str | int], value: Value, parts: list[str], zeros: bool = False) -> str:
        """Rows at their places, two parts at a time."""
        out = self.writer.empty(sizes, value.dtype)
        if zeros:
            self.writer.say(f"{out}.zero_()")
        for first in range(0, len(parts), 2):
            self.writer.say(f"{self.writer.bind(put_rows)}({out}, {', '.join(parts[first : first + 2])})")
        return out

    def of_many(self, given: list[tuple[TypeText, Any]]) -> str:
        """Each type's rows go to the places of its nodes."""
        value = given[0][0].code.split.outputs[given[0][1]]
        if any(text.code.split.outputs[name].row_dim != 0 for text, name in given):
            raise NoRecipe("a result whose rows are not its first dimension")
        count = self.writer.fact("nodes", lambda indices: indices.plan.program.num_nodes)
        zeros = not self.all_of([text for text, _ in given])
        parts = [f"{text.nodes()}, {self.rows_of(text, name)}" for text, name in given]
        return self._put([count, *_tail(value)], value, parts, zeros)


def _tail(value: Value) -> list[int]:
    """The sizes of one row."""
    return [size for size in (value.shape or ())[1:] if isinstance(size, int)]
