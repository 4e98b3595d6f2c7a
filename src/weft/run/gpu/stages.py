"""Cut a piece that runs per step into stages, between which all programs wait for each other.

A program works on a tile of rows and a tile of columns. Pointwise operations stay within the tile. A matrix product needs
whole rows of its operand, a sum over edges needs other rows: what this very step computes of them must be in memory before.

    stage 0    pointwise on what the piece is given; products with what earlier steps wrote
    stage 1    products with, and sums of, what stage 0 computed; pointwise on the result
    ...

A Tree-LSTM is one stage forward and two backward, a GRU over a sum of children three and three.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from weft.graph.tape import Value
from weft.run.formulas import JOINS
from weft.run.gpu.formulas import has_formula
from weft.run.gpu.job import Job, Weight
from weft.run.gpu.memory import Bag, Collected, Gathered, Memory
from weft.run.gpu.units import MIXING, NotExpressible, Units, tells
from weft.run.gpu.variables import Tile
from weft.run.rowview import row_width
from weft.run.split import Piece

aten = torch.ops.aten


def _read_by(value: Value) -> list[Value]:
    """The operands that are rows: not the weight of a product, not the numbers of segments."""
    if value.target in MIXING:
        return [value.args[0]]
    found = value.args[0] if value.target in JOINS else value.args
    return [arg for arg in found if isinstance(arg, Value) and arg.constant is None]


class Stages:
    """The stages of one piece, as text."""

    def __init__(
        self,
        piece: Piece,
        stores: tuple[Value, ...],
        inputs: Mapping[int, Memory],
        outputs: Mapping[int, Memory],
        weights: Mapping[int, Weight],
        prefix: str,
        overwrites: bool = False,
    ) -> None:
        self.piece, self.stores, self.inputs, self.weights, self.prefix = piece, stores, inputs, weights, prefix
        self.overwrites = overwrites
        self.inside = {id(value) for value in piece.values}
        for value in piece.values:
            known = value.target in (*MIXING, *JOINS) or has_formula(value)
            if not known or value.rows is None or value.rows.times != 1 or value.row_dim != 0:
                raise NotExpressible(tells(value))
        rowed = [value for value in piece.takes if value.rows is not None and row_width(value) is not None]
        slots = [one.width for one in inputs.values() if isinstance(one, Gathered) and one.slots > 1]
        self.units = Units([*piece.values, *stores], stores, rowed, slots)
        self.outputs: dict[int, Memory] = dict(outputs)
        self.brought = [v for v in piece.takes if isinstance(inputs.get(id(v)), Bag | Collected)]
        self.phase: dict[int, int] = {}
        self.scratch: list[tuple[Value, str]] = []
        """Values that only this step needs, with the name of their memory."""
        for value in piece.values:
            self.phase[id(value)] = self._phase_of(value, _read_by(value))
        self.copied = [value for value in stores if id(value) not in self.inside]
        for value in self.copied:
            self.phase[id(value)] = self._phase_of(value, [value])
        self._make_room()
        self.count = 1 + max(self.phase.values(), default=0)

    def _reads(self, value: Value, read: list[Value]) -> dict[int, bool]:
        """What an operation reads, by id, and whether it needs more of it than its own tile: whole rows, or a single number
        of a row, which is in one tile of columns and serves all."""
        found: dict[int, bool] = {}
        for operand in read:
            for part in self.units.parts(operand, self.units.count(operand)):
                across = part.one and row_width(self.units.values[part.key]) != 1
                found[part.key] = found.get(part.key, False) or across or (value.target in MIXING and id(value) in self.inside)
        return found

    def _phase_of(self, value: Value, read: list[Value]) -> int:
        known = {id(one) for one in self.brought}
        found = [0]
        for key, later in self._reads(value, read).items():
            if key in self.inside:
                found.append(self.phase[key] + later)
            elif key in known and value.target in MIXING:
                found.append(1)
        return max(found)

    def _make_room(self) -> None:
        """Memory for what a later stage reads and no one else keeps."""
        values = {id(value): value for value in [*self.piece.values, *self.brought]}
        needed: dict[int, Value] = {}
        for value in [*self.piece.values, *self.copied]:
            read = _read_by(value) if id(value) in self.inside else [value]
            for key, later in self._reads(value, read).items():
                apart = later or self.phase.get(key, 0) != self.phase[id(value)]
                if key in values and key not in self.outputs and apart and not self._again(key, value):
                    needed[key] = values[key]
        for key, value in needed.items():
            name = f"{self.prefix}s{len(self.scratch)}"
            first = "lo" if value.rows is not None and value.rows.kind == "n" else "elo"
            self.scratch.append((value, name))
            self.outputs[key] = Memory(name, row_width(value) or 1, f"(r - {first})", True)

    def _again(self, key: int, reader: Value) -> bool:
        """An input that is brought together once more instead of being kept."""
        return key not in self.inside and reader.target not in MIXING

    @property
    def units_multiplied(self) -> int:
        """The most units that one product gives."""
        return max((self.units.count(value) for value in self.piece.values if value.target is aten.mm.default), default=0)

    def jobs(self, stage: int, tile: Tile) -> dict[str, list[str]]:
        """The lines of each job of a stage, by kind of rows."""
        found: dict[str, list[str]] = {}
        for kind in ("n", "e"):
            values = [v for v in self.piece.values if self._runs(v, stage, kind)]
            copied = [v for v in self.copied if self._runs(v, stage, kind)]
            brought = [v for v in self.brought if stage == 0 and id(v) in self.outputs and v.rows and v.rows.kind == kind]
            if values or copied or brought:
                found[kind] = self._job(values, copied, brought, stage, tile)
        return found

    def _runs(self, value: Value, stage: int, kind: str) -> bool:
        if value.target in JOINS and id(value) in self.inside and id(value) not in self.units.stored:
            return False  # only names
        return self.phase[id(value)] == stage and value.rows is not None and value.rows.kind == kind

    def _job(self, values: list[Value], copied: list[Value], brought: list[Value], stage: int, tile: Tile) -> list[str]:
        memory = {**self.inputs, **self.outputs} if stage else {**self.outputs, **self.inputs}
        job = Job(self.units, tile, memory, self.outputs, self.prefix, self.overwrites, weights=self.weights)
        job.opening()
        for value in brought:
            job.bring(value)
        for value in values:
            job.compute(value)
        for value in copied:
            if not any(value is one for one in brought):
                job.bring(value)
        return job.text
