"""The recipe of a backward pass on a CPU, for plans without recurrences: what flushes of recorded code mostly are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from weft.graph.tape import Name, Value
from weft.plan.plan import NOT_A_SLICE
from weft.run import spare
from weft.run.cpu.jobs import ALL, COLLECT, NUMBERS, SPREAD, ZERO, JobWriter, width_of
from weft.run.cpu.rowtypes import CONSTANT, NativeTypeText, address_of
from weft.run.cpu.walk import Walk, dense
from weft.run.gpu.launch import fresh_text
from weft.run.recipe import NoRecipe, Recipe, Writer
from weft.run.recipeback import BackText, Taken, Way, back_of, first_within, is_whole, one_reader
from weft.run.recipetypes import TypeText
from weft.run.rowview import row_width
from weft.run.typerun import TypeRun
from weft.run.wanted import Wanted


@dataclass(frozen=True)
class Part(Taken):
    """Rows of a tensor: all from some row on, or those that an index names, or sums of them. Texts of numbers but for `rows`.

    Rows from `none` on do not exist: nobody reads what an index has there. Where it says how `many` there are, they are not
    taken but given: to the rows that the index names.
    """

    index: str = "0"
    bounds: str = "0"
    skip: str = "0"
    none: str = str(ALL)
    many: str | None = None


class BackTypeText(NativeTypeText):
    """One node type within a backward recipe on a CPU."""

    def __init__(self, writer: Writer, run: TypeRun, arenas: dict[tuple[int, Name], str], inputs: dict[Any, int]) -> None:
        super().__init__(writer, run, arenas, inputs)
        self.run = run

    def given(self, value: Value, walk: Walk) -> list[str]:
        name, w = self.whole(value), self.writer
        if value.name not in walk.matrices:
            return [f"{w.dense(name)}.data_ptr(), {CONSTANT}"]
        if (self.type, self.code.input_name.get(value.name)) in self.inputs:
            tensor = self.run.whole(value)
            matrix, turned, apart = dense(tensor.t() if walk.matrices[value.name] else tensor)
            if matrix.data_ptr() == tensor.data_ptr():
                return [f"{name}.data_ptr(), {CONSTANT}", f"{int(turned)}, {CONSTANT}", f"{apart}, {CONSTANT}"]
        found = w.let(f"{w.bind(dense)}({name}{'.t()' * walk.matrices[value.name]})")
        return [f"{found}[0].data_ptr(), {CONSTANT}", f"{found}[1], {CONSTANT}", f"{found}[2], {CONSTANT}"]

    def scratch(self, walk: Walk, rows: str, edges: str) -> str:
        w, room = self.writer, self.writer.view(walk.room_text(rows, edges))
        swiftly = fresh_text([room], walk.dtype, w.bind(spare.laid_out, "memory"))
        is_large = f"{room} * {walk.dtype.itemsize} >= {spare.LEAST}"
        return w.view(f"{w.bind(self.code.spare)}.take(({room},), {walk.dtype}) if {is_large} else {swiftly}")

    def let_go(self, scratch: str) -> None:
        self.writer.say(f"{scratch}.nbytes < {spare.LEAST} or {self.writer.bind(self.code.spare)}.give_back([{scratch}], ())")


class NativeBackText(BackText):
    """Writes the recipe of a backward pass that was just done on a CPU."""

    parameters = "tensors, chosen, saved, grads, records, device, feed"
    type_text = BackTypeText
    writer_class = JobWriter
    writer: JobWriter

    def recipe(self) -> Recipe:
        self.writer.is_picked = self.execution.call.feed is not None
        return super().recipe()

    def _give_some(self, at: int, wanted: Wanted) -> None:
        types = wanted.types(self.plan)
        if len(types) != 1:
            raise NoRecipe("rows of nodes of several types")
        name, rows = self.execution.call.cells[types[0]].own_name(wanted.name), self.writer.dense(f"grads[{at}]")
        part = Part(rows, f"chosen[{at}][0]", many=f"chosen[{at}][1]")
        self.given.setdefault((types[0], name), []).append(part)

    def sum_of(self, parts: list[Taken], text: TypeText, value: Value) -> str:
        if len(parts) == 1 and parts[0] == Part(parts[0].rows):
            return parts[0].rows
        width, size = width_of(value.dtype, row_width(value))
        if value.rows is None:
            raise NoRecipe("a gradient without rows")
        out, rows = text.empty(value), text.n if value.rows.kind == "n" else text.e
        to, w = f"{out}.data_ptr()", self.writer
        if not parts or (isinstance(parts[0], Part) and parts[0].many):
            w.job(ZERO, to, f"{out}.nbytes")
        for number, part in enumerate(map(self._as_part, parts)):
            start = f"{part.rows}.data_ptr() + {part.skip} * {width * size}"
            if part.many is None:
                w.job(COLLECT, to, start, part.index, part.bounds, rows, width, size, part.none, int(number > 0))
            else:
                w.job(SPREAD, to, start, part.index, 0, part.many, width, size)
        return out

    def _as_part(self, taken: Taken) -> Part:
        """Rows that lie side by side, which what a piece gives need not; of gradients of all nodes those that a type has."""
        rows = self.writer.dense(taken.rows)
        if isinstance(taken, Part):
            return replace(taken, rows=rows)
        return Part(rows) if taken.index is None else Part(rows, f"{taken.index}.data_ptr()")

    def _pulled(self, way: Way) -> Part:
        key, w = way.key, self.writer
        if w.ask(("slice", key), lambda indices: back_of(indices, key).slices[0] != NOT_A_SLICE):
            return Part(way.room.rows, skip=w.fact(("slice", key), lambda indices: back_of(indices, key).slices[0]))
        if w.ask(("one reader", key), partial(one_reader, key)):
            single = self._at("single", key, lambda indices: back_of(indices, key).back.single)
            return Part(way.room.rows, single, none=way.room.count)
        index = self._at("back index", key, lambda indices: back_of(indices, key).back.bags()[0])
        return Part(way.room.rows, index, self._at("back bounds", key, lambda indices: back_of(indices, key).back.bags()[1]))

    def _at(self, what: str, key: tuple[int, int, int], find: Any) -> str:
        return self.writer.fact(("at", what, key), lambda indices: address_of(indices, (what, key), find(indices)))

    def _own_part(self, text: TypeText, output: int, way: Way, taken: Taken) -> Part:
        type, key, w = text.type, way.key, self.writer
        assert isinstance(taken, Part)

        if not text.class_range(output):
            raise NoRecipe("rows between those of other types")
        if w.ask(("whole", type, output, key), partial(is_whole, type, output, key)):
            return taken
        first = w.fact(("from", type, output, key), partial(first_within, type, output, key))
        if taken.index == "0":
            return replace(taken, skip=f"({taken.skip} + {first})")
        if taken.bounds == "0":
            return replace(taken, index=f"{taken.index} + 4 * {first}")
        return replace(taken, bounds=f"{taken.bounds} + 4 * {first}")

    def _to_fed_rows(self, text: TypeText, name: Any, grad: str, tensor: str) -> str:
        value = text.code.tape.inputs[name]
        width = row_width(value)
        if name[0] != "feed" or text.in_order() or width is None or value.dtype not in NUMBERS:
            return super()._to_fed_rows(text, name, grad, tensor)
        assert isinstance(text, NativeTypeText) and value.dtype is not None
        rows, w = self.writer.dense(grad), self.writer
        out = w.made(f"torch.empty_like({tensor}, memory_format=torch.contiguous_format)")
        w.job(ZERO, f"{out}.data_ptr()", f"{out}.nbytes")
        w.job(SPREAD, f"{out}.data_ptr()", f"{rows}.data_ptr()", *text.fed_at(), text.n, width, value.dtype.itemsize)
        return out
