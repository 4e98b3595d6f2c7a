"""The variables of one job: how they come from memory, and go there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from weft.run.gpu.formulas import HALVES, TYPES, loaded, rounded
from weft.run.gpu.memory import Bag, Collected, Memory, Returned
from weft.run.gpu.units import NotExpressible, Part, Units, tells


@dataclass(frozen=True)
class Tile:
    """How much one program does at a time: rows, columns of each unit, and numbers of the inner dimension of a product.

    With several `ways` each warp adds up its own part of the inner dimension: a product of few rows and columns has too little
    work for several warps otherwise.
    """

    rows: int = 16
    columns: int = 16
    inner: int = 64
    precision: str = "ieee"
    ways: int = 1
    stages: int = 3
    """Parts of the inner dimension that are loaded ahead, at most."""
    warps: int = 4


@dataclass(eq=False)
class Variables:
    """The lines of one job, and which variable holds which part of a value."""

    units: Units
    tile: Tile
    memory: Mapping[int, Memory]
    """From where values are read, by id."""
    outputs: Mapping[int, Memory]
    """Where those go that are stored: an input that is one of them is read elsewhere."""
    prefix: str = ""
    """Of the names of the edges' bounds and owners."""
    overwrites: bool = False
    """Whether some of the memory it writes is memory it reads."""
    early: list[str] = field(default_factory=list)
    """Loads, all of them before the first product: their latencies pass together."""
    lines: list[str] = field(default_factory=list)
    names: dict[Part, str] = field(default_factory=dict)
    indices: set[str] = field(default_factory=set)
    numbers: int = 0
    loading: bool = False

    @property
    def whole_units(self) -> bool:
        return self.units.width % self.tile.columns == 0

    def fresh_name(self, start: str = "x") -> str:
        self.numbers += 1
        return f"{start}{self.numbers}"

    def say(self, line: str) -> None:
        (self.early if self.loading else self.lines).append(line)

    @property
    def text(self) -> list[str]:
        """The whole job. One that writes over what it reads stores nothing before all its threads have loaded."""
        if not self.overwrites:
            return [*self.early, *self.lines]
        first = next((at for at, line in enumerate(self.lines) if "tl.store(" in line), 0)
        while self.lines[first : first + 1] and self.lines[first].startswith(" "):
            first -= 1
        return [*self.early, *self.lines[:first], "tl.debug_barrier()", *self.lines[first:]]

    @contextmanager
    def loads_first(self) -> Iterator[None]:
        before, self.loading = self.loading, True
        try:
            yield
        finally:
            self.loading = before

    def opening(self) -> None:
        """Columns of the tile, and which of them exist."""
        columns = self.tile.columns
        with self.loads_first():
            self.say(f"col = column * {columns} + tl.arange(0, {columns})")
            if self.whole_units:
                self.say("fits = live[:, None]")
            else:
                self.say(f"real = col < {self.units.width}")
                self.say("fits = live[:, None] & real[None, :]")

    def put(self, memory: Memory, at: int, one: bool, name: str) -> None:
        """Write a part to its memory."""
        row, column = memory.row_of(at if one else at * self.units.width)
        if one:
            where = f"{memory.pointer} + ({row})[:, None] * {memory.width} + {column}"
            self.say("if column == 0:")  # every program of a row has the number; one writes it
            self.say(f"    tl.store({where}, {name}, mask=live[:, None])")
        else:
            text = f"{memory.pointer} + ({row})[:, None] * {memory.width} + {column} + col[None, :]"
            self.say(f"tl.store({text}, {name}, mask=fits)")

    def read(self, part: Part) -> str:
        """The variable that holds a part; loaded where it is not at hand."""
        if part not in self.names:
            self.names[part] = self._load(part)
        return self.names[part]

    def _load(self, part: Part) -> str:
        value = self.units.values[part.key]
        memory = self.memory.get(part.key)
        if memory is None:
            raise NotExpressible(f"{tells(value)}, which is read where it does not exist")
        return self.load_from(memory, part, value.dtype)

    def load_from(self, memory: Memory, part: Part, dtype: torch.dtype | None) -> str:
        with self.loads_first():
            return self._loaded(memory, part, dtype)

    def _loaded(self, memory: Memory, part: Part, dtype: torch.dtype | None) -> str:
        column = part.at if part.one else part.at * self.units.width
        if isinstance(memory, Bag):
            return self._bag(memory, column, part.one, dtype)
        if isinstance(memory, Collected):
            return self._collected(memory, part, dtype)
        name = self.fresh_name()
        if isinstance(memory, Returned):
            at = self._returned_rows(memory)
            mask = f"({at} < {memory.total})[:, None]" + ("" if part.one else " & fits")
            self.say(f"{name} = {self._at(memory, at, column, part.one, mask, dtype)}")
        elif not memory.row:
            mask = "real[None, :]" if not (self.whole_units or part.one) else ""
            text = f"{memory.pointer} + {column}" + ("" if part.one else " + col[None, :]")
            self.say(f"{name} = {loaded(f'tl.load({text}' + (f', mask={mask}, other=0)' if mask else ')'), dtype)}")
        else:
            self.use_index(memory, column)
            row, inside = memory.row_of(column)
            self.say(f"{name} = {self._at(memory, row, inside, part.one, None, dtype)}")
        return name

    def _at(self, memory: Memory, row: str, column: int, one: bool, mask: str | None, dtype: torch.dtype | None) -> str:
        mask = mask or ("live[:, None]" if one else "fits")
        where = f"{memory.pointer} + ({row})[:, None] * {memory.width} + {column}" + ("" if one else " + col[None, :]")
        past = ', cache_modifier=".cg"' if memory.fresh else ""
        return loaded(f"tl.load({where}, mask={mask}, other=0{past})", dtype)

    def use_index(self, memory: Memory, column: int) -> None:
        needed = memory.index_of(column)
        if needed is not None and needed[0] not in self.indices:
            self.indices.add(needed[0])
            self.early.append(f"{needed[0]} = {needed[1]}")

    def _returned_rows(self, memory: Returned) -> str:
        name = f"back_{memory.index}"
        if name not in self.indices:
            self.indices.add(name)
            text = f"tl.load({memory.index} + r + {memory.first}, mask=live, other={memory.total})"
            self.say(f"{name} = {text}.to(tl.int64)")
        return name

    def _bag(self, memory: Bag, column: int, one: bool, dtype: torch.dtype | None) -> str:
        """A sum over a segment, in order, or another reduction: as many turns as the longest segment of the tile has rows."""
        start = f"at_{memory.bounds}{memory.index}"
        if start not in self.indices:
            self.indices.add(start)
            first = f" + {memory.first}" if memory.first else ""
            self.say(f"{start} = tl.load({memory.bounds} + r{first}, mask=live, other=0)")
            self.say(f"many_{start} = tl.load({memory.bounds} + r{first} + 1, mask=live, other=0) - {start}")
            self.say(f"most_{start} = tl.max(many_{start}, 0)")
        name = self.fresh_name()
        wide = f"({self.tile.rows}, {1 if one else self.tile.columns})"
        none = {"sum": "0", "max": '-float("inf")', "min": 'float("inf")'}[memory.how]
        kind = "tl.float32" if dtype in HALVES else TYPES[dtype or torch.float32]
        self.say(f"{name} = tl.full({wide}, {none}, {kind})")
        self.say("place = 0")
        self.say(f"while place < most_{start}:")
        self.say(f"    here = live & (place < many_{start})")
        at = f"{start} + place"
        if memory.index:
            self.say(f"    which = tl.load({memory.index} + {at}, mask=here, other=0).to(tl.int64)")
        else:
            self.say(f"    which = ({at}).to(tl.int64)")
        mask = "here[:, None]" if one or self.whole_units else "here[:, None] & real[None, :]"
        row = memory.row.replace("r", "which", 1)
        if memory.how == "sum":
            self.say(f"    {name} += {self._at(memory, row, column, one, mask, dtype)}")
        else:
            sign = ">" if memory.how == "max" else "<"
            self.say(f"    other = {self._at(memory, row, column, one, mask, dtype)}")
            self.say(f"    {name} = tl.where(here[:, None] & ((other {sign} {name}) | (other != other)), other, {name})")
        self.say("    place += 1")
        if memory.how != "sum":
            self.say(f"{name} = tl.where((many_{start} > 0)[:, None], {name}, 0.0)")
        return self.round_off(name, dtype)

    def round_off(self, name: str, dtype: torch.dtype | None) -> str:
        if dtype in HALVES:
            self.say(f"{name} = {rounded(name, dtype)}")
        return name

    def _collected(self, memory: Collected, part: Part, dtype: torch.dtype | None) -> str:
        found = [self.load_from(one, part, dtype) for one in (memory.outside, *memory.inner) if one is not None]
        name = self.fresh_name()
        shape = f"({self.tile.rows}, {1 if part.one else self.tile.columns})"
        total = " + ".join(found) or f"tl.zeros({shape}, {TYPES[dtype or torch.float32]})"
        self.say(f"{name} = {rounded(total, dtype)}")
        return name
