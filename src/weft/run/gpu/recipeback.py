"""The recipe of a backward pass on a GPU, for plans whose recurrences all run as kernels."""

from __future__ import annotations

from functools import partial
from typing import Any

from weft.graph.ports import port_of
from weft.graph.segments import count_to
from weft.graph.tape import Value
from weft.plan.plan import Group
from weft.run.emit import Code
from weft.run.gpu.apart import asked_few_rows, rows_apart, step_call
from weft.run.gpu.bind import Source
from weft.run.gpu.firststep import FirstStep, say_sums
from weft.run.gpu.launch import fresh_behind, fresh_text
from weft.run.gpu.launchtext import Apart, say_launches
from weft.run.gpu.rowcopy import put_rows, take_rows
from weft.run.recipe import NoRecipe
from weft.run.recipeback import BackText, Room, Taken, Way, back_of, one_reader
from weft.run.recipetypes import TypeText

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
        walk, sweep = self.backward.swept[number]
        members, special = [self.types[t] for t in types], self.first_steps.get(number)
        for text in members:
            self._make_room(text, special)
        parts: Parts = {}
        for text in members:
            for value in self.backward.cut[text.type][1]["back"].takes:
                name = sweep.recurrent_gradient(self.backward.runs[text.type], value)
                if name is not None:
                    outside = self._in_one_place(self.outside(number, text, name))
                    parts[text.type, value.name] = outside, self._inside(number, group, text, name)
        for text in members:
            self._make_places(text, sweep, parts)

        def argument(text: TypeText, source: Source) -> str:
            gradient = parts.get((text.type, source.key))
            if gradient is None or source.what not in GRADIENTS:
                return text.argument(source)
            return self._gradient(text, gradient, source)

        apart = self._apart(number, first, parts)
        say_launches(self.writer, number, walk, members, argument, apart, int(special is not None))
        if special is not None:
            self.writer.say(f"lo, hi = 0, {special.rows(self.types[special.source])}")
            short = first.code.back_without_return(self.backward.present[first.type])
            for line in self._step(first, short, parts):
                self.writer.say(line)

    def _apart(self, number: int, text: TypeText, parts: Parts) -> Apart | None:
        """How wide steps run."""
        cut, codes = self.backward.cut[text.type]
        ways = [way for _, each in parts.values() for way in each]
        if not all(self.writer.ask(("one reader", way.key), partial(one_reader, way.key)) for way in ways):
            return None
        least = rows_apart(self.writer, text, number, cut.pieces["back"])
        return None if least is None else Apart(least, self._step(text, codes["back"], parts))

    def _step(self, text: TypeText, code: Code, parts: Parts) -> list[str]:
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
            return outside.index or self.writer.let(f"{self.writer.bind(count_to)}({text.n}, device)")
        way = ways[source.number]
        if source.what in ("returned", "total"):
            return way.room.rows if source.what == "returned" else way.room.count
        if source.what == "single":
            return self.single(way)
        what = source.what.removeprefix("back_")
        return self.writer.fact((f"back {what}", way.key), lambda indices: getattr(back_of(indices, way.key), what))

    def _make_room(self, text: TypeText, first: FirstStep | None) -> None:
        """Memory for the gradient rows that a type gives back; a first step gives back none."""
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
                if first is None:
                    rooms[value.name] = Room(self.writer.empty([count, *tail], value.dtype), count)
                else:
                    rooms[value.name] = self._room_behind(text, first, count, tail, value)
                rows = rooms[value.name].rows
                shape = ", ".join(map(str, (text.n, width, *tail)))
                text.store[value.name] = self.writer.let(f"{rows}.view({shape})") if kind == "slots" else rows
            self.returned[text.type, port, name] = rooms[value.name]

    def _room_behind(self, text: TypeText, first: FirstStep, count: str, tail: list[int], value: Value) -> Room:
        """Rows are given back to states in order, to the first of them by the first row that is not given back to a leaf."""
        every, alone, bound = self.writer.fresh(), self.writer.fresh(), self.writer.bind(fresh_behind)
        sizes, leaves = ", ".join(map(str, [text.n, *tail])), self.types[first.source].n
        self.writer.say(f"({every}, {alone}) = {bound}(fresh, {leaves}, ({sizes},), {value.dtype})")
        return Room(self.writer.let(f"{every}.narrow(0, 0, {count})"), count, alone)

    def _make_places(self, text: TypeText, sweep: Any, parts: Parts) -> None:
        cut, codes = self.backward.cut[text.type]
        for value in codes["back"].takes:
            name = sweep.recurrent_gradient(self.backward.runs[text.type], value)
            if name is not None and any(value is one for one in cut.pieces["sums"].takes):
                self.collected_at[text.type, value.name] = text.store[value.name] = text.empty(value)
        for value in codes["back"].stores:
            if value.name not in text.store:
                place = self._over_what_was_read(text, value) or self._over_what_came_back(text, value, parts)
                text.store[value.name] = place or text.empty(value)

    def _over_what_came_back(self, text: TypeText, value: Value, parts: Parts) -> str | None:
        """The memory of what others give back to the rows in whose order it lies."""
        cut, codes = self.backward.cut[text.type]
        over = cut.over_collected.get(value.name)
        if over is None or not over.readers <= codes["back"].fused:
            return None
        _, ways = parts[text.type, over.kept]
        if len(ways) != 1 or ways[0].room.alone is None:
            return None
        self.collected_at[text.type, over.kept] = ways[0].room.alone
        return ways[0].room.alone

    def run_whole(self, text: TypeText, code: Code) -> None:
        """Sums after a first step of its own take its rows' children from elsewhere."""
        first = next((one for one in self.first_steps.values() if one.reader == text.type), None)
        if first is None or code is not self.backward.cut[text.type][1].get("sums"):
            super().run_whole(text, code)
            return
        states = {name[-1]: rows for name, rows in self.arenas.items() if name[0] == first.read.value_class}
        say_sums(first, text, self.types[first.source], self.backward.cut[text.type][0], states)

    def _over_what_was_read(self, text: TypeText, value: Value) -> str | None:
        """The memory of something that forward kept and the step reads before it writes; unless the graph is kept."""
        cut, codes = self.backward.cut[text.type]
        over = cut.overwritten.get(value.name)
        if over is None or not over.readers <= codes["back"].fused:
            return None
        return self.writer.let(f"{fresh_text(text.sizes(value), value.dtype)} if keep else {text.store[over.kept]}")
