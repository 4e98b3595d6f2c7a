"""The recipe of a backward pass: as `Backward` does it, for plans whose recurrences all run as kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from weft.graph.ports import port_of
from weft.graph.segments import bag_sum, count_to
from weft.graph.tape import Name, Value
from weft.plan.plan import NOT_A_SLICE, Group
from weft.run.backward import Backward
from weft.run.gpu.apart import rows_apart, step_call
from weft.run.gpu.backsweep import BackSweep
from weft.run.gpu.bind import Source
from weft.run.gpu.launch import fresh_text
from weft.run.gpu.launchtext import Apart, say_launches
from weft.run.gpu.rowcopy import put_rows, take_rows
from weft.run.gpu.sweep import few_rows
from weft.run.indices import BackIndex, Indices
from weft.run.recipe import NoRecipe, Recipe, Writer
from weft.run.recipeforward import Saved
from weft.run.recipetypes import TypeText
from weft.run.somerows import SomeRows
from weft.run.wanted import Wanted

if TYPE_CHECKING:
    from weft.run.gpu.execution import GpuExecution
    from weft.run.nativeexecution import NativeExecution

GRADIENTS = ("outside", "outside_at", "returned", "total", "single", "back_index", "back_bounds")
"""Arguments of kernels that have to do with gradients of recurrent outputs."""


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

    parameters = "tensors, chosen, saved, grads, records, device, stream, keep, fresh"
    type_text: type[TypeText] = TypeText
    take: Any = staticmethod(take_rows)
    put: Any = staticmethod(put_rows)

    def __init__(
        self, execution: GpuExecution | NativeExecution, backward: Backward, before: Recipe, grads: Sequence[Tensor | None]
    ) -> None:
        self.execution, self.plan, self.backward, self.grads = execution, execution.plan, backward, grads
        self.writer = Writer(execution.indices, before)
        about: Saved = before.about
        names, arenas = about.names, about.arenas
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
                self._sweep(number, group)
            for t in group.types:
                self._nothing_left(self.types[t])
                self._whole(self.types[t], "sums")
            for t in group.types:
                self._collect(self.types[t])
        return self.writer.recipe(self.parameters, f"[{', '.join(self._results())}]")

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
        """Gradients of some rows of one type; the others' are zeros."""
        types = wanted.types(self.plan)
        if len(types) != 1:
            raise NoRecipe("rows of nodes of several types")
        t = types[0]
        name, text = self.execution.call.cells[t].own_name(wanted.name), self.types[t]
        rows = self.writer.let(f"{self.writer.bind(SomeRows)}(chosen[{at}], grads[{at}], {text.n}).dense()")
        self.given.setdefault((t, name), []).append(Taken(rows))

    def _prepare(self, number: int, text: TypeText) -> None:
        cut = self.backward.cut[text.type][0]
        taken = [value for piece in cut.pieces.values() for value in piece.takes]
        for name, value in cut.tape.inputs.items():
            if name[0] == "ct" and name[1] not in text.code.role.recurrent_out and any(value is one for one in taken):
                parts = self._outside(number, text, name[1])
                text.store[value.name] = self._total(parts) or self.writer.let(f"{text.empty(value)}.zero_()")

    def _back(self, key: tuple[int, int, int]) -> BackIndex | None:
        """One way back, if it is there; it must be there, or not, in every plan of this recipe."""
        self.writer.ask(("way", key), lambda indices: indices.back(*key) is not None)
        return self.writer.indices.back(*key)

    def _readers(self, number: int, text: TypeText, name: Any) -> list[tuple[int, Way]]:
        """The types that give gradients back to an output, each with the way."""
        found = []
        for run, read, port_name, _ in self.backward._readers(number, self.plan.class_of[text.type, name[0]], name[1]):
            self._back((read.type, read.port, number))
            room = self.returned.get((read.type, read.port, port_name))
            if room is not None:
                found.append((run.type, Way((read.type, read.port, number), room)))
        for read in self.plan.reads:
            if read.value_class == self.plan.class_of[text.type, name[0]]:
                self._back((read.type, read.port, number))
        return found

    def _outside(self, number: int, text: TypeText, name: Any) -> list[Taken]:
        """Where the gradient of an output comes from, as far as that is outside the group."""
        parts = list(self.given.get((text.type, name), []))
        if name in text.code.role.exchanged:
            for reader, way in self._readers(number, text, name):
                if reader not in self.plan.groups[number].types:
                    parts.append(self._own_part(text, name[0], way, self._pulled(way)))
        return parts

    def _total(self, parts: list[Taken]) -> str | None:
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
        if w.ask(("slice", key), lambda indices: _back_of(indices, key).slices[0] != NOT_A_SLICE):
            first = w.fact(("slice", key), lambda indices: _back_of(indices, key).slices[0])
            many = w.fact(("many", key), lambda indices: _back_of(indices, key).back.last - _back_of(indices, key).back.first)
            return Taken(w.let(f"{room.rows}.narrow(0, {first}, {many})"))
        if w.ask(("all read", key), lambda indices: _all_read(_back_of(indices, key))):
            return Taken(room.rows, self._single(way))
        index = w.fact(("back index", key), lambda indices: _back_of(indices, key).index)
        bounds = w.fact(("back bounds", key), lambda indices: _back_of(indices, key).bounds)
        return Taken(w.let(f"{w.bind(bag_sum)}({room.rows}, {index}, {bounds})"))

    def _single(self, way: Way) -> str:
        return self.writer.fact(("single", way.key), lambda indices: _back_of(indices, way.key).single)

    def _own_part(self, text: TypeText, output: int, way: Way, taken: Taken) -> Taken:
        """A type's rows among those that a group wrote."""
        type, key, w = text.type, way.key, self.writer

        def whole(indices: Indices) -> bool:
            back = _back_of(indices, key).back
            return indices.class_rows(type, output) == (back.first, back.last)

        def start(indices: Indices) -> int:
            rows = indices.class_rows(type, output)
            assert isinstance(rows, tuple)
            return rows[0] - _back_of(indices, key).back.first

        if text.class_range(output):
            if w.ask(("whole", type, output, key), whole):
                return taken
            first = w.fact(("from", type, output, key), start)
            if taken.index is None:
                return Taken(w.let(f"{taken.rows}.narrow(0, {first}, {text.n})"))
            return Taken(taken.rows, w.let(f"{taken.index}.narrow(0, {first}, {text.n})"))
        first = w.fact(("first of", key), lambda indices: _back_of(indices, key).back.first)
        where = w.let(f"{text.class_rows(output)} - {first}")
        if taken.index is None:
            return Taken(taken.rows, where)
        return Taken(taken.rows, w.let(f"{taken.index}.index_select(0, {where})"))

    def _whole(self, text: TypeText, stage: str) -> None:
        code = self.backward.cut[text.type][1].get(stage)
        if code is not None:
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

    # Kernels.

    def _sweep(self, number: int, group: Group) -> None:
        types = [t for t in group.types if "back" in self.backward.cut[t][1]]
        first = self.types[types[0]]
        fits = self.writer.ask(("few rows", first.type), lambda indices: few_rows(first.code, indices.plan, first.type))
        if not fits or number not in self.backward.swept:
            raise NoRecipe("steps that run one by one")
        walk, sweep = self.backward.swept[number]
        members = [self.types[t] for t in types]
        for text in members:
            self._make_room(text)
        parts: dict[tuple[int, str], tuple[Taken | None, list[Way]]] = {}
        for text in members:
            for value in self.backward.cut[text.type][1]["back"].takes:
                name = sweep.recurrent_gradient(self.backward.runs[text.type], value)
                if name is not None:
                    outside = self._in_one_place(self._outside(number, text, name))
                    parts[text.type, value.name] = outside, self._inside(number, group, text, name)
        for text in members:
            self._make_places(text, sweep)

        def argument(text: TypeText, source: Source) -> str:
            gradient = parts.get((text.type, source.key))
            if gradient is None or source.what not in GRADIENTS:
                return text.argument(source)
            return self._gradient(text, gradient, source)

        say_launches(self.writer, number, walk, members, argument, self._apart(number, first, sweep, parts))

    def _apart(
        self, number: int, text: TypeText, sweep: BackSweep, parts: dict[tuple[int, str], tuple[Taken | None, list[Way]]]
    ) -> Apart | None:
        """How wide steps run: what comes back is collected, then the piece runs."""
        cut, codes = self.backward.cut[text.type]
        ways = [way for _, each in parts.values() for way in each]
        if not all(self.writer.ask(("one reader", way.key), partial(_one_reader, way.key)) for way in ways):
            return None
        least = rows_apart(self.writer, text, number, cut.pieces["back"])
        if least is None:
            return None
        lines, known = list[str](), dict[str, str]()
        for value in codes["back"].takes:
            if (text.type, value.name) in parts:
                known[value.name] = f"got{len(lines)}"
                kept = text.store.get(value.name) if any(value is one for one in cut.pieces["sums"].takes) else None
                lines.append(f"got{len(lines)} = {self._collected(text, value, parts[text.type, value.name], kept)}")
        return Apart(least, [*lines, step_call(self.writer, text, codes["back"], known)])

    def _collected(self, text: TypeText, value: Value, gradient: tuple[Taken | None, list[Way]], kept: str | None) -> str:
        """The gradient of a recurrent output's rows in one step."""
        outside, ways = gradient
        sources = [(way.room.rows, self._single(way)) for way in ways]
        if outside is not None:
            every = (
                self.writer.let(f"{self.writer.bind(count_to)}({text.n}, device)") if outside.index is None else outside.index
            )
            sources.insert(0, (outside.rows, every))
        take, out = self.writer.bind(take_rows), "" if kept is None else f", out={kept}.narrow(0, lo, hi - lo)"
        parts = [f"{rows}, {index}.narrow(0, lo, hi - lo)" for rows, index in sources]
        if not parts or len(parts) > 2:
            raise NoRecipe("a gradient of no or of many parts, in steps that run apart")
        return f"{take}({', '.join(parts)}{out})"

    def _in_one_place(self, parts: list[Taken]) -> Taken | None:
        if len(parts) == 1:
            return parts[0]
        total = self._total(parts)
        return None if total is None else Taken(total)

    def _inside(self, number: int, group: Group, text: TypeText, name: Any) -> list[Way]:
        ways = [way for reader, way in self._readers(number, text, name) if reader in group.types]
        for way in ways:
            self.writer.ask(("one reader", way.key), partial(_one_reader, way.key))
        return ways

    def _gradient(self, text: TypeText, gradient: tuple[Taken | None, list[Way]], source: Source) -> str:
        outside, ways = gradient
        if source.what == "outside":
            assert outside is not None
            return self.writer.let(f"{outside.rows}.contiguous()")
        if source.what == "outside_at":
            assert outside is not None
            return outside.index or self.writer.let(f"{self.writer.bind(count_to)}({text.n}, device)")
        way = ways[source.number]
        if source.what in ("returned", "total"):
            return way.room.rows if source.what == "returned" else way.room.count
        if source.what == "single":
            return self._single(way)
        what = source.what.removeprefix("back_")
        return self.writer.fact((f"back {what}", way.key), lambda indices: getattr(_back_of(indices, way.key), what))

    def _make_room(self, text: TypeText) -> None:
        """Memory for the gradient rows that a type gives back."""
        rooms: dict[str, Room] = {}
        for name, value in self.backward.cut[text.type][0].gradients.items():
            if name not in text.code.role.recurrent_in:
                continue
            kind, port = name[0], port_of(text.kinds, name) or 0
            if value.name not in rooms:
                if value.name in text.store:
                    raise NoRecipe("a gradient that is known before the sweep")
                width = text.ports[port].width
                count = f"{text.n} * {width}" if kind == "slots" else text.n if kind == "sum" else text.e
                tail = [size for size in (value.shape or ())[2 if kind == "slots" else 1 :] if isinstance(size, int)]
                rows = self.writer.empty([count, *tail], value.dtype)
                rooms[value.name] = Room(rows, count)
                shape = ", ".join(map(str, (text.n, width, *tail)))
                text.store[value.name] = self.writer.let(f"{rows}.view({shape})") if kind == "slots" else rows
            self.returned[text.type, port, name] = rooms[value.name]

    def _make_places(self, text: TypeText, sweep: Any) -> None:
        cut, codes = self.backward.cut[text.type]
        for value in codes["back"].takes:
            name = sweep.recurrent_gradient(self.backward.runs[text.type], value)
            if name is not None and any(value is one for one in cut.pieces["sums"].takes):
                text.store[value.name] = text.empty(value)
        for value in codes["back"].stores:
            if value.name not in text.store:
                text.store[value.name] = self._over_what_was_read(text, value) or text.empty(value)

    def _over_what_was_read(self, text: TypeText, value: Value) -> str | None:
        """The memory of something that forward kept and the step reads before it writes; unless the graph is kept."""
        cut, codes = self.backward.cut[text.type]
        over = cut.overwritten.get(value.name)
        if over is None or not over.readers <= codes["back"].fused:
            return None
        return self.writer.let(f"{fresh_text(text.sizes(value), value.dtype)} if keep else {text.store[over.kept]}")

    # Results.

    def _results(self) -> list[str]:
        """The gradient of each of the call's tensors."""
        execution, found = self.execution, dict[int, str]()
        for (t, name), rows in self.gradients.items():
            at = execution.kind.input(t, name)
            if at is None or not execution.needs[at]:
                continue
            grad = rows if name[0] == "capture" else self._to_fed_rows(self.types[t], name, rows, f"tensors[{at}]")
            found[at] = grad if at not in found else self.writer.let(f"{found[at]} + {grad}")
        for at, tensor in enumerate(execution.given_tensors):
            if at not in found and id(tensor) in execution.must and execution.needs[at]:
                found[at] = self.writer.let(f"torch.zeros_like(tensors[{at}])")
        return [found.get(at, "None") for at in range(len(execution.needs))]

    def _to_fed_rows(self, text: TypeText, name: Any, grad: str, tensor: str) -> str:
        t, w = text.type, self.writer
        if name[0] != "feed":
            raise NoRecipe("gradients of edges")
        if w.ask(("in order", t), lambda indices: indices.rows(t) is None):
            w.say(f"if {grad}.shape[0] != {tensor}.shape[0]:")
            w.say(
                f"    {grad} = torch.cat([{grad}, {grad}.new_zeros(({tensor}.shape[0] - {grad}.shape[0], *{grad}.shape[1:]))])"
            )
            return grad
        out = w.let(f"torch.zeros_like({tensor}, memory_format=torch.contiguous_format)")
        if w.ask("feed", lambda indices: indices.plan.program.feed is not None):  # some rows may be fed twice
            w.say(f"{out}.index_add_(0, {text.fed_rows()}, {grad})")
        else:
            w.say(f"{w.bind(self.put)}({out}, {text.fed_rows()}, {grad})")
        return out


def _back_of(indices: Indices, key: tuple[int, int, int]) -> BackIndex:
    found = indices.back(*key)
    assert found is not None
    return found


def _one_reader(key: tuple[int, int, int], indices: Indices) -> bool:
    return _back_of(indices, key).single is not None


def _all_read(back: BackIndex) -> bool:
    """Whether each row that comes back has exactly one reader."""
    return back.back.single is not None and len(back.back.index) == len(back.back.single)
