"""The recipe of a forward pass on a CPU: a few numbers and addresses put together, and C functions called with them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from weft.graph.tape import Value
from weft.plan.plan import Group
from weft.run import spare
from weft.run.cpu.fed import Fed, stretches
from weft.run.cpu.jobs import TAKE, JobWriter
from weft.run.cpu.recipetypes import ForwardTypeText
from weft.run.cpu.rowtypes import address_of
from weft.run.cpu.walk import Walk
from weft.run.cpu.walking import in_runs
from weft.run.emit import Code
from weft.run.execution import Execution
from weft.run.gpu.launch import fresh_text
from weft.run.indices import Indices
from weft.run.inorder import home_of, places
from weft.run.recipe import NoRecipe
from weft.run.recipeforward import ForwardText, only_fed
from weft.run.recipetypes import TypeText
from weft.run.rowview import row_width
from weft.run.wanted import Wanted


class NativeWriter(JobWriter):
    """Memory comes from what earlier calls left."""

    def empty(self, sizes: Any, dtype: torch.dtype | None) -> str:
        assert dtype is not None
        bytes, shape = " * ".join(map(str, [*sizes, dtype.itemsize])), f"({''.join(f'{size}, ' for size in sizes)})"
        swiftly = fresh_text(sizes, dtype, self.bind(spare.laid_out, "memory"))
        return self.made(f"fresh({shape}, {dtype}, device) if {bytes} >= {spare.LEAST} else {swiftly}")


class NativeForwardText(ForwardText):
    """Writes the recipe of a forward pass that was just done on a CPU."""

    parameters = "tensors, records, device, fresh, chosen, feed"
    type_text = ForwardTypeText
    writer_class = NativeWriter
    writer: JobWriter

    def __init__(self, execution: Execution) -> None:
        super().__init__(execution)
        self.writer.is_picked = execution.call.feed is not None

    def run_whole(self, text: TypeText, code: Code, places: dict[str, str]) -> None:
        """A piece that only hands on what is fed takes it straight to its place, or leaves it where it is."""
        fed = only_fed(text, code)
        if self._only_turns(code) and isinstance(text, ForwardTypeText):
            text.views |= {value.name: value.args[0] for value in code.returns}
        elif fed is None:
            text.run_whole(code, places)
        elif not self._stays(text, fed):
            for value, name in fed.items():
                text.feed_into(name, places[value])

    def _only_turns(self, code: Code) -> bool:
        """Whether a piece only turns weights, which walks read as they lie. What backward needs is made as ever."""
        turned = [value for value in code.returns if value.target is torch.ops.aten.t.default and value.args[0] in code.takes]
        return not (self.execution.training or code.stores) and len(turned) == len(code.returns)

    def _stays(self, text: TypeText, fed: Mapping[str, Any]) -> bool:
        """Whether what is fed stays where it is, since only the first steps of one type read it; they are told."""
        names = [name for each in text.code.exchanged.values() for name in each]
        if self.execution.training or self.writer.is_picked or self._is_wanted(text):
            return False
        if [*text.code.codes] != ["before"] or len(names) != len(fed):
            return False
        places, outputs, type = [text.inputs[text.type, name] for name in fed.values()], {name[0] for name in names}, text.type
        if len(outputs) != 1 or not all(self.execution.tensors[place].is_contiguous() for place in places):
            return False
        (output,) = outputs
        readers = [read for read in self.plan.reads if read.value_class == self.plan.class_of[type, output]]
        reader = self.types[readers[0].type]
        if len(readers) != 1 or not isinstance(reader, ForwardTypeText) or not reader.may_read_fed(readers[0]):
            return False
        number, key = self.plan.reads.index(readers[0]), ("stretches", type, output)
        find = partial(stretches, number, type, output, reader.has_large_matrix())
        if not self.writer.ask(key, lambda indices: find(indices) is not None, by_rows=True):
            return False
        tensors = {name[1]: f"tensors[{place}]" for name, place in zip(names, places, strict=True)}
        reader.fed = Fed(readers[0].port, tensors, find, key)
        return True

    def _is_wanted(self, text: TypeText) -> bool:
        """Whether a result has rows of a type."""
        call = self.execution.call
        names = [call.cells[text.type].own_name(one.name) for one in call.wanted if text.type in one.types(self.plan)]
        return any(name in text.code.split.outputs for name in names)

    def sweep(self, number: int, group: Group) -> None:
        members = [text for t, text in self.types.items() if t in group.types and "during" in text.code.codes]
        for text in members:
            walk, type = text.code.codes["during"].walk, text.type
            if walk is None or not self.writer.ask(
                ("alone in steps", type), partial(_alone_in_steps, walk, type), by_rows=True
            ):
                raise NoRecipe("steps that run one by one")
        calls = [text.sweep(text.code.codes["during"]) for text in members if isinstance(text, ForwardTypeText)]
        if len(members) == 1:
            for one in calls[0]:
                self.writer.walk(one.walk, one.lines, one.scratch, one.most, one.steps)
            return
        types = [text.type for text in members]
        runs = self.writer.fact(("runs", number), partial(_runs, number, types))
        bound = [
            f"({self.writer.bind(one.walk.run, 'walk')}, ({', '.join(one.lines)}), {one.scratch}, ({', '.join(one.most)}))"
            for (one,) in calls
        ]
        self.writer.say(f"{self.writer.bind(go_in_turns)}({runs}, {', '.join(bound)})")

    def of_some(self, wanted: Wanted) -> str:
        number = next(i for i, one in enumerate(self.execution.call.wanted) if one is wanted)
        found = []
        for t in wanted.types(self.plan):
            name = self.execution.call.cells[t].own_name(wanted.name)
            value = self.types[t].code.split.outputs.get(name)
            if value is None or value.row_dim != 0:
                raise NoRecipe("a result that some nodes do not have")
            found.append((self.types[t], name, value))
        if not found:
            raise NoRecipe("the rows of no nodes")
        if len(found) == 1:
            return self._of_some_of_one(number, *found[0])
        sources = [f"{text.type}: {self._source(text, name, value)}" for text, name, value in found]
        return self.writer.let(f"{self.writer.bind(pick)}(chosen[{number}], {{{', '.join(sources)}}})")

    def _of_some_of_one(self, number: int, text: TypeText, name: Any, value: Value) -> str:
        """Rows of nodes of one type: the call says where their rows are listed, and how many there are."""
        width, type, through = row_width(value), text.type, "0"
        if width is None or value.dtype is None:
            raise NoRecipe("a result that is not rows")
        if name in text.code.role.exchanged:
            output, key = name
            rows = self.arenas[self.plan.class_of[type, output], key]
            through = self.writer.fact(
                ("at", "places", type, output),
                lambda indices: address_of(indices, ("places", type, output), indices.plan.class_row[type, output]),
            )
        else:
            rows = self.writer.dense(text.whole(value))
        out = JobWriter.empty(self.writer, [f"chosen[{number}][1]", *(value.shape or ())[1:]], value.dtype)
        where = f"chosen[{number}][0]", through, f"chosen[{number}][1]"
        self.writer.job(TAKE, f"{out}.data_ptr()", f"{rows}.data_ptr()", *where, width * value.dtype.itemsize)
        return out

    def _source(self, text: TypeText, name: Any, value: Value) -> str:
        """Where the rows of a type's output are, and their places there."""
        if name not in text.code.role.exchanged:
            return f"({text.whole(value)}, None)"
        type, (output, key) = text.type, name
        places = self.writer.fact(("places", type, output), lambda indices: indices.plan.class_row[type, output])
        return f"({self.arenas[self.plan.class_of[type, output], key]}, {places})"

    def of_many(self, given: list[tuple[TypeText, Any]]) -> str:
        """Rows of several types in the order of nodes: out of one arena, if all of them lie there."""
        texts = [text for text, _ in given]
        if not self.all_of(texts):
            raise NoRecipe("a result that some nodes do not have")
        home, where = home_of(self.plan, [(text.type, text.code, name) for text, name in given])
        if home is None:
            rows = self.writer.let(f"torch.cat([{', '.join(self.rows_of(text, name) for text, name in given)}])")
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
