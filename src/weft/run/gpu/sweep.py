"""Running the steps of a group as one kernel: built once for each way a group can look, bound to tensors at every call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from weft.errors import FallbackWarning
from weft.graph.tape import Value
from weft.run.code import CellCode
from weft.run.gpu.bind import Binding
from weft.run.gpu.job import Tile
from weft.run.gpu.launch import Kernel, current_stream, interpreted
from weft.run.gpu.stages import Stages
from weft.run.gpu.sweeptext import Member, sweep_text
from weft.run.gpu.table import FIXED, columns, step_table, stretches
from weft.run.gpu.units import NotExpressible
from weft.run.split import Piece
from weft.run.typerun import TypeRun


@dataclass(eq=False)
class Part:
    """One type of a group: its piece, bound to names."""

    run: TypeRun
    piece: Piece
    stores: tuple[Value, ...]
    binding: Binding


@dataclass(eq=False)
class Sweep:
    """A compiled sweep. Its bindings say where the tensors of a call are, type by type."""

    kernel: Kernel
    bindings: list[Binding]
    scratch: list[list[tuple[Value, str]]]
    columns: int
    backward: bool
    keep: object
    """What the key of this sweep names by its address."""

    def launch(self, number: int, runs: Sequence[TypeRun], begin: int, end: int) -> None:
        """Run some steps of a group."""
        indices = runs[0].indices
        device = indices.device
        arguments: list[Any] = [indices.tensor(step_table(indices.plan, number)), begin, end, _counter(device)]
        for run, binding, scratch in zip(runs, self.bindings, self.scratch, strict=True):
            arguments += [source.find(run) for source in binding.parameters.values()]
            arguments += [_scratch(run, value) for value, _ in scratch]
        programs = _programs(device, self.columns)
        self.kernel.launch(programs, device, arguments, (programs,))


def sweeps(
    number: int, runs: Sequence[TypeRun], key: Hashable, parts: Callable[[], list[Part]], backward: bool
) -> list[tuple[Sweep, int, int]] | None:
    """The launches that walk all steps of a group, each with its range of steps, in order; None where no kernel can."""
    found: list[tuple[Sweep, int, int]] = []
    for begin, end, width in stretches(runs[0].indices.plan, number):
        sweep = built(number, runs, key, parts, backward, width)
        if not isinstance(sweep, Sweep):
            return None
        found.append((sweep, begin, end))
    return found[::-1] if backward else found


def by_one_kernel(run: TypeRun) -> bool:
    """Whether the steps of a type are to run as one kernel: not in float64, and not where they are so wide that the library's
    products are faster, launches and all."""
    if run.code.role.backend != "triton" or run.rows >= WIDEST * max(len(run.cuts), 1):
        return False
    return interpreted() or not _has_doubles(run.code)


def _has_doubles(code: CellCode) -> bool:
    return any(value.dtype is torch.float64 for value in code.tape.inputs.values())


_built: WeakKeyDictionary[CellCode, dict[Hashable, Sweep | NotExpressible]] = WeakKeyDictionary()


WIDEST = 1000
"""Rows of a step, on average, from which on a launch for every product is faster (measured on an H200)."""


def built(
    number: int, runs: Sequence[TypeRun], key: Hashable, parts: Callable[[], list[Part]], backward: bool, width: str
) -> Sweep | NotExpressible:
    """The sweep of a group for a key and for steps of a width, made when it is first needed; or why there is none."""
    code = runs[0].code
    kept = _built.setdefault(code, {})
    where = columns(runs[0].indices.plan, number)
    key = (key, tuple(where), width, torch.get_float32_matmul_precision())
    if key not in kept:
        try:
            kept[key] = _build(parts(), where, width, backward)
        except NotExpressible as why:
            kept[key] = why
            text = f"{why.cell or code.name}: backend 'triton' runs its steps one by one, for no kernel can express {why}"
            warnings.warn(text, FallbackWarning, stacklevel=2)
    return kept[key]


def _build(parts: list[Part], where: dict[tuple[int, int], int], width: str, backward: bool) -> Sweep:
    members, parameters, numbers, scratch = [], list[str](), list[str](), []
    widest = 1
    for part in parts:
        binding = part.binding
        shifts = {name: where[part.run.type, output] + backward for output, name in binding.outputs_shifted.items()}
        try:
            member, stages = _member(part, shifts, width)
        except NotExpressible as why:
            why.cell = part.run.code.name
            raise
        members.append(member)
        widest = max(widest, member.columns)
        parameters += [*binding.parameters, *(name for _, name in stages.scratch)]
        numbers += binding.numbers
        scratch.append(stages.scratch)
    text = sweep_text(members, parameters, numbers, backward, FIXED + 2 * len(where))
    kernel = Kernel(text, "sweep", cooperative=True)
    return Sweep(kernel, [part.binding for part in parts], scratch, widest, backward, [part.piece for part in parts])


def _member(part: Part, shifts: dict[str, int], width: str) -> tuple[Member, Stages]:
    binding = part.binding
    stages = Stages(part.piece, part.stores, binding.inputs, binding.outputs, binding.weights, binding.prefix)
    tile = tile_for({value.dtype for value in part.piece.values if value.dtype is not None}, width)
    jobs = [stages.jobs(stage, tile) for stage in range(stages.count)]
    return Member(jobs, tile, -(-stages.units.width // tile.columns), shifts), stages


def tile_for(dtypes: set[torch.dtype], width: str) -> Tile:
    """Tiles for steps of a width: few rows leave most programs idle, so their columns are dealt out more finely; of many rows
    each program takes more, so that weights are read less often."""
    exact = torch.get_float32_matmul_precision() == "highest" and torch.float32 in dtypes
    if exact or torch.float64 in dtypes:
        return Tile(inner=32, precision="ieee")
    if width == "wide":
        return Tile(rows=64, columns=32, inner=32, precision="tf32")
    return Tile(columns=8 if width == "narrow" else 16, inner=32, precision="tf32", ways=4)


def _scratch(run: TypeRun, value: Value) -> Tensor:
    """Memory for the widest step."""
    assert value.rows is not None
    sizes = run.cuts.sizes if value.rows.kind == "n" else run.edge_cuts().sizes
    shape = [size for size in (value.shape or ()) if isinstance(size, int)]
    return torch.empty((max(sizes, default=0), *shape), dtype=value.dtype, device=run.indices.device)


_counters: dict[tuple[torch.device, int], Tensor] = {}
_processors: dict[torch.device, int] = {}


def _counter(device: torch.device) -> Tensor:
    """The barrier's count, zero between launches; one for each stream, for sweeps of two streams may run at once."""
    stream = current_stream(device)
    if (device, stream) not in _counters:
        _counters[device, stream] = torch.zeros(2, dtype=torch.int32, device=device)
    return _counters[device, stream]


def _programs(device: torch.device, columns: int) -> int:
    """As many programs as run at once, and a multiple of the columns' tiles so that each keeps its columns."""
    if interpreted():
        return 1
    if device not in _processors:
        _processors[device] = torch.cuda.get_device_properties(device).multi_processor_count
    most = _processors[device]
    return most // columns * columns if columns <= most else most
