"""Facts of plans that were made in C, as texts: what a recipe must know of a plan, read from its numbers and nothing else.

In these texts, which Python and C understand alike, `n` are the numbers of the plan and `b` those of its returns
(`weft.plan.shape`), `base` and `back` are the addresses of their copies on the device, and `host` is that of the plan itself;
FLOOR divides and rounds down.
The slow twins are the functions that writers of recipes give for the same facts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.plan.shape import (
    BACK_COUNT,
    BACK_FIRST,
    BACK_INDEX,
    BACK_LAST,
    BACK_OFFSETS,
    BACK_SINGLE,
    BACK_SLICE,
    OF_BACK,
    ONE_READER,
    Shape,
)

Way = tuple[int, int, int]

PLAN = ("n", "b", "n_at", "b_at", "base", "back", "host")
"""What a call is told of a plan (`Indices.told`); `n_at` and `b_at`: where the numbers lie, as 32 bits each, for C."""


@dataclass(frozen=True)
class Told:
    """A number; or, with `rows`, the address of an array of so many integers; or several `parts`, a tuple in `text`."""

    text: str
    rows: str | None = None
    parts: tuple[str, ...] = ()


def texts_of(keys: Iterable[Hashable], layout: Shape, back_traits: Sequence[int]) -> dict[Hashable, Told]:
    """Those of a recipe's facts that can be told so, by their keys."""
    telling, found = _Telling(layout, back_traits), dict[Hashable, Told]()
    for key in keys:
        what, *rest = key if isinstance(key, tuple) else (key,)
        ways = FACTS.get((what, len(rest), *[isinstance(one, tuple) for one in rest[-1:]]))
        one = None if ways is None else ways(telling, *rest)
        if one is not None:
            found[key] = one
    return found


class _Telling:
    """Texts for one layout of numbers."""

    def __init__(self, layout: Shape, back_traits: Sequence[int]) -> None:
        self.layout, self.back_traits = layout, back_traits

    def _many(self, at: int) -> str:
        return f"(n[{at + 1}] - n[{at}])"

    def _array(self, at: int) -> Told:
        return Told(f"(base + 4 * n[{at}])", self._many(at))

    def rows(self, type: int) -> Told:
        return Told(self._many(self.layout.rows(type)))

    def part_of_rows(self, type: int, each: int) -> Told:
        return Told(f"FLOOR({self._many(self.layout.rows(type))}, {each})")

    def nodes(self) -> Told:
        return Told(f"({' + '.join(self.rows(type).text for type in self.layout.present)})")

    def nodes_of(self, type: int) -> Told:
        return self._array(self.layout.rows(type))

    def class_size(self, number: int) -> Told:
        return Told(f"(n[{number}] + {int(self.layout.classes[number][1])})")

    def class_first(self, type: int, output: int) -> Told:
        return Told(f"n[{self.layout.class_first((type, output))}]")

    def index(self, read: int) -> Told:
        return self._array(self.layout.read(read, 0))

    def gathered(self, read: int) -> Told:
        return Told(self._many(self.layout.read(read, 0)))

    def bounds(self, read: int) -> Told:
        return self._array(self.layout.read(read, 1))

    def owners(self, read: int) -> Told:
        return Told(f"(base + 4 * n[{self.layout.owners(read)}])", self.gathered(read).text)

    def class_rows(self, read: int) -> Told | None:
        value_class = self.layout.reads[read][4]
        return Told(f"n[{value_class}]") if value_class >= 0 else None

    def first(self, read: int) -> Told:
        return Told(f"n[{self.layout.first_slice(read)}]")

    def steps(self, group: int) -> Told:
        """Where the first and the last rows of steps are, for C, and how many steps there are."""
        lo, hi = self.layout.steps(group, 1), self.layout.steps(group, 2)
        parts = f"host + 4 * n[{lo}]", f"host + 4 * n[{hi}]", self._many(lo)
        return Told(f"({', '.join(parts)})", parts=parts)

    def turns(self, group: int, backward: bool, first: int, limits: object) -> Told:
        return self.steps(group)

    def starts(self, read: int) -> Told:
        return Told(f"(host + 4 * n[{self.layout.read(read, 3)}])")

    def table(self, group: int) -> Told:
        return self._array(self.layout.step_table(group))

    def widest(self, type: int, port: int | None) -> Told | None:
        group = self.layout.group_of[type]
        alone = port is None and len(self.layout.groups[group][1]) == 1
        return Told(f"n[{self.layout.largest_steps[group]}]") if alone else None

    def _of_way(self, way: Way, what: int) -> str:
        return f"b[{self.layout.way(way) + what}]"

    def way_rows(self, way: Way) -> Told:
        return Told(f"({self._of_way(way, BACK_LAST)} - {self._of_way(way, BACK_FIRST)})")

    def way_first(self, way: Way) -> Told:
        return Told(self._of_way(way, BACK_FIRST))

    def way_slice(self, way: Way) -> Told:
        return Told(self._of_way(way, BACK_SLICE))

    def single(self, way: Way) -> Told:
        return Told(f"(back + 4 * {self._of_way(way, BACK_SINGLE)})", self.way_rows(way).text)

    def own_first(self, type: int, output: int, way: Way) -> Told:
        return Told(f"({self.class_first(type, output).text} - {self._of_way(way, BACK_FIRST)})")

    def _has_bags(self, way: Way) -> bool:
        """Whether C has found index and bounds; where every row has one reader at most, it has not."""
        return not self.back_traits[self.layout.way(way) // OF_BACK] & ONE_READER

    def back_index(self, way: Way) -> Told | None:
        if not self._has_bags(way):
            return None
        return Told(f"(back + 4 * {self._of_way(way, BACK_INDEX)})", self._of_way(way, BACK_COUNT))

    def back_bounds(self, way: Way) -> Told | None:
        if not self._has_bags(way):
            return None
        return Told(f"(back + 4 * {self._of_way(way, BACK_OFFSETS)})", f"({self.way_rows(way).text} + 1)")


FACTS: dict[tuple[Any, ...], Callable[..., Told | None]] = {
    ("rows", 1, False): _Telling.rows,
    ("part of rows", 2, False): _Telling.part_of_rows,
    ("nodes", 0): _Telling.nodes,
    ("nodes", 1, False): _Telling.nodes_of,
    ("fed rows", 1, False): _Telling.nodes_of,
    ("class", 1, False): _Telling.class_size,
    ("class first", 2, False): _Telling.class_first,
    ("class rows", 1, False): _Telling.class_rows,
    ("index", 1, False): _Telling.index,
    ("many", 1, False): _Telling.gathered,
    ("edges", 1, False): _Telling.gathered,
    ("bounds", 1, False): _Telling.bounds,
    ("owners", 1, False): _Telling.owners,
    ("first", 1, False): _Telling.first,
    ("steps", 1, False): _Telling.steps,
    ("turns", 4, True): _Telling.turns,
    ("starts", 1, False): _Telling.starts,
    ("table", 1, False): _Telling.table,
    ("widest", 2, False): _Telling.widest,
    ("many", 1, True): _Telling.way_rows,
    ("first of", 1, True): _Telling.way_first,
    ("slice", 1, True): _Telling.way_slice,
    ("single", 1, True): _Telling.single,
    ("from", 3, True): _Telling.own_first,
    ("back index", 1, True): _Telling.back_index,
    ("back bounds", 1, True): _Telling.back_bounds,
}
"""By the first part of a fact's key, how many follow, and whether the last one of them is a way back."""
