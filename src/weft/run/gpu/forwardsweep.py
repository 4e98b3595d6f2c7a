"""The forward steps of a group as one kernel."""

from __future__ import annotations

from typing import Any

from weft.graph.tape import Value
from weft.plan.plan import Group
from weft.run.gpu.bind import Binding
from weft.run.gpu.simpler import in_simpler_words
from weft.run.gpu.sweep import Part, Walk, walk
from weft.run.typerun import TypeRun


def sweep_forward(number: int, group: Group, runs: dict[int, TypeRun]) -> bool:
    """Run all steps of a group; or do nothing, where a kernel cannot."""
    found = prepared(number, group, runs)
    if found is None:
        return False
    members = [runs[type] for type in group.types]
    for run in members:
        _make_places(run)
    found.run(number, members)
    return True


def prepared(number: int, group: Group, runs: dict[int, TypeRun]) -> Walk | None:
    """The kernels for all steps of a group; None where there are none."""
    members = [runs[type] for type in group.types if "during" in runs[type].code.codes]
    if len(members) < len(group.types):
        return None
    key = ("forward", tuple(_key(run) for run in members))
    return walk(number, members, key, lambda: [_part(run, f"t{i}_") for i, run in enumerate(members)], False)


def _key(run: TypeRun) -> Any:
    code = run.code.codes["during"]
    strides = tuple(run.whole(value).stride() for value in code.takes if value.rows is None and value.constant is None)
    return id(code), strides, tuple((port, read.value_class >= 0) for port, read in run.ports.items())


def exchanged(run: TypeRun, value: Value) -> list[tuple[int, Any]]:
    outputs = run.code.split.outputs
    return [name for name, other in outputs.items() if other is value and name in run.code.role.exchanged]


def _part(run: TypeRun, prefix: str) -> Part:
    code, binding = run.code.codes["during"], Binding(prefix)
    piece, stores = in_simpler_words(run.code.split.pieces["during"], code.stores)
    for value in code.takes:
        at = run.recurrent(value)
        if at is None:
            binding.plain(run, value, piece)
            continue
        binding.gathered(run, value, at)
        if kept_sum(run, value):
            binding.own(value)
    for value, stored in zip(code.stores, stores, strict=True):
        names = exchanged(run, value)
        if names:
            binding.in_class(stored, *names[0])
        else:
            binding.own(stored)
    return Part(run, piece, stores, binding, bool(run.code.split.laid_over))


def kept_sum(run: TypeRun, value: Value) -> bool:
    """Whether a value is a sum over children that others need after the sweep, and that is not stored anyway."""
    at = run.recurrent(value)
    if at is None or at.read.kind != "sum" or any(value is stored for stored in run.code.codes["during"].stores):
        return False
    return any(value is saved for saved in run.code.saved) or value in run.code.split.pieces["after"].takes


def is_fed_on(run: TypeRun, value: Value) -> bool:
    """Whether a value that the sweep stores is an input, which lies elsewhere."""
    return value.name in run.code.input_name and run.recurrent(value) is None


def _make_places(run: TypeRun) -> None:
    """Memory for what the sweep writes, and where others find it."""
    code = run.code.codes["during"]
    for value in code.takes:
        if kept_sum(run, value):
            run.store[value.name] = run.empty(value)
    for value in code.stores:
        if is_fed_on(run, value):
            run.fed_on[value.name] = run.whole(value)
        names = exchanged(run, value)
        if not names:
            run.store[value.name] = run.empty(value)
            continue
        output, key = names[0]
        where = run.indices.class_rows(run.type, output)
        if isinstance(where, tuple):
            run.store[value.name] = run.arenas[run.indices.plan.class_of[run.type, output], key][where[0] : where[1]]
        else:
            run.in_class[value.name] = output, key
