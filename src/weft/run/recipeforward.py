"""The recipe of a forward pass: as `run_forward` does it, for plans whose recurrences all run as kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.graph.tape import Name, Value
from weft.plan.plan import Group
from weft.run.gpu.apart import rows_apart, step_call
from weft.run.gpu.forwardsweep import exchanged, kept_sum, prepared
from weft.run.gpu.launchtext import Apart, say_launches
from weft.run.gpu.rowcopy import put_rows
from weft.run.gpu.sweep import few_rows
from weft.run.indices import Indices
from weft.run.recipe import NoRecipe, Recipe, Writer
from weft.run.recipetypes import TypeText
from weft.run.upload import as_tensor
from weft.run.views import is_free
from weft.run.wanted import Wanted

if TYPE_CHECKING:
    from weft.run.gpu.execution import GpuExecution


@dataclass(frozen=True, eq=False)
class Saved:
    """What a forward pass keeps for its backward pass: values by type and name, then arenas by class and key."""

    names: list[tuple[int, str]]
    arenas: list[tuple[int, Name]]
    seen: bool
    """Whether the caller sees some of that memory, and might write to it: then autograd must watch over it."""


class ForwardText:
    """Writes the recipe of a forward pass that was just done."""

    parameters = "tensors, chosen, records, device, stream, fresh"

    def __init__(self, execution: GpuExecution) -> None:
        self.execution, self.plan = execution, execution.plan
        self.writer = Writer(execution.indices)
        self.arenas: dict[tuple[int, Name], str] = {}
        self.seen = False
        inputs = execution.input_numbers()
        self.types = {t: TypeText(self.writer, run, self.arenas, inputs) for t, run in execution.runs.items()}

    def recipe(self) -> Recipe:
        self._make_arenas()
        for number, group in enumerate(self.plan.groups):
            for t in group.types:
                self._whole(self.types[t], "before")
            if any("during" in self.types[t].code.codes for t in group.types):
                self._sweep(number, group)
            for t in group.types:
                self._whole(self.types[t], "after")
        outputs = [self._rows(wanted) for wanted in self.execution.call.wanted]
        names, saved = self._saved()
        text = f"[{', '.join(outputs)}], ({', '.join(saved)}{',' * (len(saved) == 1)})"
        return self.writer.recipe(self.parameters, text, Saved(names, list(self.arenas), self.seen))

    def _make_arenas(self) -> None:
        for (number, key), arena in self.execution.arenas.items():
            rows = self.writer.fact(("class", number), partial(_arena_rows, number))
            self.arenas[number, key] = self.writer.empty([rows, *arena.shape[1:]], arena.dtype)
            if self.writer.ask(("empty", number), partial(_has_empty, number)):
                self.writer.say(f"{self.arenas[number, key]}[-1].zero_()")

    def _whole(self, text: TypeText, stage: str) -> None:
        code = text.code.codes.get(stage)
        if code is None:
            return
        places: dict[str, str] = {}
        late: list[tuple[str, str, str]] = []
        for value in code.stores:
            for output, key in text.code.exchanged.get(id(value), [])[:1]:
                if text.class_range(output):
                    places[value.name] = text.class_part(output, key)
                else:
                    places[value.name] = text.empty(value)
                    arena = self.arenas[self.plan.class_of[text.type, output], key]
                    late.append((arena, text.class_rows(output), places[value.name]))
        text.run_whole(code, places)
        text.store |= places
        for arena, where, rows in late:
            self.writer.say(f"{arena}.index_copy_(0, {where}.long(), {rows})")
        if text.code.has_twins:
            raise NoRecipe("two outputs that are one value")

    def _sweep(self, number: int, group: Group) -> None:
        first = self.types[group.types[0]]
        fits = self.writer.ask(("few rows", first.type), lambda indices: few_rows(first.code, indices.plan, first.type))
        found = prepared(number, group, self.execution.runs) if fits else None
        if found is None:
            raise NoRecipe("steps that run one by one")
        members = [self.types[t] for t in group.types]
        for text in members:
            self._make_places(text)
        code, piece = first.code.codes["during"], first.code.split.pieces["during"]
        least = rows_apart(self.writer, first, number, piece)
        apart = None if least is None else Apart(least, [step_call(self.writer, first, code, {})])
        say_launches(self.writer, number, found, members, lambda text, source: text.argument(source), apart)

    def _make_places(self, text: TypeText) -> None:
        run, code = self.execution.runs[text.type], text.code.codes["during"]
        for value in code.takes:
            if kept_sum(run, value):
                text.store[value.name] = text.empty(value)
        for value in code.stores:
            names = exchanged(run, value)
            if not names:
                text.store[value.name] = text.empty(value)
            elif text.class_range(names[0][0]):
                text.store[value.name] = text.class_part(*names[0])
            else:
                text.in_class[value.name] = names[0]

    # Results.

    def _rows(self, wanted: Wanted) -> str:
        """The rows of an output: of the nodes asked for, or of all in order."""
        if wanted.nodes is not None:
            return self._of_some(wanted)
        cells = self.execution.call.cells
        names = {t: cells[t].own_name(wanted.name) for t in self.types}
        given = [(text, names[t]) for t, text in self.types.items() if names[t] in text.code.split.outputs]
        if len(given) == 1 and self._all_of([given[0][0]]):
            return self._of_one_type(*given[0])
        return self._of_many(given)

    def _of_some(self, wanted: Wanted) -> str:
        """Some rows of one type; which ones, the call says."""
        at = next(number for number, one in enumerate(self.execution.call.wanted) if one is wanted)
        types = wanted.types(self.plan)
        if len(types) != 1:
            raise NoRecipe("rows of nodes of several types")
        t, text, bound = types[0], self.types[types[0]], self.writer.bind(as_tensor)
        name = self.execution.call.cells[t].own_name(wanted.name)
        if name not in text.code.split.outputs:
            raise NoRecipe("nodes without a result")
        if name in text.code.role.exchanged:
            output, key = name
            rows = self.writer.fact(("class row", t, output), lambda indices: indices.plan.class_row[t, output])
            arena = self.arenas[self.plan.class_of[t, output], key]
            return self.writer.let(f"{arena}.index_select(0, {bound}({rows}[chosen[{at}]], device))")
        whole = text.whole(text.code.split.outputs[name])
        return self.writer.let(f"{whole}.index_select(0, {bound}(chosen[{at}], device))")

    def _all_of(self, texts: list[TypeText]) -> bool:
        """Whether these types have all nodes between them."""
        types = [text.type for text in texts]
        if len(types) == len(self.types):
            return True
        return self.writer.ask(
            ("all", *types), lambda indices: sum(len(indices.plan.rows[t]) for t in types) == indices.plan.program.num_nodes
        )

    def _of_one_type(self, text: TypeText, name: Any) -> str:
        t, rows = text.type, self._rows_of(text, name)
        if self.writer.ask(("all in order", t), lambda indices: indices.nodes(t) is None):
            self.seen = True
            return self.writer.let(f"{rows}.detach()")
        order = self.writer.fact("row of node", lambda indices: indices.row_of_node())
        return self.writer.let(f"{rows}.index_select(0, {order})")

    def _of_many(self, given: list[tuple[TypeText, Any]]) -> str:
        """Each type's rows go to the places of its nodes."""
        value = given[0][0].code.split.outputs[given[0][1]]
        if any(text.code.split.outputs[name].row_dim != 0 for text, name in given):
            raise NoRecipe("a result whose rows are not its first dimension")
        count = self.writer.fact("nodes", lambda indices: indices.plan.program.num_nodes)
        out = self.writer.empty([count, *[size for size in (value.shape or ())[1:] if isinstance(size, int)]], value.dtype)
        if not self._all_of([text for text, _ in given]):
            self.writer.say(f"{out}.zero_()")
        parts = [f"{text.nodes()}, {self._rows_of(text, name)}" for text, name in given]
        for first in range(0, len(parts), 2):
            self.writer.say(f"{self.writer.bind(put_rows)}({out}, {', '.join(parts[first : first + 2])})")
        return out

    def _rows_of(self, text: TypeText, name: Any) -> str:
        value: Value = text.code.split.outputs[name]
        if name in text.code.role.exchanged:
            output, key = name
            if text.class_range(output):
                return text.class_part(output, key)
            return self.writer.let(
                f"{self.arenas[self.plan.class_of[text.type, output], key]}.index_select(0, {text.class_rows(output)})"
            )
        rows = text.whole(value)
        owned = is_free(value) or value.name in text.code.input_name
        return self.writer.let(f"{rows}.clone()") if owned else rows

    def _saved(self) -> tuple[list[tuple[int, str]], list[str]]:
        """What backward needs, by type and name; and the variables, arenas at the end."""
        names: list[tuple[int, str]] = []
        saved: list[str] = []
        if self.execution.training:
            for t, text in self.types.items():
                for value in text.code.saved:
                    if text.has(value):
                        names.append((t, value.name))
                        saved.append(text.whole(value))
            saved += self.arenas.values()
        return names, saved


def _has_empty(number: int, indices: Indices) -> bool:
    return indices.plan.classes[number].has_empty


def _arena_rows(number: int, indices: Indices) -> int:
    return indices.plan.classes[number].rows + indices.plan.classes[number].has_empty
