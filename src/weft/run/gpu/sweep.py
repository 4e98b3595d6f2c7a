"""Running the steps of a group as one kernel: built once for each way a group can look, bound to tensors at every call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from weft.errors import FallbackWarning
from weft.graph.tape import Value
from weft.plan.plan import Group
from weft.run.code import CellCode
from weft.run.gpu.bind import Binding
from weft.run.gpu.job import Tile
from weft.run.gpu.launch import Kernel, interpreted
from weft.run.gpu.stages import Stages
from weft.run.gpu.sweeptext import FIXED_COLUMNS, Member, sweep_text
from weft.run.gpu.units import NotExpressible
from weft.run.indices import as_tensor
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
    """A compiled sweep. `find` gives the tensors of one call, type by type."""

    kernel: Kernel
    bindings: list[Binding]
    scratch: list[list[tuple[Value, str]]]
    columns: int
    backward: bool
    keep: object
    """What the key of this sweep names by its address."""

    def launch(self, group: Group, runs: Sequence[TypeRun], begin: int, end: int) -> None:
        device = runs[0].indices.device
        table = step_table(group, runs, self.bindings, self.backward)
        arguments: list[Any] = [table, begin, end, _counter(device)]
        for run, binding, scratch in zip(runs, self.bindings, self.scratch, strict=True):
            arguments += [find(run) for find in binding.parameters.values()]
            arguments += [_scratch(run, value) for value, _ in scratch]
        self.kernel.launch(_programs(device, self.columns), device, arguments, (_programs(device, self.columns),))


def by_one_kernel(run: TypeRun) -> bool:
    """Whether the steps of a type are to run as one kernel."""
    return run.code.role.backend == "triton" and (interpreted() or not _has_doubles(run.code))


def _has_doubles(code: CellCode) -> bool:
    return any(value.dtype is torch.float64 for value in code.tape.inputs.values())


_built: WeakKeyDictionary[CellCode, dict[Hashable, Sweep | NotExpressible]] = WeakKeyDictionary()


def built(code: CellCode, key: Hashable, parts: Callable[[], list[Part]], backward: bool) -> Sweep | NotExpressible:
    """The sweep for a key, made when it is first needed; or why there is none."""
    kept = _built.setdefault(code, {})
    if key not in kept:
        try:
            kept[key] = _build(parts(), backward)
        except NotExpressible as why:
            kept[key] = why
            text = f"{why.cell or code.name}: backend 'triton' runs its steps one by one, for no kernel can express {why}"
            warnings.warn(text, FallbackWarning, stacklevel=2)
    return kept[key]


def _build(parts: list[Part], backward: bool) -> Sweep:
    members, parameters, numbers, scratch = [], list[str](), list[str](), []
    width = FIXED_COLUMNS
    widest = 1
    for part in parts:
        binding = part.binding
        shifts = {name: width + i for i, name in enumerate(binding.outputs_shifted.values())}
        width += len(shifts)
        try:
            member, stages = _member(part, shifts)
        except NotExpressible as why:
            why.cell = part.run.code.name
            raise
        members.append(member)
        widest = max(widest, member.columns)
        parameters += [*binding.parameters, *(name for _, name in stages.scratch)]
        numbers += binding.numbers
        scratch.append(stages.scratch)
    text = sweep_text(members, parameters, numbers, backward, width)
    kernel = Kernel(text, "sweep", cooperative=True)
    return Sweep(kernel, [part.binding for part in parts], scratch, widest, backward, [part.piece for part in parts])


def _member(part: Part, shifts: dict[str, int]) -> tuple[Member, Stages]:
    binding = part.binding
    stages = Stages(part.piece, part.stores, binding.inputs, binding.outputs, binding.weights, binding.prefix)
    tile = tile_for(stages.units.width, {value.dtype for value in part.piece.values if value.dtype is not None})
    jobs = [stages.jobs(stage, tile) for stage in range(stages.count)]
    return Member(jobs, tile, -(-stages.units.width // tile.columns), shifts), stages


def tile_for(width: int, dtypes: set[torch.dtype]) -> Tile:
    """Tiles for units of a width."""
    exact = torch.get_float32_matmul_precision() == "highest"
    wide = torch.float64 in dtypes
    return Tile(rows=16, columns=16, inner=32 if wide else 64, precision="ieee" if exact or wide else "tf32")


def step_table(group: Group, runs: Sequence[TypeRun], bindings: Sequence[Binding], backward: bool) -> Tensor:
    """A line for every step: its rows, its edges, its type, and how far its rows are shifted in each class."""
    number = {run.type: i for i, run in enumerate(runs)}
    mine = np.isin(group.step_type, list(number))
    width = FIXED_COLUMNS + sum(len(binding.outputs_shifted) for binding in bindings)
    table = np.zeros((int(mine.sum()), width), dtype=np.int32)
    table[:, 0], table[:, 1] = group.step_lo[mine], group.step_hi[mine]
    column = FIXED_COLUMNS
    plan = runs[0].indices.plan
    for run, binding in zip(runs, bindings, strict=True):
        here = group.step_type[mine] == run.type
        table[here, 4] = number[run.type]
        if run.bag is not None and run.bag.offsets is not None:
            table[here, 2], table[here, 3] = run.bag.offsets[table[here, 0]], run.bag.offsets[table[here, 1]]
        for output in binding.outputs_shifted:
            value_class = plan.class_of[run.type, output]
            first = plan.class_span(plan.group_of[run.type], value_class)[0] if backward else 0
            table[here, column] = plan.class_row[run.type, output][table[here, 0]] - table[here, 0] - first
            column += 1
    return as_tensor(table, runs[0].indices.device)


def _scratch(run: TypeRun, value: Value) -> Tensor:
    """Memory for the widest step."""
    assert value.rows is not None
    sizes = run.cuts.sizes if value.rows.kind == "n" else run.edge_cuts().sizes
    shape = [size for size in (value.shape or ()) if isinstance(size, int)]
    return torch.empty((max(sizes, default=0), *shape), dtype=value.dtype, device=run.indices.device)


_counters: dict[tuple[torch.device, int], Tensor] = {}


def _counter(device: torch.device) -> Tensor:
    """The barrier's count, zero between launches; one for each stream, for sweeps of two streams may run at once."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    if (device, stream) not in _counters:
        _counters[device, stream] = torch.zeros(2, dtype=torch.int32, device=device)
    return _counters[device, stream]


def _programs(device: torch.device, columns: int) -> int:
    """As many programs as run at once, and a multiple of the columns' tiles so that each keeps its columns."""
    if interpreted():
        return 1
    most = torch.cuda.get_device_properties(device).multi_processor_count
    return most // columns * columns if columns <= most else most
