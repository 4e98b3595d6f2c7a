"""From a type's values to a kernel's parameters: where each lies, and how a call finds the tensor."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from weft.graph.program import Ints
from weft.graph.segments import count_to
from weft.graph.tape import Name, Value
from weft.plan.plan import Read
from weft.run.gpu.job import Weight
from weft.run.gpu.memory import Bag, Collected, Gathered, Memory, Returned
from weft.run.gpu.turn import to_be_turned, turned
from weft.run.gpu.units import NotExpressible
from weft.run.indices import BackIndex, ReadIndex
from weft.run.rowview import row_width
from weft.run.split import Piece
from weft.run.typerun import TypeRun

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Source:
    """Where the argument of one parameter comes from: `what` it is, and of which port, output, key or value."""

    what: str
    number: int = 0
    key: Any = None
    value: Value | None = None

    def find(self, run: TypeRun) -> Any:
        """The argument in one call."""
        return getattr(self, f"_{self.what}")(run)

    def _arena(self, run: TypeRun) -> Tensor:
        return run.arenas[run.ports[self.number].value_class, self.key]

    def _index(self, run: TypeRun) -> Tensor:
        return run.indices.read(run.ports[self.number]).index

    def _bounds(self, run: TypeRun) -> Tensor:
        return run.indices.tensor(offsets_of(run.ports[self.number]))

    def _weight(self, run: TypeRun) -> Tensor:
        assert self.value is not None
        return run.whole(self.value)

    def _turned(self, run: TypeRun) -> Tensor:
        return turned(self._weight(run))

    def _rows(self, run: TypeRun) -> Tensor:
        assert self.value is not None
        found = run.fed_on.get(self.value.name)
        return (run.whole(self.value) if found is None else found).to(run.indices.device).contiguous()

    def _owners(self, run: TypeRun) -> Tensor:
        return run.indices.owners(edges_of(run))

    def _edge_bounds(self, run: TypeRun) -> Tensor:
        return run.indices.tensor(offsets_of(edges_of(run)))

    def _outside(self, run: TypeRun) -> Tensor:
        outside: Tensor = run.gradients[self.key][0]
        return outside.contiguous()

    def _outside_at(self, run: TypeRun) -> Tensor:
        """Here the rows are in order already; recipes read them where they lie."""
        return count_to(run.rows, run.indices.device)

    def _returned(self, run: TypeRun) -> Tensor:
        found: Tensor = run.gradients[self.key][1][self.number][0]
        return found

    def _total(self, run: TypeRun) -> int:
        return self._returned(run).shape[0] - 1

    def _back(self, run: TypeRun) -> BackIndex:
        found: BackIndex = run.gradients[self.key][1][self.number][1]
        return found

    def _single(self, run: TypeRun) -> Tensor:
        found = self._back(run).single
        assert found is not None
        return found

    def _back_index(self, run: TypeRun) -> Tensor:
        return self._back(run).index

    def _back_bounds(self, run: TypeRun) -> Tensor:
        return self._back(run).bounds

    def _own(self, run: TypeRun) -> Tensor:
        assert self.value is not None
        return run.store[self.value.name]

    def _in_class(self, run: TypeRun) -> Tensor:
        return run.arenas[run.indices.plan.class_of[run.type, self.number], self.key]


@dataclass(eq=False)
class Binding:
    """One type's part of a kernel: memories of its values by id, and the parameters they need."""

    prefix: str
    inputs: dict[int, Memory] = field(default_factory=dict)
    outputs: dict[int, Memory] = field(default_factory=dict)
    weights: dict[int, Weight] = field(default_factory=dict)
    parameters: dict[str, Source] = field(default_factory=dict)
    numbers: list[str] = field(default_factory=list)
    outputs_shifted: dict[int, str] = field(default_factory=dict)
    """Variables that shift a row to its place among the class rows, by output."""

    def name(self, value: Value, mark: str = "p") -> str:
        return f"{self.prefix}{mark}_" + re.sub(r"\W", "_", value.name)

    def tensor(self, name: str, source: Source) -> str:
        self.parameters.setdefault(name, source)
        return name

    def number(self, name: str, source: Source) -> str:
        if name not in self.parameters:
            self.numbers.append(name)
        return self.tensor(name, source)

    def shift(self, output: int) -> str:
        return self.outputs_shifted.setdefault(output, f"{self.prefix}shift{output}")

    # Inputs.

    def gathered(self, run: TypeRun, value: Value, at: ReadIndex) -> None:
        """Rows that a port reads while the sweep writes them."""
        key: Name = run.code.input_name[value.name][-1]
        port, name, number = at.read.port, f"{self.prefix}port{at.read.port}", at.read.value_class
        arena = self.tensor(self.name(value), Source("arena", port, key))
        index = self.tensor(f"{name}_index", Source("index", port))
        width = row_numbers(run.arenas[number, key])
        if at.read.kind == "sum":
            bounds = self.tensor(f"{name}_bounds", Source("bounds", port))
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
            self.weights[id(value)] = self._weight(value, run.whole(value))
            return
        if value.rows is not None and (value.rows.times != 1 or value.row_dim != 0):
            raise NotExpressible(f"rows in dimension {value.row_dim} of {value.name}")
        name = self.tensor(self.name(value), Source("rows", value=value))
        self.inputs[id(value)] = Memory(name, row_width(value) or 1, "r" if value.rows is not None else "")

    def _weight(self, value: Value, matrix: Tensor) -> Weight:
        """A matrix as it lies, or turned."""
        along, across = matrix.stride()
        if not to_be_turned(matrix):
            return Weight(self.tensor(self.name(value), Source("weight", value=value)), (along, across))
        return Weight(self.tensor(self.name(value), Source("turned", value=value)), (1, matrix.shape[0]))

    def edges(self) -> None:
        """Which vertex each edge belongs to, and the edges of each vertex."""
        self.tensor(f"{self.prefix}owners", Source("owners"))
        self.tensor(f"{self.prefix}bounds", Source("edge_bounds"))

    def collected(self, value: Value, output: int, outside: bool, inner: list[tuple[int, bool]]) -> None:
        """The gradient of a recurrent output: what comes from outside, and what each reader gives back."""
        width = row_width(value) or 1
        base = self.name(value, "g")
        from_outside = None
        if outside:
            rows = self.tensor(f"{base}_out", Source("outside", key=value.name))
            index = self.tensor(f"{base}_out_at", Source("outside_at", key=value.name))
            from_outside = Gathered(rows, width, "r", False, index)
        parts = [self._returned(value, base, number, single, output) for number, single in inner]
        self.inputs[id(value)] = Collected("", width, "r", True, from_outside, tuple(parts))

    def _returned(self, value: Value, base: str, number: int, single: bool, output: int) -> Memory:
        """What one reader gives back: one row to each row, or several that are added in order."""
        width, key = row_width(value) or 1, value.name
        rows = self.tensor(f"{base}_{number}", Source("returned", number, key))
        index = f"{base}_{number}_index"
        if single:
            self.tensor(index, Source("single", number, key))
            total = self.number(f"{base}_{number}_total", Source("total", number, key))
            return Returned(rows, width, "r", True, index, self.shift(output), total)
        self.tensor(index, Source("back_index", number, key))
        bounds = self.tensor(f"{base}_{number}_bounds", Source("back_bounds", number, key))
        return Bag(rows, width, "r", True, index, bounds, self.shift(output))

    # Outputs.

    def own(self, value: Value) -> None:
        """Memory over all rows of the type, made before the sweep."""
        name = self.tensor(self.name(value, "o"), Source("own", value=value))
        self.outputs[id(value)] = Memory(name, row_width(value) or 1, "r", True)

    def in_class(self, value: Value, output: int, key: Name) -> None:
        """Rows of a class arena: where the step writes them, others read them."""
        name = self.tensor(self.name(value, "o"), Source("in_class", output, key))
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
