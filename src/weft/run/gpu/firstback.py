"""The way back through a group whose first step takes its leaves from where they are fed (`firststep.py`).

What steps give back lies in the order of the rows that it is given to, and a step writes the gradient that it leaves for the
sums over it. Nothing is given back to leaves. States come from the result. All sums over rows of later steps come before what
the second step gives back to the first. So there is never memory for more than as many rows as there are states:

    of later steps    | states                        |
                      | gradients                                       |
    of the first                        | states, as children |   | states        |
                                                        | gradients                           |
    leaves                                                                | one half | other  |
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from weft.graph.ports import port_of
from weft.graph.tape import Value, operands
from weft.run.emit import Code, emit
from weft.run.gpu.firststep import FirstStep
from weft.run.gpu.launch import fresh_behind
from weft.run.gpu.launchtext import say_launches
from weft.run.gpu.pointwise import emit_triton
from weft.run.gpu.rowcopy import take_rows
from weft.run.recipe import NoRecipe
from weft.run.recipeback import Room
from weft.run.split import Piece
from weft.run.views import bases

if TYPE_CHECKING:
    from weft.run.gpu.recipeback import GpuBackText


class FirstBack:
    """Writes this part of a recipe. Steps are told by texts: `first`, `second` and `both` are how many rows they have."""

    def __init__(self, back: GpuBackText, number: int, special: FirstStep) -> None:
        self.back, self.number, self.special, self.writer = back, number, special, back.writer
        self.text, self.source, self.width = back.types[special.reader], back.types[special.source], special.read.width
        self.cut, self.codes = back.backward.cut[special.reader]
        self.first, self.second = special.rows(self.source), special.rows(self.source, self.width)
        self.both = f"{self.width + 1} * {self.second}"
        self.result = next(rows for (number, _), rows in back.arenas.items() if number == special.read.value_class)
        self.state = next(one for one in self.text.code.split.outputs.values() if one.name == special.state)
        self.left, self.returned = self._stored()
        self.room = Room("", f"{self.text.n} * {self.width}")
        self.over_children, self.rest = (self._only(self.cut.pieces["sums"], self._sums(one)) for one in (True, False))
        self.sums: dict[str, list[str]] = {}
        """The parts of each sum, by name."""

    def say(self) -> None:
        self._later_steps()
        self._give_back()
        self._first_step()
        for name, parts in self.sums.items():
            self.text.store[name] = reduce(lambda one, other: self.writer.let(f"{one} + {other}"), parts)

    def _later_steps(self) -> None:
        """All but the first, and their sums; the second gives nothing back yet."""
        text, n = self.text, self.text.n
        text.store[self.state.name], states = self._behind(self.first, f"{n} - {self.first}", self.state)
        self.writer.say(self._taken(self.first, f"{n} - {self.first}", states))
        every, _ = self._behind(f"{self.width + 1} * {self.first}", f"{n} - {self.first}", self.left)
        self._lay(f"{every}.narrow(0, 0, {n} * {self.width})", f"{every}.narrow(0, {self.source.n}, {n})", n)
        self.parts = self.back.parts(self.number, self.back.plan.groups[self.number], [text])
        argument, apart = self.back.argument(self.parts), self.back.apart(self.number, text, self.parts)
        say_launches(self.writer, self.number, self.back.backward.swept[self.number][0], [text], argument, apart, 2)
        self._step(self.first, self.both)
        self._add(self.both, n, f"{states}.narrow(0, 0, ({n} - {self.both}) * {self.width})")
        self._add(self.first, self.both, self._taken("0", self.first))
        self._add_rest(self.first, n)

    def _give_back(self) -> None:
        """What the second step gives back, to where the first step's gradients will be."""
        every, alone = self._behind(self.source.n, self.first, self.left)
        code = self._only(self.cut.pieces["back"], [self.returned], self.left)
        place = f"{alone}.view({self.special.shape(self.returned, self.second)})"
        self._call(code, [*[self._part(value, self.first, self.both) for value in code.takes], place], self.second)
        self._lay(every, alone, self.first)

    def _first_step(self) -> None:
        self.text.store[self.state.name] = self.writer.let(self._taken("0", self.first))
        self._step("0", self.first)
        half = self.special.rows(self.source, 2)
        self._add("0", half, None)
        self._add(half, self.first, None)
        self._add_rest("0", self.first)

    # Steps.

    def _stored(self) -> tuple[Value, Value]:
        """What a step leaves for the sums, and what it gives back."""
        stores = self.codes["back"].stores
        left = [value for value in stores if value.name in self.cut.over_collected]
        back = [value for value in stores if any(value is one for one in self.cut.gradients.values())]
        if len(stores) != 2 or len(left) != 1 or len(back) != 1:
            raise NoRecipe("steps that leave several gradients")
        return left[0], back[0]

    def _lay(self, given_back: str, left: str, rows: str) -> None:
        """Say where what is given back lies, by the numbers of its rows, and where the gradients that are left, over it."""
        text, returned = self.text, self.returned
        self.room.rows = self.writer.let(given_back)
        text.store[self.left.name] = self.writer.let(left)
        text.store[returned.name] = self.writer.let(
            f"{self.room.rows}.narrow(0, 0, {rows} * {self.width}).view({self.special.shape(returned, rows)})"
        )
        for name, value in self.cut.gradients.items():
            if value is returned:
                self.back.returned[text.type, port_of(text.kinds, name) or 0, name] = self.room
        collected = self.cut.over_collected[self.left.name].kept
        self.back.collected_at[text.type, collected] = text.store[self.left.name]

    def _step(self, lo: str, hi: str) -> None:
        """A step that gives nothing back."""
        self.writer.say(f"lo, hi = {lo}, {hi}")
        short = self.text.code.back_without_return(self.back.backward.present[self.text.type])
        for line in self.back.step(self.text, short, self.parts):
            self.writer.say(line)

    def _behind(self, before: str, rows: str, value: Value) -> tuple[str, str]:
        every, alone, bound = self.writer.fresh(), self.writer.fresh(), self.writer.bind(fresh_behind)
        self.writer.say(f"({every}, {alone}) = {bound}(fresh, {before}, ({self.special.shape(value, rows)},), {value.dtype})")
        return every, alone

    def _taken(self, first: str, rows: str, out: str | None = None) -> str:
        """States, from the result."""
        where = "" if out is None else f", out={out}"
        index = f"{self.text.nodes()}.narrow(0, {first}, {rows})"
        return f"{self.writer.bind(take_rows)}({self.result}, {index}{where})"

    # Sums.

    def _add(self, lo: str, hi: str, children: str | None) -> None:
        """Sums over rows and their children; without `children`, which are leaves."""
        arguments = list[str]()
        if not self.over_children.returns:
            return
        for value in self.over_children.takes:
            if self.text.code.input_name.get(value.name) not in self.text.code.role.recurrent_in:
                arguments.append(self._part(value, lo, hi))
            elif children is None:
                arguments.append(self.special.leaves(self.source, value, lo, hi))
            else:
                arguments.append(self.writer.let(f"{children}.view({self.special.shape(value, f'{hi} - {lo}')})"))
        self._call(self.over_children, arguments, f"{hi} - {lo}")

    def _add_rest(self, lo: str, hi: str) -> None:
        """The other sums over rows."""
        if self.rest.returns:
            self._call(self.rest, [self._part(value, lo, hi) for value in self.rest.takes], f"{hi} - {lo}")

    def _part(self, value: Value, lo: str, hi: str) -> str:
        return f"{self.text.whole(value)}{f'.narrow(0, {lo}, {hi} - ({lo}))' * (value.rows is not None)}"

    def _call(self, code: Code, arguments: Sequence[str], rows: str) -> None:
        results = [self.writer.fresh() for _ in code.returns]
        call = f"{self.writer.bind(code.run, 'piece')}({', '.join(arguments)}, {rows}, 0, None, records)"
        self.writer.say(f"({', '.join(results)},) = {call}" if results else call)
        for value, result in zip(code.returns, results, strict=True):
            self.sums.setdefault(value.name, []).append(result)

    def _sums(self, over_children: bool) -> list[Value]:
        """Those that are over states of children, or the others."""
        piece, role = self.cut.pieces["sums"], self.text.code.role
        found = {id(value) for name, value in self.cut.tape.inputs.items() if name in role.recurrent_in}
        for value in piece.values:
            if any(id(base) in found for operand in operands(value) for base in bases(operand)):
                found.add(id(value))
        return [one for one in piece.gives if any(id(base) in found for base in bases(one)) is over_children]

    def _only(self, piece: Piece, gives: Sequence[Value], known: Value | None = None) -> Code:
        """The part of a piece that makes some of what it gives; `known` is there already, and these are to be stored."""
        values, needed = list[Value](), {id(base) for value in gives for base in bases(value)}
        for value in reversed(piece.values):
            if id(value) in needed and value is not known:
                values.append(value)
                needed.update(id(base) for operand in operands(value) for base in bases(operand))
        takes = [value for value in (known, *piece.takes) if value is not None and id(value) in needed]
        part, stores = Piece(piece.stage, values[::-1], takes, [*gives]), [*gives] if known is not None else []
        return emit_triton(part, stores) or emit(part, stores)
