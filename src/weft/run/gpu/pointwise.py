"""Pointwise operations of a piece as fused kernels; products and gathers stay with the library.

    phase 0    pointwise operations on what the piece is given          one kernel
    phase 1    a product of these; pointwise operations on the result   one kernel
    ...

The kernel of a phase reads each operand once and writes what others need straight to its place, an arena's rows among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from weft.graph.tape import Value, operands
from weft.run.emit import Code, Emitter
from weft.run.formulas import JOINS, number_of
from weft.run.gpu.formulas import PRELUDE, has_formula
from weft.run.gpu.job import Job
from weft.run.gpu.launch import Kernel, Quick, allocator, fresh_text
from weft.run.gpu.memory import Memory
from weft.run.gpu.totals import adds_up_rows, column_sums
from weft.run.gpu.units import NotExpressible, Units
from weft.run.gpu.variables import Tile
from weft.run.rowview import cuts_rows, place_of, reads_in_place, row_width
from weft.run.split import Piece
from weft.run.views import bases

aten = torch.ops.aten


def emit_triton(piece: Piece, stores: Iterable[Value], leave_out: Iterable[Value] = ()) -> Code | None:
    """The piece with its pointwise operations fused, and sums by kernels of their own; None where there are none of either."""
    emitter = _TritonEmitter(piece, tuple(stores), tuple(leave_out))
    if not emitter.fusable and not any(adds_up_rows(value) for value in piece.values):
        return None
    code = emitter.code()
    return replace(code, fused=frozenset(value.name for value in piece.values if id(value) in emitter.fusable))


def fuses(value: Value) -> bool:
    """Whether an operation can be part of a kernel."""
    if value.rows is None or not row_width(value):
        return False
    if value.target in JOINS:
        dim = value.args[1] if len(value.args) > 1 else 0
        parts = value.args[0]
        return cuts_rows(value, dim) and all(one.constant is None and _readable(one, value) for one in parts)
    if not has_formula(value):
        return False
    return all(number_of(arg) is not None or _readable(arg, value) for arg in operands(value))


def _readable(operand: Value, value: Value) -> bool:
    if operand.constant is not None:
        return number_of(operand) is not None
    return place_of(operand) is not None and (operand.rows is None or operand.rows == value.rows)


class _TritonEmitter(Emitter):
    def __init__(self, piece: Piece, stores: tuple[Value, ...], leave_out: tuple[Value, ...]) -> None:
        super().__init__(piece, stores, True, leave_out)
        self.fusable = {id(value) for value in self.piece.values if fuses(value)}
        self.runs = self._runs()

    def _call(self, value: Value) -> str:
        if adds_up_rows(value):
            self.space["column_sums"] = column_sums
            return f"column_sums({self.name(value.args[0])})"
        return super()._call(value)

    def _new(self, value: Value) -> str:
        takes, into = self.parameters
        sizes = [size if isinstance(size, int) else self._render(size) for size in value.shape or ()]
        if not (takes or into) or value.dtype is None:
            return super()._new(value)
        if "allocator" not in self.space:
            self.space["allocator"] = allocator
            self.lines.append(f"fresh = allocator({self.name(takes[0]) if takes else f'to_{self.name(into[0])}'}.device)")
        return fresh_text(sizes, value.dtype)

    def _plan_joins(self) -> None:
        """Kernels write the parts of a join in place themselves."""

    def _runs(self) -> list[tuple[int, str, list[Value]]]:
        """Which values share a kernel: (phase, kind of rows, values)."""
        while True:
            phase = self._phases()
            found: dict[tuple[int, str], list[Value]] = {}
            for value in self.piece.values:
                if id(value) in self.fusable and value.rows is not None:
                    found.setdefault((phase[id(value)], value.rows.kind), []).append(value)
            bad = next((run for run in found.values() if not _expressible(run)), None)
            if bad is None:
                return [(number, kind, run) for (number, kind), run in found.items()]
            self.fusable -= {id(value) for value in bad}

    def _phases(self) -> dict[int, int]:
        """How many library operations lie, one behind the other, before each value."""
        phase: dict[int, int] = {}
        for value in self.piece.values:
            before = [phase.get(id(base), 0) for operand in operands(value) for base in bases(operand)]
            phase[id(value)] = max(before, default=0) + (id(value) not in self.fusable)
        return phase

    def body(self) -> None:
        phase = self._phases()
        for number in range(max(phase.values(), default=0) + 1):
            for value in self.piece.values:
                if phase[id(value)] == number and id(value) not in self.fusable:
                    self._ensure(value)
            for at, kind, run in self.runs:
                if at == number:
                    self._kernel(run, kind)

    def _kernel(self, run: list[Value], kind: str) -> None:
        inside = {id(value) for value in run}
        outward = [value for value in run if self._leaves(value, inside)]
        inputs = {}
        for value in run:
            for operand in operands(value):
                place = place_of(operand)
                if place is not None and operand.constant is None and id(place.base) not in inside:
                    inputs[id(place.base)] = place.base
        for base in inputs.values():
            self._ensure(base)
            if id(base) not in self.checked:
                self.checked.add(id(base))
                self.lines.append(f"{self.name(base)} = {self.name(base)}.contiguous()")
        spent = [base for base in inputs.values() if self._is_spent(base, run)]
        for value in outward:
            into = self.destination.get(id(value))
            if into is None:
                same = [base for base in spent if base.shape == value.shape and base.dtype == value.dtype]
                into = self.name(spent.pop(spent.index(same[0]))) if same else self._new(value)
            self.lines.append(f"{self.name(value)} = {into}")
        self.made.update(inside)
        name = f"kernel{sum(key.startswith('kernel') for key in self.space)}"
        self.space[name] = fused(run, list(inputs.values()), outward)
        arguments = ", ".join(self.name(value) for value in [*inputs.values(), *outward])
        self.lines.append(f"{name}.go({kind}, {arguments})")

    def _is_spent(self, base: Value, run: list[Value]) -> bool:
        """Whether a product's result is read by one kernel alone, which then may write over it."""
        if base.target is not aten.mm.default or id(base) not in self.inside or id(base) in self.kept:
            return False
        readers = [value for value in self.piece.values if any(one is base for o in operands(value) for one in bases(o))]
        mine = {id(value) for value in run}
        return all(id(value) in mine and reads_in_place(value, base) for value in readers)

    def _leaves(self, value: Value, inside: set[int]) -> bool:
        """Whether anything outside the kernel reads a value."""
        if id(value) in self.kept:
            return True
        readers = [reader for reader in self.piece.values if id(reader) not in inside]
        return any(id(base) == id(value) for reader in readers for operand in operands(reader) for base in bases(operand))


def _expressible(run: list[Value]) -> bool:
    """Whether one kernel computes these: none needs more of another than its own tile of columns."""
    inside = {id(value) for value in run}
    try:
        units = Units(run, run)
        for value in run:
            if value.target in JOINS:
                parts = units.joined(value)
            else:
                given = [arg for arg in operands(value) if number_of(arg) is None]
                parts = [part for arg in given for part in units.parts(arg, units.count(value))]
            if any(part.one and part.key in inside and row_width(units.values[part.key]) != 1 for part in parts):
                return False
    except NotExpressible:
        return False
    return True


def fused(run: list[Value], inputs: list[Value], outputs: list[Value]) -> Quick:
    """What computes a run of pointwise operations: `go(rows, *inputs, *outputs)`."""
    units = Units(run, outputs)
    columns = min(64, max(1, 1 << (units.width - 1).bit_length()))
    tile = Tile(rows=max(1, 1024 // columns), columns=columns)
    names = [f"p{i}" for i in range(len(inputs) + len(outputs))]
    memory = {
        id(value): Memory(name, row_width(value) or 1, "r" if value.rows is not None else "")
        for name, value in zip(names, [*inputs, *outputs], strict=True)
    }
    job = Job(units, tile, memory, {id(value): memory[id(value)] for value in outputs}, overwrites=True)
    job.opening()
    for value in run:
        if value.target not in JOINS or id(value) in job.outputs:
            job.compute(value)
    across = -(-units.width // columns)
    lines = [
        f"def piece(n, {', '.join(names)}):",
        "    tile = tl.program_id(0)",
        f"    column = tile % {across}",
        f"    r = (tile // {across}) * {tile.rows} + tl.arange(0, {tile.rows})",
        "    live = r < n",
        "    r = r.to(tl.int64)",
        *(f"    {line}" for line in job.text),
    ]
    source = PRELUDE + "\n\n@triton.jit(do_not_specialize=['n'])\n" + "\n".join(lines) + "\n"
    return Quick(Kernel(source, "piece"), 1, f"-(-n0 // {tile.rows}) * {across}")
