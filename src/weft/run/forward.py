"""The forward sweep: groups in order; in each what comes before, the steps, what comes after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

from torch import Tensor

from weft.graph.tape import Name, Value
from weft.plan.plan import Group, Plan
from weft.run.columns import Addresses, Column, Countable, blocks
from weft.run.cpu.walking import Walking, in_runs, run_piece, walkable
from weft.run.gather import Action, Gathering, Rows, addresses, through_index
from weft.run.gpu.forwardsweep import sweep_forward
from weft.run.gpu.sweep import by_one_kernel
from weft.run.indices import ReadIndex
from weft.run.typerun import TypeRun


def run_forward(plan: Plan, runs: dict[int, TypeRun]) -> None:
    """Compute every value of a plan. Results are in the runs' stores and in their arenas."""
    for number, group in enumerate(plan.groups):
        for type in group.types:
            _whole(runs[type], "before")
        if any("during" in runs[type].code.codes for type in group.types):
            _sweep(number, group, runs)
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
                _feed_in_place(run, value, places[value.name])
            else:
                places[value.name] = run.empty(value)
                late.append((arena, where, places[value.name]))
    run_piece(run, code, places)
    run.store.update(places)
    for arena, where, rows in late:
        arena.index_copy_(0, where.long(), rows)
    _copy_twins(run, code.stores)


def _feed_in_place(run: TypeRun, value: Value, place: Tensor) -> None:
    """A state that is fed as it is goes from the fed tensor straight to its place."""
    name: Any = run.code.input_name.get(value.name)
    if name is not None and name[0] == "feed" and run.indices.rows(run.type) is not None:
        run.fed(run.type, name, place)
        run.store[value.name] = place


def _copy_twins(run: TypeRun, stores: tuple[Value, ...]) -> None:
    """Two outputs that are the same value live in two arenas: copy the first to the second."""
    for value in stores if run.code.has_twins else ():
        for output, key in exchanged(run, value)[1:]:
            arena = run.arenas[run.indices.plan.class_of[run.type, output], key]
            where = run.indices.class_rows(run.type, output)
            if isinstance(where, tuple):
                arena[where[0] : where[1]].copy_(run.store[value.name])
            else:
                arena.index_copy_(0, where.long(), run.store[value.name])


def exchanged(run: TypeRun, value: Value) -> list[tuple[int, Name]]:
    """The (output, key) names under which others read a value."""
    return run.code.exchanged.get(id(value), [])


def _sweep(number: int, group: Group, runs: dict[int, TypeRun]) -> None:
    if by_one_kernel(runs[group.types[0]]) and sweep_forward(number, group, runs):
        return
    types = [type for type in group.types if "during" in runs[type].code.codes]
    if walkable([runs[type] for type in types], [runs[type].code.codes["during"].walk for type in types]):
        _walk(group, {type: _walking(runs[type]) for type in types})
        return
    steps = {type: _steps(runs[type]) for type in types}
    functions = {type: runs[type].code.codes["during"].run for type in steps}
    if len(steps) == 1:
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


def _walk(group: Group, walking: dict[int, Walking]) -> None:
    done = dict.fromkeys(walking, 0)
    for type, steps in in_runs(group.step_type.tolist()):
        if type in walking:
            walking[type].go(done[type], done[type] + steps)
            done[type] += steps


def _walking(run: TypeRun) -> Walking:
    """What every step of a type touches."""
    code = run.code.codes["during"]
    walking = Walking(run, code.walk)
    for value in code.takes:
        at = run.recurrent(value)
        if value.name in code.indexed:
            assert at is not None
            walking.add(*through_index(run, at, value))
        elif at is not None:
            walking.add_gathered(value, at, kept(run, value))
        else:
            walking.add_given(value)
    walking.add(*[_place(run, value) for value in code.stores])
    return walking.ready()


def _steps(run: TypeRun) -> Iterator[tuple[Sequence[Action], tuple[Any, ...]]]:
    """For every step of a type: the gathers to do first, and the arguments of its piece."""
    code = run.code.codes["during"]
    columns: list[Column] = []
    gathering: list[Gathering] = []
    for value in code.takes:
        at = run.recurrent(value)
        if value.name in code.indexed:
            assert at is not None
            columns += through_index(run, at, value)
        elif at is not None:
            gathering.append(_gathering(run, at, value, value.name in code.addresses))
            columns.append(gathering[-1])
        else:
            columns.append(addresses(run, value) if value.name in code.addresses else run.column(value))
    columns += [_stored(run, value, value.name in code.addresses) for value in code.stores]
    columns += run.tail()
    acting = [gather for gather in gathering if gather.acts]
    for first, last in blocks(len(run.cuts)):
        items = zip(*[column.block(first, last) for column in columns], strict=True)
        actions = zip(*[gather.actions(first, last) for gather in acting], strict=True) if acting else repeat(())
        yield from zip(actions, items, strict=False)


def _gathering(run: TypeRun, at: ReadIndex, value: Value, by_address: bool) -> Gathering:
    return Gathering(run, at, value, kept(run, value), by_address)


def kept(run: TypeRun, value: Value) -> bool:
    """Whether what is gathered is read again, by a later piece or in backward."""
    return any(value is saved for saved in run.code.saved) or value in run.code.split.pieces["after"].takes


def _stored(run: TypeRun, value: Value, by_address: bool) -> Column:
    """Where a step writes a value, as a tensor or as an address."""
    place = _place(run, value)
    if by_address:
        return place
    if value.name in run.in_class:
        assert isinstance(place, Addresses)
        return Rows(place.tensor, place.starts, run.cuts.sizes)
    return run.column(value)


def _place(run: TypeRun, value: Value) -> Countable:
    """Where a step writes a value: its rows of the class arena, or of memory of its own."""
    names = exchanged(run, value)
    if not names:
        run.store[value.name] = run.empty(value)
        return addresses(run, value)
    output, key = names[0]
    arena = run.arenas[run.indices.plan.class_of[run.type, output], key]
    where = run.indices.class_rows(run.type, output)
    if isinstance(where, tuple):
        run.store[value.name] = arena[where[0] : where[1]]
        return addresses(run, value)
    run.in_class[value.name] = output, key
    return Addresses(arena, run.indices.class_starts(run.type, output))
