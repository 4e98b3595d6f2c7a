"""Units: rows cut into parts of one width, so that every pointwise operation works on parts that lie side by side.

The gates of an LSTM are one row of four times the width of a state; cutting that row, joining parts and picking slots is
giving names to parts. With `width` a common divisor of all that is cut and joined, a value of `m * width` numbers is `m`
units, and the rest of a kernel knows nothing of views. A value of one number per row is not cut: it is the same in every unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from weft.graph.segments import segment_sum
from weft.graph.tape import Value, operands
from weft.run.formulas import JOINS
from weft.run.gpu.simpler import OVER_ROWS, segment_max, segment_min
from weft.run.rowview import cuts_rows, place_of, row_width

SEGMENTS: dict[Any, str] = {segment_sum: "sum", segment_max: "max", segment_min: "min"}
"""What is made of each vertex's edges."""

MIXING = (torch.ops.aten.mm.default, torch.ops.aten.index_select.default, *SEGMENTS, *OVER_ROWS)
"""Operations that read more than their own part of a row; of their operands only the first is cut in units."""

MOST_UNITS = 16
"""A value of more units than this has no useful common width with the others."""


class NotExpressible(Exception):
    """An operation that the kernels cannot express; the text names it."""

    cell = ""


@dataclass(frozen=True)
class Part:
    """Unit number `at` of each row of a value, or, if `one`, the single number at column `at`."""

    key: int
    at: int
    one: bool


IN_OTHER_WORDS = {
    "bmm": "a product (@) of two tensors that differ from vertex to vertex",
    "mm": "a product (@) of two tensors that differ from vertex to vertex",
    "scatter_reduce": "a maximum or minimum over children in this form",
    "sum": "a sum over some dimensions of a row",
    "mean": "a mean over some dimensions of a row",
    "new_zeros": "zeros made in the cell",
    "select": "a part of a row, as in h[0]",
    "slice": "a part of a row, as in h[:3]",
    "convolution": "a convolution",
}


def tells(value: Value) -> str:
    """An operation in the user's words: as it is called in a cell, not as PyTorch calls it inside."""
    if getattr(value.target, "in_context", False):
        return "a cell that runs by plain vmap"
    packet = getattr(value.target, "overloadpacket", value.target)
    name = str(getattr(packet, "__name__", packet)).removesuffix("_data")
    derivative = name.endswith("_backward")
    name = name.removesuffix("_backward").removesuffix("_forward").lstrip("_").removeprefix("native_")
    words = IN_OTHER_WORDS.get(name, name)
    return f"the derivative of {words}" if derivative else words


class Units:
    """Values as units of one width."""

    def __init__(
        self, values: Iterable[Value], stored: Iterable[Value], given: Iterable[Value] = (), slots: Iterable[int] = ()
    ) -> None:
        """`slots`: how wide rows are of which several are read as one, and which no unit may reach across."""
        self.values: dict[int, Value] = {}
        self.stored = {id(value) for value in stored}
        self.width = 1
        sizes = [row_width(value) or 1 for value in given]
        self.made: set[int] = set()
        """Values that are computed here: joins among them need not be put together."""
        for value in values:
            self.made.add(id(value))
            sizes += self._sizes(value)
        self.width = math.gcd(*(size for size in sizes if size != 1), *slots) or 1
        if any(size > MOST_UNITS * self.width for size in sizes):
            raise NotExpressible(f"rows of {', '.join(map(str, sorted(set(sizes) - {1})))} numbers, which have no common width")

    def _sizes(self, value: Value) -> Iterator[int]:
        for one in (value, *(value.args[:1] if value.target in MIXING else operands(value))):
            place = place_of(one)
            if place is not None and (one.rows is not None or one is not value):
                yield place.width
                if place.width != 1 and place.offset:
                    yield place.offset
        if value.rows is not None:
            yield row_width(value) or 1

    def count(self, value: Value) -> int:
        """Units in a row of a value; 0 for a single number."""
        width = row_width(value)
        if width is None:
            raise NotExpressible(f"{tells(value)}, whose rows are not its first dimension")
        return 0 if width == 1 else width // self.width

    def parts(self, operand: Value, count: int) -> list[Part]:
        """The parts that an operation of `count` units (0: single numbers) reads of an operand, one after the other."""
        place = place_of(operand)
        if place is None:
            raise NotExpressible(f"a view by {tells(operand)}")
        if place.width == 1:
            found = [Part(self._keep(place.base), place.offset, True)] * max(count, 1)
        else:
            first, rest = divmod(place.offset, self.width)
            units = place.width // self.width
            if rest or units != count:
                raise NotExpressible(f"a view by {tells(operand)}, of {place.width} numbers from {place.offset} on")
            found = [Part(self._keep(place.base), first + i, False) for i in range(units)]
        return [self._through_joins(part) for part in found]

    def _keep(self, value: Value) -> int:
        self.values[id(value)] = value
        return id(value)

    def _through_joins(self, part: Part) -> Part:
        """What is only joined here to be read is read where it comes from."""
        value = self.values[part.key]
        while value.target in JOINS and part.key in self.made and part.key not in self.stored:
            if part.one:
                raise NotExpressible(f"a single number out of {tells(value)}")
            part = self.joined(value)[part.at]
            value = self.values[part.key]
        return part

    def joined(self, value: Value) -> list[Part]:
        """The parts that a join puts side by side."""
        dim = value.args[1] if len(value.args) > 1 else 0
        if not cuts_rows(value, dim):
            raise NotExpressible(f"{tells(value)} along dimension {dim - 1}")
        found: list[Part] = []
        for operand in value.args[0]:
            count = self.count(operand)
            if not count and self.width != 1:
                raise NotExpressible(f"{tells(value)} of single numbers")
            found += self.parts(operand, count)
        return found
