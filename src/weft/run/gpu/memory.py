"""Where the rows of a value lie, as Triton text.

In a kernel `r` are the numbers of the rows (or edges) that a tile works on, `lo` the first of the step, `live` which of them
exist, `col` the columns within a unit.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Memory:
    """Rows of `width` numbers. `row` is the text of their numbers; empty for a value that is the same in every row.

    `fresh` memory is written by other programs while the kernel runs, so that it must be read past the first cache.
    """

    pointer: str
    width: int
    row: str = "r"
    fresh: bool = False

    def row_of(self, column: int) -> tuple[str, int]:
        """The row numbers, and the column within such a row, of a column of the value."""
        return self.row, column

    def index_of(self, column: int) -> tuple[str, str] | None:
        """A variable that must be loaded first: its name and what it is."""
        return None


@dataclass(frozen=True)
class Gathered(Memory):
    """Rows of an arena that `index` names, `slots` of them one behind the other."""

    index: str = ""
    slots: int = 1

    def row_of(self, column: int) -> tuple[str, int]:
        slot, inside = divmod(column, self.width)
        return f"{self.index}_{slot}", inside

    def index_of(self, column: int) -> tuple[str, str]:
        slot = column // self.width
        at = f"r * {self.slots} + {slot}" if self.slots > 1 else "r"
        return f"{self.index}_{slot}", f"tl.load({self.index} + {at}, mask=live, other=0).to(tl.int64)"


@dataclass(frozen=True)
class Bag(Memory):
    """The sum of the rows `index[bounds[i]:bounds[i + 1]]`, added in order; `first` is added to `r` to find `i`.

    Or the largest or smallest of them, number by number, zero where there are none: `how` is "sum", "max" or "min".
    """

    index: str = ""
    bounds: str = ""
    first: str = ""
    how: str = "sum"


@dataclass(frozen=True)
class Returned(Memory):
    """A gradient row that comes back: `index[r + first]`, or nothing where that is not below `total`."""

    index: str = ""
    first: str = ""
    total: str = ""


@dataclass(frozen=True)
class Collected(Memory):
    """A gradient: what comes from outside, plus what readers give back, in order."""

    outside: Memory | None = None
    inner: tuple[Memory, ...] = ()
