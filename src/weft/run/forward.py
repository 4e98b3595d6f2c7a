"""The forward sweep: groups in order; in each what comes before, the steps, what comes after."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weft.graph.segments import bag_sum
from weft.graph.tape import Name, Value
from weft.plan.plan import Group, Plan
from weft.run.indices import ReadIndex
from weft.run.typerun import TypeRun

Step = tuple[list[Callable[[], Any]], tuple[Any, ...]]


def run_forward(plan: Plan, runs: dict[int, TypeRun]) -> None:
    """Compute every value of a plan. Results are in the runs' stores and in their arenas."""
    for group in plan.groups:
        for type in group.types:
            _whole(runs[type], "before")
        if any("during" in runs[type].code.codes for type in group.types):
            _sweep(group, runs)
        for type in group.types:
            _whole(runs[type], "after")


def _whole(run: TypeRun, stage: str) -> None:
    code = run.code.codes.get(stage)
    if code is None:
        return
    places: dict[str, Tensor] = {}
    late: list[tuple[Tensor, Tensor, Tensor]] = []
    for value in code.stores:
        for output, key in exchanged(run, value):
            arena = run.arenas[run.indices.plan.class_of[run.type, output], key]
            where = run.indices.class_rows(run.type, output)
            if value.name in places:
                continue
            if isinstance(where, tuple):
                places[value.name] = arena[where[0] : where[1]]
            else:
                places[value.name] = run.empty(value)
                late.append((arena, where, places[value.name]))
    run.run_whole(code, places)
    run.store.update(places)
    for arena, where, rows in late:
        arena.index_copy_(0, where.long(), rows)
    _copy_twins(run, code.stores)


def _copy_twins(run: TypeRun, stores: tuple[Value, ...]) -> None:
    """Two outputs that are the same value live in two arenas: copy the first to the second."""
    for value in stores:
        for output, key in exchanged(run, value)[1:]:
            arena = run.arenas[run.indices.plan.class_of[run.type, output], key]
            where = run.indices.class_rows(run.type, output)
            if isinstance(where, tuple):
                arena[where[0] : where[1]].copy_(run.store[value.name])
            else:
                arena.index_copy_(0, where.long(), run.store[value.name])


def exchanged(run: TypeRun, value: Value) -> list[tuple[int, Name]]:
    """The (output, key) names under which others read a value."""
    outputs = run.code.split.outputs
    return [name for name, other in outputs.items() if other is value and name in run.code.role.exchanged]


def _sweep(group: Group, runs: dict[int, TypeRun]) -> None:
    steps = {type: iter(_steps(runs[type])) for type in group.types if "during" in runs[type].code.codes}
    functions = {type: runs[type].code.codes["during"].run for type in steps}
    if len(steps) == 1 and len(group.types) == 1:
        (only,) = steps
        function = functions[only]
        for gathers, columns in steps[only]:
            for gather in gathers:
                gather()
            function(*columns)
        return
    for type in group.step_type.tolist():
        if type in steps:
            gathers, columns = next(steps[type])
            for gather in gathers:
                gather()
            functions[type](*columns)


def _steps(run: TypeRun) -> list[Step]:
    """For every step of a type: the gathers to do first, and the arguments of its piece."""
    code = run.code.codes["during"]
    gathers: list[list[Callable[[], Any]]] = [[] for _ in run.sizes]
    columns = [_taken(run, value, gathers) for value in code.takes]
    columns += [_stored(run, value, gathers) for value in code.stores]
    columns += run.tail()
    return list(zip(gathers, zip(*columns, strict=True), strict=True))


def _taken(run: TypeRun, value: Value, gathers: list[list[Callable[[], Any]]]) -> list[Any]:
    at = run.recurrent(value)
    if at is None:
        return run.parts(value)
    key: Any = run.code.input_name[value.name]
    keep = any(value is saved for saved in run.code.saved()) or value in run.code.split.pieces["after"].takes
    return gather_steps(run, at, key[-1], value, gathers, keep)


def gather_steps(
    run: TypeRun, at: ReadIndex, key: Name, value: Value, gathers: list[list[Callable[[], Any]]], keep: bool
) -> list[Tensor]:
    """What a recurrent port reads, step by step: views of the arena where the rows are consecutive, else gathers."""
    arena = run.arenas[at.read.value_class, key]
    if at.read.kind != "sum" and at.all_slices:
        return [
            arena.narrow(0, start, size).view(run._gathered_shape(at.read, arena))
            for start, size in zip(at.starts, at.sizes, strict=True)
        ]
    if keep or _is_small(run, value):
        whole = run.store[value.name] = run.empty(value)
        flat = pieces = run.parts(value)
        if at.read.kind == "slots":
            flat = list(whole.view(-1, *arena.shape[1:]).split_with_sizes(at.sizes))
    else:
        rows = at.sizes if at.read.kind != "sum" else run.sizes
        scratch = arena.new_empty((max(rows, default=0), *arena.shape[1:]))
        flat = [scratch[:size] for size in rows]
        pieces = [piece.view(run._gathered_shape(at.read, arena)) for piece in flat]
    for step, piece in enumerate(flat):
        if at.read.kind == "sum":
            assert at.bounds is not None
            gathers[step].append(_Sum(arena, at.pieces[step], at.bounds[step], piece))
        else:
            gathers[step].append(_Select(arena, at.pieces[step], piece))
    return pieces


def _is_small(run: TypeRun, value: Value) -> bool:
    """Memory for all steps, cut once, costs less than cutting a scratch buffer for every step, as long as it stays small."""
    width = math.prod(size for size in (value.shape or ()) if isinstance(size, int))
    return width * max(run.rows, run.edges) <= 1 << 18


class _Select:
    __slots__ = ("arena", "index", "out")

    def __init__(self, arena: Tensor, index: Tensor, out: Tensor) -> None:
        self.arena, self.index, self.out = arena, index, out

    def __call__(self) -> None:
        torch.index_select(self.arena, 0, self.index, out=self.out)


class _Sum:
    __slots__ = ("arena", "bounds", "index", "out")

    def __init__(self, arena: Tensor, index: Tensor, bounds: Tensor, out: Tensor) -> None:
        self.arena, self.index, self.bounds, self.out = arena, index, bounds, out

    def __call__(self) -> None:
        self.out.copy_(bag_sum(self.arena, self.index, self.bounds))


class _Copy:
    __slots__ = ("source", "to")

    def __init__(self, source: Tensor, to: Tensor) -> None:
        self.source, self.to = source, to

    def __call__(self) -> None:
        self.to.copy_(self.source)


def _stored(run: TypeRun, value: Value, gathers: list[list[Callable[[], Any]]]) -> list[Tensor]:
    """Where a step writes a value: its rows of the class arena, or of memory of its own."""
    names = exchanged(run, value)
    if not names:
        run.store[value.name] = run.empty(value)
        return run.parts(value)
    output, key = names[0]
    arena = run.arenas[run.indices.plan.class_of[run.type, output], key]
    where = run.indices.class_rows(run.type, output)
    if isinstance(where, tuple):
        run.store[value.name] = arena[where[0] : where[1]]
        return list(run.store[value.name].split_with_sizes(run.sizes))
    run.in_class[value.name] = output, key
    return [
        arena.narrow(0, start, size) for start, size in zip(run.indices.class_starts(run.type, output), run.sizes, strict=True)
    ]
