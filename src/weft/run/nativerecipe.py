"""The recipe of a forward pass on a CPU: a few numbers and addresses put together, and C functions called with them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.graph.tape import Name, Value
from weft.plan.plan import Group, Read
from weft.run.emit import Code
from weft.run.forward import kept
from weft.run.indices import Indices
from weft.run.inorder import home_of, places
from weft.run.recipe import NoRecipe, Writer
from weft.run.recipeforward import ForwardText
from weft.run.recipetypes import TypeText
from weft.run.typerun import MANY_STEPS, TypeRun
from weft.run.walk import Walk, dense
from weft.run.walking import in_runs
from weft.run.wanted import Wanted

if TYPE_CHECKING:
    from weft.run.nativeexecution import NativeExecution

CONSTANT = "0, 0"
"""The end of a line whose number is the same in every step."""


class NativeWriter(Writer):
    """Memory comes from what earlier calls left."""

    def empty(self, sizes: Any, dtype: torch.dtype | None) -> str:
        return self.let(f"fresh(({', '.join(map(str, sizes))},), {dtype}, device)")


class NativeTypeText(TypeText):
    """One node type within a recipe on a CPU."""

    def __init__(self, writer: Writer, run: TypeRun, arenas: dict[tuple[int, Name], str], inputs: dict[Any, int]) -> None:
        super().__init__(writer, run, arenas, inputs)
        self.run = run

    def run_whole(self, code: Code, destinations: dict[str, str] | None = None) -> None:
        walk: Walk | None = code.walk
        if walk is None or not self._alone(walk):
            super().run_whole(code, destinations)
            return
        lines = [line for value in walk.takes for line in self._given(value, walk)]
        for value in walk.into:
            place = (destinations or {}).get(value.name)
            if place is None:
                sizes = ", ".join(map(str, self.sizes(value)))
                place = self.store[value.name] = self.writer.let(f"torch.empty(({sizes},), dtype={value.dtype})")
            lines.append(f"{place}.data_ptr(), {CONSTANT}")
        bounds = "0" if self.bag is None else f"{self.bounds(self.bag)}.data_ptr()"
        lines += [f"{number}, {CONSTANT}" for number in (self.n, self.e, bounds)]
        self.writer.say(f"{self.writer.bind(go)}(1, {self._call(walk, lines, self.n, self.e)})")
        for value, base in walk.views:
            self.store[value.name] = self.writer.let(f"{self.whole(base)}.t()")

    def _alone(self, walk: Walk) -> bool:
        type, many = self.type, None if self.bag is None else self.reads[self.bag]

        def question(indices: Indices) -> bool:
            plan = indices.plan
            return walk.alone(max(len(plan.rows[type]), 0 if many is None else len(plan.reads[many].index)))

        return self.writer.ask(("alone", type, walk.numbers), question)

    def _call(self, walk: Walk, lines: list[str], rows: str, edges: str) -> str:
        """The arguments of a walk. They belong in one line, so that every variable lives until the function is done."""
        room = self.writer.bind(walk.room)
        scratch = self.writer.let(f"fresh(({room}({rows}, {edges}),), {walk.dtype}, device)")
        return f"{self.writer.bind(walk.run, 'walk')}, ({', '.join(lines)}), {scratch}, ({rows}, {edges})"

    def _given(self, value: Value, walk: Walk, turn: bool = False) -> list[str]:
        """The lines of a value that exists for all rows."""
        found = self.run.whole(value)
        name = self.whole(value)
        if value.name not in walk.matrices:
            return [f"{self._dense(value)}.data_ptr(), {CONSTANT}"]
        matrix, turned, apart = dense(found.t() if walk.matrices[value.name] else found)
        if turn:
            shape = tuple(found.shape)
            name = self.writer.let(f"fresh({shape}, {found.dtype}, device).copy_({name})")
            turned, apart = False, max(shape[1], 1)
        elif matrix.data_ptr() != found.data_ptr():
            raise NoRecipe("a matrix that is neither dense by rows nor by columns")
        return [f"{name}.data_ptr(), {CONSTANT}", f"{int(turned)}, {CONSTANT}", f"{apart}, {CONSTANT}"]

    def _dense(self, value: Value) -> str:
        """The variable of a value, copied if its memory is not contiguous."""
        name = self.whole(value)
        return name if self.run.whole(value).is_contiguous() else self.writer.let(f"{name}.contiguous()")

    # Sweeps.

    def sweep(self, code: Code) -> str:
        """The arguments of the walk over this type's steps."""
        walk: Walk = code.walk
        lines: list[str] = []
        for value in code.takes:
            lines += self._taken(value, code, walk)
        lines += [self._place(value) for value in code.stores]
        sizes = self._cuts("sizes", lambda cuts: cuts.sizes.address)
        lines.append(f"0, 1, {sizes}")
        most_e = "0"
        if self.bag is None:
            lines += [f"0, {CONSTANT}"] * 2
        else:
            edges = self.fact("edge sizes", lambda indices, read: indices.edge_cuts(read).sizes.address, self.bag)
            most_e = self.fact("most edges", lambda indices, read: indices.edge_cuts(read).most, self.bag)
            lines += [f"0, 1, {edges}", self._column(lambda indices, read: indices.seg(read)[3], "seg bounds", self.bag, 4)]
        return self._call(walk, lines, self._cuts("most", lambda cuts: cuts.most), most_e)

    def steps(self) -> str:
        return self._cuts("steps", len)

    def _cuts(self, what: str, of: Any) -> str:
        type = self.type
        return self.writer.fact(("cuts", what, type), lambda indices: of(indices.step_cuts(type)))

    def _column(self, of: Any, what: str, port: int, apart: int) -> str:
        """The line of a tensor that is cut into the steps' parts."""
        tensor = self.fact(what, lambda indices, read: of(indices, read).tensor, port)
        starts = self.fact(f"starts of {what}", lambda indices, read: of(indices, read).cuts.offsets.address, port)
        return f"{tensor}.data_ptr(), {apart}, {starts}"

    def _taken(self, value: Value, code: Code, walk: Walk) -> list[str]:
        at = self.run.recurrent(value)
        if at is not None:
            port = at.read.port
            if value.name in code.indexed:
                arena = self.arenas[at.read.value_class, self.code.input_name[value.name][-1]]
                return [f"{arena}.data_ptr(), {CONSTANT}", self._index(port)]
            return self._gathered(value, at.read)
        if self.code.input_name.get(value.name) == ("seg",):
            assert self.bag is not None
            return [self._column(lambda indices, read: indices.seg(read)[2], "seg", self.bag, 8)]
        if value.rows is None:
            type = self.type
            copies = value.target is torch.ops.aten.t.default and self.writer.ask(
                ("narrow", type), lambda indices: indices.step_cuts(type).narrow >= MANY_STEPS
            )
            return self._given(value, walk, copies)
        name, tensor = self._dense(value), self.run.whole(value)
        return [f"{name}.data_ptr(), {_apart(tensor)}, {self._starts(value.rows.kind)}"]

    def _starts(self, kind: str) -> str:
        if kind == "n":
            return self._cuts("offsets", lambda cuts: cuts.offsets.address)
        assert self.bag is not None
        return self.fact("edge offsets", lambda indices, read: indices.edge_cuts(read).offsets.address, self.bag)

    def _index(self, port: int) -> str:
        index = self.fact("index32", lambda indices, read: indices.read(read).index.int(), port)
        starts = self.fact("index starts", lambda indices, read: indices.read(read).cuts.offsets.address, port)
        return f"{index}.data_ptr(), 4, {starts}"

    def _gathered(self, value: Value, read: Read) -> list[str]:
        key, port, kind = self.code.input_name[value.name][-1], read.port, read.kind
        arena, tensor = self.arenas[read.value_class, key], self.run.arenas[read.value_class, key]
        nothing = f"0, {CONSTANT}"
        if kind != "sum" and self.ask("slices", lambda indices, read: indices.read(read).all_slices, port):
            starts = self.fact("slices", lambda indices, read: indices.read(read).starts.address, port)
            return [f"{arena}.data_ptr(), {_apart(tensor)}, {starts}", nothing, nothing]
        if kept(self.run, value):
            whole = self.store[value.name] = self.empty(value)
            to = f"{whole}.data_ptr(), {_apart(self.run.store[value.name])}, {self._starts('e' if kind == 'edges' else 'n')}"
        else:
            most = (
                self._cuts("most", lambda cuts: cuts.most)
                if kind == "sum"
                else self.fact("most gathered", lambda indices, read: indices.read(read).cuts.most, port)
            )
            to = f"{self.writer.empty([most, *tensor.shape[1:]], tensor.dtype)}.data_ptr(), {CONSTANT}"
        lines = [to, f"{arena}.data_ptr(), {CONSTANT}", self._index(port)]
        if kind == "sum":
            lines.append(self._column(lambda indices, read: indices.read(read).bounds, "sum bounds", port, 4))
        return lines

    def _place(self, value: Value) -> str:
        """Where steps write a value."""
        names = self.code.exchanged.get(id(value), [])
        if not names:
            self.store[value.name] = self.empty(value)
        elif self.class_range(names[0][0]):
            self.store[value.name] = self.class_part(*names[0])
        else:
            type, (output, key) = self.type, names[0]
            self.in_class[value.name] = output, key
            starts = self.writer.fact(
                ("class starts", type, output), lambda indices: indices.class_starts(type, output).address
            )
            number = self.plan.class_of[type, output]
            return f"{self.arenas[number, key]}.data_ptr(), {_apart(self.run.arenas[number, key])}, {starts}"
        kind = value.rows.kind if value.rows is not None else "n"
        return f"{self.store[value.name]}.data_ptr(), {_apart(self.run.store[value.name])}, {self._starts(kind)}"


def _apart(tensor: torch.Tensor) -> int:
    return tensor.stride(0) * tensor.element_size()


class NativeForwardText(ForwardText):
    """Writes the recipe of a forward pass that was just done on a CPU."""

    parameters = "tensors, records, device, fresh, parts"

    def __init__(self, execution: NativeExecution) -> None:
        self.execution: Any = execution
        self.plan = execution.plan
        self.writer = NativeWriter(execution.indices)
        self.arenas = {}
        self.seen = False
        inputs = execution.input_numbers()
        self.types = {t: NativeTypeText(self.writer, run, self.arenas, inputs) for t, run in execution.runs.items()}

    def _sweep(self, number: int, group: Group) -> None:
        members = [text for t, text in self.types.items() if t in group.types and "during" in text.code.codes]
        for text in members:
            walk, type = text.code.codes["during"].walk, text.type
            if walk is None or not self.writer.ask(("alone in steps", type), partial(_alone_in_steps, walk, type)):
                raise NoRecipe("steps that run one by one")
        calls = [text.sweep(text.code.codes["during"]) for text in members if isinstance(text, NativeTypeText)]
        if len(members) == 1 and isinstance(members[0], NativeTypeText):
            self.writer.say(f"{self.writer.bind(go)}({members[0].steps()}, {calls[0]})")
            return
        types = [text.type for text in members]
        runs = self.writer.fact(("runs", number), partial(_runs, number, types))
        self.writer.say(f"{self.writer.bind(go_in_turns)}({runs}, {', '.join(f'({call})' for call in calls)})")

    def _rows(self, wanted: Wanted) -> str:
        if wanted.nodes is None:
            return super()._rows(wanted)
        number = next(i for i, one in enumerate(self.execution.call.wanted) if one is wanted)
        sources = []
        for t in wanted.types(self.plan):
            text = self.types[t]
            name = self.execution.call.cells[t].own_name(wanted.name)
            value = text.code.split.outputs.get(name)
            if value is None or value.row_dim != 0:
                raise NoRecipe("a result that some nodes do not have")
            sources.append(f"{t}: {self._source(text, name, value)}")
        if not sources:
            raise NoRecipe("the rows of no nodes")
        return self.writer.let(f"{self.writer.bind(pick)}(parts[{number}], {{{', '.join(sources)}}})")

    def _source(self, text: TypeText, name: Any, value: Value) -> str:
        """Where the rows of a type's output are, and their places there."""
        if name not in text.code.role.exchanged:
            return f"({text.whole(value)}, None)"
        type, (output, key) = text.type, name
        places = self.writer.fact(("places", type, output), lambda indices: indices.plan.class_row[type, output])
        return f"({self.arenas[self.plan.class_of[type, output], key]}, {places})"

    def _of_many(self, given: list[tuple[TypeText, Any]]) -> str:
        """Rows of several types in the order of nodes: out of one arena, if all of them lie there."""
        texts = [text for text, _ in given]
        if not self._all_of(texts):
            raise NoRecipe("a result that some nodes do not have")
        home, where = home_of(self.plan, [(text.type, text.code, name) for text, name in given])
        if home is None:
            rows = self.writer.let(f"torch.cat([{', '.join(self._rows_of(text, name) for text, name in given)}])")
        else:
            rows = self.arenas[home]
        order = self.writer.fact(
            ("order", where), lambda indices: indices.kept(("order", where), lambda: places(indices.plan, where))
        )
        return self.writer.let(f"{rows}.index_select(0, {order})")


def _alone_in_steps(walk: Walk, type: int, indices: Indices) -> bool:
    return walk.alone(indices.step_cuts(type).most)


def _runs(number: int, types: list[int], indices: Indices) -> list[tuple[int, int]]:
    """Which of some types run in turn, and how many steps of each."""
    steps = indices.plan.groups[number].step_type.tolist()
    return [(types.index(type), many) for type, many in in_runs(steps) if type in types]


def go(steps: int, run: Any, lines: Sequence[int], scratch: Tensor, most: tuple[int, int]) -> None:
    """All steps of one type."""
    run(array("q", lines), 0, steps, scratch, most)


def go_in_turns(runs: Sequence[tuple[int, int]], *members: Any) -> None:
    """The steps of several types as they follow each other."""
    ready = [(run, array("q", lines), scratch, most) for run, lines, scratch, most in members]
    done = [0] * len(ready)
    for number, many in runs:
        run, lines, scratch, most = ready[number]
        run(lines, done[number], done[number] + many, scratch, most)
        done[number] += many


def pick(parts: Sequence[tuple[int, Any, Any]], sources: Mapping[int, tuple[Tensor, Any]]) -> Tensor:
    """The rows of some nodes: of each type where in the result, and which of its rows."""
    found = []
    for t, at, rows in parts:
        tensor, places = sources[t]
        found.append((at, tensor.index_select(0, torch.from_numpy(rows if places is None else places[rows]))))
    if len(found) == 1:
        return found[0][1]
    first = found[0][1]
    out = first.new_empty((sum(len(part) for _, part in found), *first.shape[1:]))
    for at, part in found:
        out[torch.from_numpy(at)] = part
    return out
