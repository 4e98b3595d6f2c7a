"""Running the steps of a group as one kernel: built once for each way a group can look, bound to tensors at every call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from weft.errors import warn
from weft.graph.tape import Value
from weft.plan.plan import Plan
from weft.run.code import CellCode
from weft.run.gpu.bind import Binding
from weft.run.gpu.counts import counter
from weft.run.gpu.launch import Kernel, current_stream, interpreted
from weft.run.gpu.stages import Stages
from weft.run.gpu.sweeptext import Member, sweep_text
from weft.run.gpu.table import FIXED, WIDTHS, Limits, Stretch, columns, step_table, stretches
from weft.run.gpu.tiles import EXACT, programs, rows_at_once, stages, tile_for
from weft.run.gpu.units import NotExpressible
from weft.run.gpu.variables import Tile
from weft.run.split import Piece
from weft.run.typerun import TypeRun


@dataclass(eq=False)
class Part:
    """One type of a group: its piece, bound to names."""

    run: TypeRun
    piece: Piece
    stores: tuple[Value, ...]
    binding: Binding
    overwrites: bool = False


@dataclass(eq=False)
class Sweep:
    """A compiled sweep for steps of one width. Its bindings say where the tensors of a call are, type by type."""

    kernel: Kernel
    bindings: list[Binding]
    scratch: list[list[tuple[Value, str]]]
    tile: Tile
    columns: int
    """Tiles that lie side by side."""
    keep: object
    """What the key of this sweep names by its address."""


@dataclass(eq=False)
class Walk:
    """The sweeps that together walk all steps of a group, by width of the steps."""

    sweeps: dict[str, Sweep]
    backward: bool
    kinds: list[torch.dtype | None] = field(default_factory=list)
    """What the arguments point to; None for numbers."""
    _ready: dict[tuple[str, bool, torch.device], tuple[Any, ...]] = field(default_factory=dict)

    def run(self, number: int, runs: Sequence[TypeRun]) -> None:
        """Run all steps of a group."""
        indices, some = runs[0].indices, self.sweeps["narrow"]
        arguments: list[Any] = [indices.tensor(step_table(indices.plan, number))]
        for run, binding, scratch in zip(runs, some.bindings, some.scratch, strict=True):
            arguments += [source.find(run) for source in binding.parameters.values()]
            arguments += [_scratch(run, value) for value, _ in scratch]
        self.kinds = [None if type(argument) is int else argument.dtype for argument in arguments]
        tensors = arguments  # they must not go before the kernel is launched: memory for a new count is asked for then
        if not interpreted():
            arguments = [argument if type(argument) is int else argument.data_ptr() for argument in tensors]
        pairs = zip(arguments, self.kinds, strict=True)
        low = 0 if interpreted() else reduce(or_, [at for at, kind in pairs if kind is not None])
        turns = stretches(indices.plan, number, self.backward, self.limits(indices.device))
        self.start(turns, indices.device, current_stream(indices.device), low, *arguments)

    def limits(self, device: torch.device, apart: int | None = None) -> Limits:
        """From how many rows on steps are of which width; from `apart` on, where it is given, the library multiplies."""
        pairs = zip(self.sweeps.values(), [*self.sweeps][1:], strict=False)
        found = [(rows_at_once(sweep.tile, sweep.columns, device) + 1, wider) for sweep, wider in pairs]
        found = [(rows, name) for rows, name in found if apart is None or rows < apart]
        return (*found, *(() if apart is None else ((apart, "apart"),)))

    def start(self, turns: Sequence[Stretch], device: torch.device, stream: int, low: int, table: Any, *arguments: Any) -> None:
        """Launch. Arguments are addresses, `low` all of these together; under the interpreter they are tensors."""
        count = counter(device, stream)
        for begin, end, width in turns:
            if not isinstance(table, int):
                self.sweeps[width].kernel.function[(1,)](table, begin, end, count, *arguments, 1)
                continue
            ready, many, fixed = self._ready.get((width, low & 15 == 0, device)) or self._make_ready(width, low, device)
            at = count.data_ptr()
            ready(many, 1, 1, stream, *fixed, table, begin, end, at, *arguments, many)

    def _make_ready(self, width: str, low: int, device: torch.device) -> tuple[Any, ...]:
        sweep, aligned = self.sweeps[width], low & 15 == 0
        many = programs(device, sweep.columns)
        kinds = [self.kinds[0], None, None, torch.int32, *self.kinds[1:]]
        ready = sweep.kernel.ready(device, kinds, (many,), aligned)
        self._ready[width, aligned, device] = found = ready, many, sweep.kernel.fixed[ready]
        return found

    def made(self, width: str, device: torch.device, aligned: bool) -> tuple[Any, int]:
        """The compiled kernel for steps of a width, and how many programs run it."""
        many = self._make_ready(width, 0 if aligned else 1, device)[1]
        kinds = [self.kinds[0], None, None, torch.int32, *self.kinds[1:]]
        return self.sweeps[width].kernel.made(device, kinds, (many,), aligned), many


def by_one_kernel(run: TypeRun) -> bool:
    """Whether the steps of a type are to run as one kernel: not in float64, and not where they are so wide that the library's
    products are faster, launches and all."""
    return run.code.role.backend == "triton" and few_rows(run.code, run.indices.plan, run.type)


def few_rows(code: CellCode, plan: Plan, type: int) -> bool:
    """Whether kernels suit a type of a plan."""
    if len(plan.rows[type]) >= WIDEST * max(len(plan.type_steps(type)[0]), 1) and not comes_apart(plan, type):
        return False
    return not code.has_doubles or interpreted()


def comes_apart(plan: Plan, type: int) -> bool:
    """Whether a recipe can run some steps of a group by kernels and others by the library: one type that reads slots."""
    reads = [read for read in plan.reads if read.type == type]
    return len(plan.groups[plan.group_of[type]].types) == 1 and all(read.kind == "slots" for read in reads)


_built: WeakKeyDictionary[CellCode, dict[Hashable, Walk | NotExpressible]] = WeakKeyDictionary()


WIDEST = 1000
"""Rows of a step, on average, from which on a launch for every product is faster (measured on an H200); for groups that do not
come apart."""


def walk(number: int, runs: Sequence[TypeRun], key: Hashable, parts: Callable[[], list[Part]], backward: bool) -> Walk | None:
    """The sweeps of a group for a key, made when they are first needed; None where no kernel can."""
    code = runs[0].code
    kept = _built.setdefault(code, {})
    where = columns(runs[0].indices.plan, number)
    key = (key, tuple(where), torch.get_float32_matmul_precision())
    if key not in kept:
        try:
            kept[key] = Walk(_sweeps(parts, where, backward), backward)
        except NotExpressible as why:
            kept[key] = why
            text = f"{why.cell or code.name}: backend 'triton' runs its steps one by one, for no kernel can express {why}"
            warn(text)
    found = kept[key]
    return found if isinstance(found, Walk) else None


def _sweeps(parts: Callable[[], list[Part]], where: dict[tuple[int, int], int], backward: bool) -> dict[str, Sweep]:
    """A sweep for each width for which there are tiles."""
    found: dict[str, Sweep] = {}
    for width in WIDTHS[:-1]:
        found[width] = _build(parts(), where, width, backward)
        if found[width].tile is EXACT:
            break
    return found


def _build(parts: list[Part], where: dict[tuple[int, int], int], width: str, backward: bool) -> Sweep:
    members, parameters, numbers, scratch, ahead = [], list[str](), list[str](), [], list[int]()
    for part in parts:
        binding = part.binding
        shifts = {name: where[part.run.type, output] + backward for output, name in binding.outputs_shifted.items()}
        try:
            member, found = _member(part, shifts, width)
        except NotExpressible as why:
            why.cell = part.run.code.name
            raise
        members.append(member)
        ahead.append(stages(member.tile, found.units_multiplied, part.run.indices.device))
        parameters += [*binding.parameters, *(name for _, name in found.scratch)]
        numbers += binding.numbers
        scratch.append(found.scratch)
    text = sweep_text(members, parameters, numbers, backward, FIXED + 2 * len(where))
    most = max(members, key=lambda member: member.columns)
    kernel = Kernel(text, "sweep", max(member.tile.warps for member in members), min(ahead), cooperative=True)
    return Sweep(kernel, [part.binding for part in parts], scratch, most.tile, most.columns, [part.piece for part in parts])


def _member(part: Part, shifts: dict[str, int], width: str) -> tuple[Member, Stages]:
    binding = part.binding
    found = Stages(part.piece, part.stores, binding.inputs, binding.outputs, binding.weights, binding.prefix, part.overwrites)
    tile = tile_for({value.dtype for value in part.piece.values if value.dtype is not None}, width)
    jobs = [found.jobs(stage, tile) for stage in range(found.count)]
    return Member(jobs, tile, -(-found.units.width // tile.columns), shifts), found


def _scratch(run: TypeRun, value: Value) -> Tensor:
    """Memory for the widest step."""
    assert value.rows is not None
    sizes = run.cuts.sizes if value.rows.kind == "n" else run.edge_cuts().sizes
    shape = [size for size in (value.shape or ()) if isinstance(size, int)]
    return torch.empty((max(sizes, default=0), *shape), dtype=value.dtype, device=run.indices.device)
