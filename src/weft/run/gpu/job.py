"""The text of one job: some values of one kind of rows, computed for a tile of rows and a tile of columns.

loads, as they are needed     x3 = tl.load(P_v17 + ...)
products, a loop over K       a0 = tl.dot(rows, weight, a0)
pointwise operations          x9 = sigmoid_(x3 + a0)
stores                        tl.store(P_v31 + ..., x9)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import torch

from weft.graph.tape import Value, operands
from weft.run.formulas import JOINS, number_of
from weft.run.gpu.formulas import TYPES, converted, loaded, pointwise, rounded
from weft.run.gpu.memory import Bag, Collected, Gathered, Memory, Returned
from weft.run.gpu.simpler import OVER_ROWS, row_max, row_rstd, row_sum
from weft.run.gpu.units import SEGMENTS, NotExpressible, Part, tells
from weft.run.gpu.variables import Variables
from weft.run.rowview import row_width

aten = torch.ops.aten


@dataclass(eq=False)
class Weight:
    """A matrix that is the same for every row, by its strides."""

    pointer: str
    strides: tuple[int, int]


@dataclass(eq=False)
class Job(Variables):
    """Writes the lines of one job."""

    weights: Mapping[int, Weight] = field(default_factory=dict)
    """What stands on the right of products, by id."""

    def compute(self, value: Value) -> None:
        """One operation, and its store if others need it."""
        if value.target is aten.mm.default:
            found = self._product(value)
        elif value.target in JOINS:
            found = [self.read(part) for part in self.units.joined(value)]
        elif value.target in SEGMENTS:
            found = self._segments(value)
        elif value.target is aten.index_select.default:
            found = self._spread(value)
        elif value.target in OVER_ROWS:
            found = self._over_row(value)
        else:
            found = self._pointwise(value)
        self._give_names(value, found)

    def bring(self, value: Value) -> None:
        """An input that is brought together here because it is stored."""
        count = self.units.count(value)
        self._give_names(value, [self.read(part) for part in self.units.parts(value, count)])

    def _give_names(self, value: Value, found: list[str]) -> None:
        self.units.values[id(value)] = value
        one = not self.units.count(value)
        for at, name in enumerate(found):
            self.names[Part(id(value), at, one)] = name
        if id(value) in self.outputs:
            for at, name in enumerate(found):
                self.put(self.outputs[id(value)], at, one, name)

    def _pointwise(self, value: Value) -> list[str]:
        if value.dtype not in TYPES or pointwise(value, lambda _: "") is None:
            raise NotExpressible(tells(value))
        count = self.units.count(value)
        units: dict[int, list[str]] = {}
        for arg in operands(value):
            if number_of(arg) is None:
                units[id(arg)] = [self.read(part) for part in self.units.parts(arg, count)]
        found = []
        for unit in range(max(count, 1)):
            name = self.fresh_name()
            formula = pointwise(value, partial(_part, units, unit))
            assert formula is not None
            if value.target is aten._to_copy.default:
                formula = converted(formula, value.dtype)
            self.say(f"{name} = {rounded(formula, value.dtype)}")
            found.append(name)
        return found

    # Operations that mix columns or rows: their operands lie in memory.

    def _product(self, value: Value) -> list[str]:
        rows, matrix = value.args
        weight = self.weights.get(id(matrix))
        if weight is None or not row_width(rows):
            raise NotExpressible(tells(value))
        count = self.units.count(value)
        if not count:
            raise NotExpressible(f"{tells(value)} with a single column")
        kept = "tl.float64" if value.dtype is torch.float64 else "tl.float32"
        totals = [self.fresh_name("a") for _ in range(count)]
        shape = f"{self.tile.ways}, " if self.tile.ways > 1 else ""
        for total in totals:
            self.say(f"{total} = tl.zeros(({shape}{self.tile.rows}, {self.tile.columns}), {kept})")
        start = 0
        for first, length in self._stretches(self.units.parts(rows, self.units.count(rows))):
            self._stretch(first, length, start, weight, totals, kept)
            start += length
        for total in totals if self.tile.ways > 1 else ():
            self.say(f"{total} = tl.sum({total}, 0)")
        return [self.round_off(total, value.dtype) for total in totals]

    def _stretches(self, parts: list[Part]) -> list[tuple[Part, int]]:
        """Parts that lie side by side in memory, as one: (first part, how many numbers)."""
        found: list[tuple[Part, int]] = []
        width = self.units.width
        for part in parts:
            if part.one:
                raise NotExpressible("a product with single numbers")
            if found:
                first, length = found[-1]
                memory = self.memory[part.key]
                whole = memory.width // width if isinstance(memory, Gathered) else 0
                if part.key == first.key and part.at == first.at + length // width and not (whole and part.at % whole == 0):
                    found[-1] = first, length + width
                    continue
            found.append((part, width))
        return found

    def _stretch(self, first: Part, length: int, start: int, weight: Weight, totals: list[str], kept: str) -> None:
        memory = self.memory.get(first.key)
        if memory is None or isinstance(memory, Bag | Collected | Returned) or not memory.row:
            raise NotExpressible("a product with rows that are in no memory")
        column = first.at * self.units.width
        self.use_index(memory, column)
        row, inside = memory.row_of(column)
        ways = self.tile.ways
        inner = min(self.tile.inner, max(16, 1 << (-(-length // ways) - 1).bit_length()))
        ragged = length % (inner * ways) != 0
        ahead = "" if self._whole_words(first, memory, inside, length) else ", num_stages=1"
        self.say(f"for k in tl.range(0, {length}, {inner * ways}{ahead}):")
        if ways == 1:
            self.say(f"    kk = k + tl.arange(0, {inner})")
            over, down, rows, columns = "[None, :]", "[:, None]", "[:, None]", "[None, :]"
        else:
            self.say(f"    kk = k + tl.arange(0, {ways})[:, None] * {inner} + tl.arange(0, {inner})[None, :]")
            over, down, rows, columns = "[:, None, :]", "[:, :, None]", "[None, :, None]", "[None, None, :]"
        mask = f"live{rows}" + (f" & (kk < {length}){over}" if ragged else "")
        past = ', cache_modifier=".cg"' if memory.fresh else ""
        where = f"{memory.pointer} + ({row}){rows} * {memory.width} + ({inside} + kk){over}"
        self.say(f"    rows = tl.load({where}, mask={mask}, other=0{past})")
        masks = [f"(kk < {length}){down}"] * ragged + [f"real{columns}"] * (not self.whole_units)
        mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
        along, across = weight.strides
        how = f'input_precision="{self.tile.precision}", out_dtype={kept}'
        for unit, total in enumerate(totals):
            at = f"(kk + {start}){down} * {along} + (col + {unit * self.units.width}){columns} * {across}"
            self.say(f"    weight = tl.load({weight.pointer} + {at}{mask})")
            self.say(f"    {total} = tl.dot(rows, weight, {total}, {how})")

    def _whole_words(self, part: Part, memory: Memory, inside: int, length: int) -> bool:
        """Whether rows can be loaded ahead of their product: if in words of 16 bytes, past the first cache; if in smaller ones
        through it, which may hold what they were before others wrote them."""
        size = (self.units.values[part.key].dtype or torch.float32).itemsize
        return not memory.fresh or all(numbers * size % 16 == 0 for numbers in (memory.width, inside, length))

    def _over_row(self, value: Value) -> list[str]:
        """The sum, the largest number, the mean of rows that lie in memory, or one over their standard deviation."""
        stretches = self._stretches(self.units.parts(value.args[0], self.units.count(value.args[0])))
        numbers = sum(length for _, length in stretches)
        name = self.fresh_name("m")
        with self.loads_first():
            if value.target is row_max:
                self._through_row(name, stretches, "tl.maximum({0}, tl.max({1}, 1)[:, None])", "{0}", '-float("inf")')
                return [self.round_off(name, value.dtype)]
            add = "{0} + tl.sum({1}, 1)[:, None]"
            self._through_row(name, stretches, add, "{0}", "0")
            if value.target is not row_sum:
                self.say(f"{name} = {name} / {numbers}")
            if value.target is row_rstd:
                mean, name = name, self.fresh_name("m")
                self._through_row(name, stretches, add, f"({{0}} - {mean}) * ({{0}} - {mean})", "0")
                self.say(f"{name} = 1 / tl.sqrt({name} / {numbers} + {float(value.args[1])!r})")
            return [self.round_off(name, value.dtype)]

    def _through_row(self, name: str, stretches: list[tuple[Part, int]], step: str, term: str, start: str) -> None:
        """Go through rows in memory; `step` says how what was found so far and the terms of some columns become one."""
        wide = any(self.units.values[part.key].dtype is torch.float64 for part, _ in stretches)
        self.say(f"{name} = tl.full(({self.tile.rows}, 1), {start}, {'tl.float64' if wide else 'tl.float32'})")
        for part, length in stretches:
            memory, dtype = self.memory.get(part.key), self.units.values[part.key].dtype
            if memory is None or isinstance(memory, Bag | Collected | Returned) or not memory.row:
                raise NotExpressible("a sum, mean or maximum of rows that are in no memory")
            column = part.at * self.units.width
            self.use_index(memory, column)
            row, inside = memory.row_of(column)
            inner = min(128, 1 << (length - 1).bit_length())
            past = ', cache_modifier=".cg"' if memory.fresh else ""
            self.say(f"for k in range(0, {length}, {inner}):")
            self.say(f"    kk = k + tl.arange(0, {inner})")
            self.say(f"    there = live[:, None] & (kk < {length})[None, :]")
            where = f"{memory.pointer} + ({row})[:, None] * {memory.width} + ({inside} + kk)[None, :]"
            self.say(f"    rows = {loaded(f'tl.load({where}, mask=there, other=0{past})', dtype)}")
            terms = f"tl.where(there, {term.format('rows')}, {start})"
            self.say(f"    {name} = {step.format(name, terms)}")

    def _segments(self, value: Value) -> list[str]:
        """The sum over each vertex's edges of something that lies in memory, the largest or the smallest."""
        count = self.units.count(value)
        found = []
        for part in self.units.parts(value.args[0], count):
            memory = self.memory.get(part.key)
            if memory is None or isinstance(memory, Bag | Collected | Returned):
                raise NotExpressible(f"{tells(value)} of rows that are in no memory")
            index = memory.index if isinstance(memory, Gathered) else ""
            row = "r" if index else memory.row
            how = SEGMENTS[value.target]
            bag = Bag(memory.pointer, memory.width, row, memory.fresh, index, self.prefix + "bounds", how=how)
            found.append(self.load_from(bag, part, value.dtype))
        return found

    def _spread(self, value: Value) -> list[str]:
        """Each edge's vertex: rows of something that lies in memory."""
        if value.args[1] != 0 or value.rows is None or value.rows.kind != "e":
            raise NotExpressible(tells(value))
        count = self.units.count(value)
        if "owner" not in self.indices:
            self.indices.add("owner")
            self.early.append(f"owner = tl.load({self.prefix}owners + r, mask=live, other=0).to(tl.int64)")
        found = []
        for part in self.units.parts(value.args[0], count):
            memory = self.memory.get(part.key)
            if memory is None or type(memory) is not Memory or not memory.row:
                raise NotExpressible(f"{tells(value)} of rows that are in no memory")
            row = memory.row.replace("r", "owner", 1)
            found.append(self.load_from(Memory(memory.pointer, memory.width, row, memory.fresh), part, value.dtype))
        return found


def _part(units: dict[int, list[str]], unit: int, value: Value) -> str:
    """The variable of one unit of an operand."""
    return units[id(value)][unit]
