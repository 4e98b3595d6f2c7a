"""From a type's values to a kernel's parameters: where each lies, and how a call finds the tensor."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from weft.graph.program import Ints
from weft.graph.tape import Name, Value
from weft.plan.plan import Read
from weft.run.gpu.job import Weight
from weft.run.gpu.memory import Bag, Collected, Gathered, Memory, Returned
from weft.run.gpu.units import NotExpressible
from weft.run.indices import BackIndex, ReadIndex
from weft.run.rowview import row_width
from weft.run.split import Piece
from weft.run.typerun import TypeRun

Find = Callable[[TypeRun], Any]
"""How a call finds the argument of one parameter."""

aten = torch.ops.aten


@dataclass(eq=False)
class Binding:
    """One type's part of a kernel: memories of its values by id, and the parameters they need."""

    prefix: str
    inputs: dict[int, Memory] = field(default_factory=dict)
    outputs: dict[int, Memory] = field(default_factory=dict)
    weights: dict[int, Weight] = field(default_factory=dict)
    parameters: dict[str, Find] = field(default_factory=dict)
    numbers: list[str] = field(default_factory=list)
    outputs_shifted: dict[int, str] = field(default_factory=dict)
    """Variables that shift a row to its place among the class rows, by output."""

    def name(self, value: Value, mark: str = "p") -> str:
        return f"{self.prefix}{mark}_" + re.sub(r"\W", "_", value.name)

    def tensor(self, name: str, find: Find) -> str:
        self.parameters.setdefault(name, find)
        return name

    def number(self, name: str, find: Find) -> str:
        if name not in self.parameters:
            self.numbers.append(name)
        return self.tensor(name, find)

    def shift(self, output: int) -> str:
        return self.outputs_shifted.setdefault(output, f"{self.prefix}shift{output}")

    # Inputs.

    def gathered(self, run: TypeRun, value: Value, at: ReadIndex) -> None:
        """Rows that a port reads while the sweep writes them."""
        key: Name = run.code.input_name[value.name][-1]
        port, name, number = at.read.port, f"{self.prefix}port{at.read.port}", at.read.value_class
        arena = self.tensor(self.name(value), lambda run: run.arenas[run.ports[port].value_class, key])
        index = self.tensor(f"{name}_index", lambda run: run.indices.read(run.ports[port]).index)
        width = row_numbers(run.arenas[number, key])
        if at.read.kind == "sum":
            bounds = self.tensor(f"{name}_bounds", lambda run: run.indices.tensor(offsets_of(run.ports[port])))
            self.inputs[id(value)] = Bag(arena, width, "r", True, index, bounds)
        else:
            self.inputs[id(value)] = Gathered(arena, width, "r", True, index, at.read.width)

    def plain(self, run: TypeRun, value: Value, piece: Piece) -> None:
        """A tensor that exists before the sweep."""
        if value.constant is not None and value.constant.numel() == 1:
            return
        if run.code.input_name.get(value.name) == ("seg",):
            self.edges()
            return
        if value.rows is None and _is_weight(value, piece):
            along, across = run.whole(value).stride()
            self.weights[id(value)] = Weight(self.tensor(self.name(value), lambda run: run.whole(value)), (along, across))
            return
        if value.rows is not None and (value.rows.times != 1 or value.row_dim != 0):
            raise NotExpressible(f"rows in dimension {value.row_dim} of {value.name}")
        name = self.tensor(self.name(value), lambda run: run.whole(value).to(run.indices.device).contiguous())
        self.inputs[id(value)] = Memory(name, row_width(value) or 1, "r" if value.rows is not None else "")

    def edges(self) -> None:
        """Which vertex each edge belongs to, and the edges of each vertex."""
        self.tensor(f"{self.prefix}owners", lambda run: run.indices.owners(edges_of(run)))
        self.tensor(f"{self.prefix}bounds", lambda run: run.indices.tensor(offsets_of(edges_of(run))))

    def collected(
        self, value: Value, output: int, outside: bool, inner: list[tuple[int, bool]], find: Callable[..., Any]
    ) -> None:
        """The gradient of a recurrent output. `find(run, "outside" | "rows" | "back", number)` gives its parts in a call."""
        width = row_width(value) or 1
        base = self.name(value, "g")
        from_outside = None
        if outside:
            name = self.tensor(f"{base}_out", lambda run: find(run, "outside", 0))
            from_outside = Memory(name, width, "r")
        parts = [self._returned(base, number, single, width, output, find) for number, single in inner]
        self.inputs[id(value)] = Collected("", width, "r", True, from_outside, tuple(parts))

    def _returned(self, base: str, number: int, single: bool, width: int, output: int, find: Callable[..., Any]) -> Memory:
        """What one reader gives back: one row to each row, or several that are added in order."""

        def back(run: TypeRun) -> BackIndex:
            found: BackIndex = find(run, "back", number)
            return found

        rows = self.tensor(f"{base}_{number}", lambda run: find(run, "rows", number))
        index = f"{base}_{number}_index"
        if single:
            self.tensor(index, lambda run: back(run).single)
            total = self.number(f"{base}_{number}_total", lambda run: find(run, "rows", number).shape[0] - 1)
            return Returned(rows, width, "r", True, index, self.shift(output), total)
        self.tensor(index, lambda run: back(run).index)
        bounds = self.tensor(f"{base}_{number}_bounds", lambda run: back(run).bounds)
        return Bag(rows, width, "r", True, index, bounds, self.shift(output))

    # Outputs.

    def own(self, value: Value) -> None:
        """Memory over all rows of the type, made before the sweep."""
        name = self.tensor(self.name(value, "o"), lambda run: run.store[value.name])
        self.outputs[id(value)] = Memory(name, row_width(value) or 1, "r", True)

    def in_class(self, value: Value, output: int, key: Name) -> None:
        """Rows of a class arena: where the step writes them, others read them."""
        name = self.tensor(self.name(value, "o"), lambda run: run.arenas[run.indices.plan.class_of[run.type, output], key])
        self.outputs[id(value)] = Memory(name, row_width(value) or 1, f"(r + {self.shift(output)})", True)


def edges_of(run: TypeRun) -> Read:
    assert run.bag is not None
    return run.bag


def offsets_of(read: Read) -> Ints:
    assert read.offsets is not None
    return read.offsets


def row_numbers(rows: Tensor) -> int:
    return rows[0].numel() if len(rows) else 1


def _is_weight(value: Value, piece: Piece) -> bool:
    return any(other.target is aten.mm.default and other.args[1] is value for other in piece.values)
