"""The recipe of a forward pass: as `run_forward` does it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from weft.graph.tape import Name, Value
from weft.plan.plan import Group
from weft.run.emit import Code
from weft.run.execution import Execution
from weft.run.indices import Indices
from weft.run.recipe import NoRecipe, Recipe, Writer
from weft.run.recipetypes import TypeText
from weft.run.views import is_free
from weft.run.wanted import Wanted

if TYPE_CHECKING:
    from weft.run.gpu.firststep import FirstStep


@dataclass(frozen=True, eq=False)
class Saved:
    """What a forward pass keeps for its backward pass: values by type and name, then arenas by class and key."""

    names: list[tuple[int, str]]
    arenas: list[tuple[int, Name]]
    seen: bool
    """Whether the caller sees some of that memory, and might write to it: then autograd must watch over it."""
    first_steps: dict[int, FirstStep]
    """By group what is known of its first step, where that was not like the others."""


class ForwardText:
    """Writes the recipe of a forward pass that was just done."""

    parameters: str
    """Of the function that is written."""
    type_text: type[TypeText] = TypeText
    writer_class: type[Writer] = Writer

    def __init__(self, execution: Execution) -> None:
        self.execution, self.plan = execution, execution.plan
        self.writer = self.writer_class(execution.indices)
        self.arenas: dict[tuple[int, Name], str] = {}
        self.first_steps: dict[int, FirstStep] = {}
        self.seen = False
        inputs = execution.input_numbers()
        self.types = {t: self.type_text(self.writer, run, self.arenas, inputs) for t, run in execution.runs.items()}

    def recipe(self) -> Recipe:
        self._make_arenas()
        for number, group in enumerate(self.plan.groups):
            for t in group.types:
                self._whole(self.types[t], "before")
            if any("during" in self.types[t].code.codes for t in group.types):
                self.sweep(number, group)
            for t in group.types:
                self._whole(self.types[t], "after")
        outputs = [self._rows(wanted) for wanted in self.execution.call.wanted]
        names, saved = self._saved(outputs)
        text = f"[{', '.join(outputs)}], ({', '.join(saved)}{',' * (len(saved) == 1)})"
        return self.writer.recipe(self.parameters, text, Saved(names, list(self.arenas), self.seen, self.first_steps))

    def run_whole(self, text: TypeText, code: Code, places: dict[str, str]) -> None:
        """A piece over all rows of a type."""
        text.run_whole(code, places)

    def sweep(self, number: int, group: Group) -> None:
        """The steps of a group that feeds itself."""
        raise NotImplementedError

    def of_some(self, wanted: Wanted) -> str:
        """Rows of the nodes that the call names."""
        raise NotImplementedError

    def of_many(self, given: list[tuple[TypeText, Any]]) -> str:
        """Rows of all nodes in order, where several types have them."""
        raise NotImplementedError

    def _make_arenas(self) -> None:
        for (number, key), arena in self.execution.arenas.items():
            self.arenas[number, key] = self.make_arena(number, key, arena)
            if self.writer.ask(("empty", number), partial(_has_empty, number)):
                self.writer.say(f"{self.arenas[number, key]}[-1].zero_()")

    def make_arena(self, number: int, key: Name, arena: Tensor) -> str:
        """Memory for the rows of a class."""
        rows = self.writer.fact(("class", number), partial(_arena_rows, number))
        return self.writer.empty([rows, *arena.shape[1:]], arena.dtype)

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
        self.run_whole(text, code, places)
        text.store |= places
        for arena, where, rows in late:
            self.writer.say(f"{arena}.index_copy_(0, {where}.long(), {rows})")
        if text.code.has_twins:
            raise NoRecipe("two outputs that are one value")

    # Results.

    def _rows(self, wanted: Wanted) -> str:
        """The rows of an output: of the nodes asked for, or of all in order."""
        if wanted.nodes is not None:
            return self.of_some(wanted)
        cells = self.execution.call.cells
        names = {t: cells[t].own_name(wanted.name) for t in self.types}
        given = [(text, names[t]) for t, text in self.types.items() if names[t] in text.code.split.outputs]
        if len(given) == 1 and self.all_of([given[0][0]]):
            return self._of_one_type(*given[0])
        return self.of_many(given)

    def all_of(self, texts: list[TypeText]) -> bool:
        """Whether these types have all nodes between them."""
        types = [text.type for text in texts]
        if len(types) == len(self.types):
            return True
        return self.writer.ask(
            ("all", *types), lambda indices: sum(len(indices.plan.rows[t]) for t in types) == indices.plan.program.num_nodes
        )

    def _of_one_type(self, text: TypeText, name: Any) -> str:
        t, rows = text.type, self.rows_of(text, name)
        if self.writer.ask(("all in order", t), lambda indices: indices.nodes(t) is None):
            self.seen = True
            return self.writer.let(f"{rows}.detach()")
        order = self.writer.fact("row of node", lambda indices: indices.row_of_node())
        return self.writer.let(f"{rows}.index_select(0, {order})")

    def rows_of(self, text: TypeText, name: Any) -> str:
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

    def in_result(self, number: int, value: str | None, outputs: list[str]) -> str | None:
        """The result that has all rows that backward needs: of a type's value, or of the arena of a class."""
        return None

    def _saved(self, outputs: list[str]) -> tuple[list[tuple[int, str]], list[str]]:
        """What backward needs, by type and name; and the variables, arenas at the end."""
        names: list[tuple[int, str]] = []
        saved: list[str] = []
        if self.execution.training:
            for t, text in self.types.items():
                for value in text.code.saved:
                    if text.has(value):
                        names.append((t, value.name))
                        saved.append(self.in_result(t, value.name, outputs) or text.whole(value))
            saved += [self.in_result(number, None, outputs) or arena for (number, _), arena in self.arenas.items()]
        return names, saved


def only_fed(text: TypeText, code: Code) -> dict[str, Any] | None:
    """The inputs of a piece that does nothing but hand them on, by the name of what it stores; None for one that does more."""
    fed = {value.name: text.code.input_name.get(value.name, ("",)) for value in code.stores}
    return None if code.returns or any(name[0] != "feed" for name in fed.values()) else fed


def _has_empty(number: int, indices: Indices) -> bool:
    return indices.plan.classes[number].has_empty


def _arena_rows(number: int, indices: Indices) -> int:
    return indices.plan.classes[number].rows + indices.plan.classes[number].has_empty
