"""The recipe of a backward pass on a GPU, for plans whose recurrences all run as kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from weft.graph.ports import port_of
from weft.graph.segments import bag_sum, count_to
from weft.graph.tape import Value
from weft.plan.plan import Group
from weft.run.emit import Code
from weft.run.gpu.apart import asked_few_rows, rows_apart, step_call
from weft.run.gpu.bind import Source
from weft.run.gpu.chosen import numbers_of
from weft.run.gpu.firstback import FirstBack
from weft.run.gpu.launch import fresh_text
from weft.run.gpu.launchtext import Apart, Argument, say_launches
from weft.run.gpu.rowcopy import put_rows, take_rows
from weft.run.indices import Indices
from weft.run.recipe import NoRecipe
from weft.run.recipeback import BackText, Room, Taken, Way, back_of, one_reader
from weft.run.recipetypes import TypeText
from weft.run.wanted import Wanted

Parts = dict[tuple[int, str], tuple[Taken | None, list[Way]]]
"""Of the gradients of recurrent outputs, by type and name: what comes from outside, and from the group's own readers."""

GRADIENTS = ("outside", "outside_at", "returned", "total", "single", "back_index", "back_bounds")
"""Arguments of kernels that have to do with gradients of recurrent outputs."""


class GpuBackText(BackText):
    """Writes the recipe of a backward pass that was just done on a GPU."""

    parameters = "tensors, chosen, saved, grads, records, device, stream, keep, fresh"
    take, put = staticmethod(take_rows), staticmethod(put_rows)

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.collected_at: dict[tuple[int, str], str] = {}
        """Where gradients of recurrent outputs are put together for steps that run apart, by type and name."""

    def sweep(self, number: int, group: Group) -> None:
        types = [t for t in group.types if "back" in self.backward.cut[t][1]]
        first = self.types[types[0]]
        fits = asked_few_rows(self.writer, first)
        if not fits or number not in self.backward.swept:
            raise NoRecipe("steps that run one by one")
        special = self.first_steps.get(number)
        if special is not None:
            FirstBack(self, number, special).say()
            return
        walk, sweep = self.backward.swept[number]
        members = [self.types[t] for t in types]
        for text in members:
            self._make_room(text)
        parts = self.parts(number, group, members)
        for text in members:
            self._make_places(text, sweep)
        say_launches(self.writer, number, walk, members, self.argument(parts), self.apart(number, first, parts))

    def _give_some(self, at: int, wanted: Wanted) -> None:
        for t in wanted.types(self.plan):
            which, bags = numbers_of(self.execution.call, wanted, t), self.writer.bind(bag_sum)
            rows = self.writer.let(f"{bags}(grads[{at}].contiguous(), {which['results']}, {which['bounds']})")
            self.given.setdefault((t, self.execution.call.cells[t].own_name(wanted.name)), []).append(Taken(rows))

    def parts(self, number: int, group: Group, members: Sequence[TypeText]) -> Parts:
        """Where the gradients of a group's recurrent outputs come from."""
        found: Parts = {}
        sweep = self.backward.swept[number][1]
        for text in members:
            for value in self.backward.cut[text.type][1]["back"].takes:
                name = sweep.recurrent_gradient(self.backward.runs[text.type], value)
                if name is not None:
                    outside = self._in_one_place(self.outside(number, text, name))
                    found[text.type, value.name] = outside, self._inside(number, group, text, name)
        return found

    def argument(self, parts: Parts) -> Argument:
        """What finds the arguments of a sweep."""

        def found(text: TypeText, source: Source) -> str:
            gradient = parts.get((text.type, source.key))
            if gradient is None or source.what not in GRADIENTS:
                return text.argument(source)
            return self._gradient(text, gradient, source)

        return found

    def apart(self, number: int, text: TypeText, parts: Parts) -> Apart | None:
        """How wide steps run."""
        cut, codes = self.backward.cut[text.type]
        ways = [way for _, each in parts.values() for way in each]
        if not all(self.writer.ask(("one reader", way.key), partial(one_reader, way.key)) for way in ways):
            return None
        least = rows_apart(self.writer, text, number, cut.pieces["back"])
        return None if least is None else Apart(least, self.step(text, codes["back"], parts))

    def step(self, text: TypeText, code: Code, parts: Parts) -> list[str]:
        """One step by itself: what comes back is collected, then the piece runs."""
        lines, known = list[str](), dict[str, str]()
        for value in code.takes:
            if (text.type, value.name) in parts:
                known[value.name] = f"got{len(lines)}"
                kept = self.collected_at.get((text.type, value.name))
                lines.append(f"got{len(lines)} = {self._collected(text, value, parts[text.type, value.name], kept)}")
        return [*lines, step_call(self.writer, text, code, known)]

    def _collected(self, text: TypeText, value: Value, gradient: tuple[Taken | None, list[Way]], kept: str | None) -> str:
        """The gradient of a recurrent output's rows in one step."""
        outside, ways = gradient
        sources = [(way.room.rows, self.single(way)) for way in ways]
        if outside is not None:
            sources.insert(0, (outside.rows, outside.index or self._every_row(text)))
        take, out = self.writer.bind(take_rows), "" if kept is None else f", out={kept}.narrow(0, lo, hi - lo)"
        parts = [f"{rows}, {index}.narrow(0, lo, hi - lo)" for rows, index in sources]
        if not parts or len(parts) > 2:
            raise NoRecipe("a gradient of no or of many parts, in steps that run apart")
        return f"{take}({', '.join(parts)}{out})"

    def _in_one_place(self, parts: list[Taken]) -> Taken | None:
        if len(parts) == 1:
            return parts[0]
        total = self.total(parts)
        return None if total is None else Taken(total)

    def _inside(self, number: int, group: Group, text: TypeText, name: Any) -> list[Way]:
        ways = [way for reader, way in self.readers(number, text, name) if reader in group.types]
        for way in ways:
            self.writer.ask(("one reader", way.key), partial(one_reader, way.key))
        return ways

    def _gradient(self, text: TypeText, gradient: tuple[Taken | None, list[Way]], source: Source) -> str:
        outside, ways = gradient
        if source.what == "outside":
            assert outside is not None
            return self.writer.let(f"{outside.rows}.contiguous()")
        if source.what == "outside_at":
            assert outside is not None
            return outside.index or self._every_row(text)
        way = ways[source.number]
        if source.what in ("returned", "total"):
            return way.room.rows if source.what == "returned" else way.room.count
        if source.what == "single":
            return self.single(way)
        what = source.what.removeprefix("back_")
        return self.writer.fact((f"back {what}", way.key), lambda indices: getattr(back_of(indices, way.key), what))

    def _every_row(self, text: TypeText) -> str:
        """The index of all rows of a type, in order."""
        return self.writer.fact(("every row", text.type), partial(_every_row, text.type))

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
                place = text.store.get(value.name) or text.empty(value)  # what is given back as it is has memory already
                self.collected_at[text.type, value.name] = text.store[value.name] = place
        for value in codes["back"].stores:
            if value.name not in text.store:
                text.store[value.name] = self._over_what_was_read(text, value) or text.empty(value)

    def run_whole(self, text: TypeText, code: Code) -> None:
        """What was summed up on the way is there already."""
        if not all(value.name in text.store for value in code.returns):
            super().run_whole(text, code)

    def _over_what_was_read(self, text: TypeText, value: Value) -> str | None:
        """The memory of something that forward kept and the step reads before it writes; unless the graph is kept."""
        cut, codes = self.backward.cut[text.type]
        over = cut.overwritten.get(value.name)
        if over is None or not over.readers <= codes["back"].fused:
            return None
        return self.writer.let(f"{fresh_text(text.sizes(value), value.dtype)} if keep else {text.store[over.kept]}")


def _every_row(type: int, indices: Indices) -> Tensor:
    return indices.once(("every row", type), lambda: count_to(len(indices.plan.rows[type]), indices.device))
