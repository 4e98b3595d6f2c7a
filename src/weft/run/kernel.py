"""The C text of one kernel: a loop over rows, in it loops over the numbers of a row.

Operations of equal width follow each other in one inner loop as long as each reads the others number by number; reading
another part of a row, or another width, starts a new loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.graph.tape import Value, operands
from weft.run.ctext import FORMULAS, JOINS, PRELUDE
from weft.run.rowview import place_of, row_width


@dataclass(eq=False)
class _Loop:
    width: int
    values: list[Value] = field(default_factory=list)


def kernel_text(run: list[Value], inputs: list[Value], outputs: list[Value]) -> str:
    """The whole source: `weft_piece(first row, last row, inputs..., outputs...)`."""
    return _Kernel(run, inputs, outputs).text()


class _Kernel:
    def __init__(self, run: list[Value], inputs: list[Value], outputs: list[Value]) -> None:
        self.run, self.inputs, self.outputs = run, inputs, outputs
        self.number = {id(value): i for i, value in enumerate([*inputs, *run])}
        self.outward = {id(value) for value in outputs}
        self.loops = self._loops()
        self.loop_of = {id(value): loop for loop in self.loops for value in loop.values}
        self.stored = self._stored()

    def _loops(self) -> list[_Loop]:
        loops: list[_Loop] = []
        for value in self.run:
            width = row_width(value) or 0
            current = loops[-1] if loops else None
            if current is None or value.target in JOINS or current.width != width or not self._fits(value, current):
                current = _Loop(width)
                loops.append(current)
            current.values.append(value)
        return loops

    def _fits(self, value: Value, loop: _Loop) -> bool:
        here = {id(other) for other in loop.values}
        if any(other.target in JOINS for other in loop.values):
            return False
        for operand in operands(value):
            place = place_of(operand)
            assert place is not None
            if id(place.base) in here and (place.offset or place.width != loop.width):
                return False
        return True

    def _stored(self) -> set[int]:
        """Values that are read in another loop, so that a row of them must be kept."""
        found = set(self.outward)
        for value in self.run:
            for operand in operands(value):
                place = place_of(operand)
                assert place is not None
                loop = self.loop_of.get(id(place.base))
                if loop is not None and loop is not self.loop_of[id(value)]:
                    found.add(id(place.base))
        return found

    def text(self) -> str:
        dtype = self.run[0].dtype
        assert dtype is not None
        arguments = [f"const real *restrict P{self.number[id(v)]}" for v in self.inputs]
        arguments += [f"real *restrict P{self.number[id(v)]}" for v in self.outputs]
        kept = [v for v in self.run if id(v) in self.stored and id(v) not in self.outward]
        room = sum(row_width(v) or 0 for v in kept)
        lines = [f"void weft_piece(long first, long last, {', '.join(arguments)}) {{"]
        lines.append(f"  real *room = __builtin_malloc(sizeof(real) * {room});" if room else "")
        offset = 0
        for v in kept:
            lines.append(f"  real *restrict r{self.number[id(v)]} = room + {offset};")
            offset += row_width(v) or 0
        lines.append("  for (long i = first; i < last; i++) {")
        for v in [*self.inputs, *self.outputs]:
            at = self.number[id(v)]
            const = "const " if id(v) not in self.outward else ""
            step = f" + i * {row_width(v)}" if v.rows is not None else ""
            lines.append(f"    {const}real *restrict r{at} = P{at}{step};")
        for loop in self.loops:
            lines += self._loop(loop)
        lines += ["  }", "  __builtin_free(room);" if room else "", "}"]
        return PRELUDE[dtype] + "\n".join(line for line in lines if line) + "\n"

    def _loop(self, loop: _Loop) -> list[str]:
        first = loop.values[0]
        if first.target in JOINS:
            return self._join(first)
        lines = [f"    for (long j = 0; j < {loop.width}; j++) {{"]
        here: set[int] = set()
        for value in loop.values:
            at = self.number[id(value)]
            formula = FORMULAS[value.target](*(self._read(arg, here) for arg in value.args))
            lines.append(f"      real x{at} = {formula};")
            if id(value) in self.stored:
                lines.append(f"      r{at}[j] = x{at};")
            here.add(id(value))
        return [*lines, "    }"]

    def _join(self, value: Value) -> list[str]:
        lines, offset = [], 0
        at = self.number[id(value)]
        for part in value.args[0]:
            width = row_width(part) or 0
            lines.append(f"    for (long j = 0; j < {width}; j++) r{at}[{offset} + j] = {self._read(part, set())};")
            offset += width
        return lines

    def _read(self, arg: object, here: set[int]) -> str:
        if not isinstance(arg, Value):
            return f"((real){float(arg)!r})"  # type: ignore[arg-type]
        place = place_of(arg)
        assert place is not None
        at = self.number[id(place.base)]
        if id(place.base) in here:
            return f"x{at}"
        return f"r{at}[{place.offset}]" if place.width == 1 else f"r{at}[{place.offset} + j]"
