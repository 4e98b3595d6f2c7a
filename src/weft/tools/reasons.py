"""Why a plan does not do less: what keeps steps from merging and gathers from being views."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.api.structure import INIT
from weft.graph.calls import KEY
from weft.graph.program import Ints
from weft.plan.condense import group_nodes
from weft.plan.levels import Bools, Indices
from weft.plan.plan import NOT_A_SLICE, Group, Plan, Read
from weft.tools.pieces import Pieces


def reasons(pieces: Pieces, max_rows: int | None = None) -> list[str]:
    """One sentence for each thing that did not merge; empty if every type runs once and nothing is gathered by index."""
    return [*_fallbacks(pieces), *_steps(pieces, max_rows), *_apart(pieces), *_gathers(pieces)]


def _fallbacks(pieces: Pieces) -> list[str]:
    return [
        f"{pieces.told(t)} runs by slower batching, its operations do not show here: {kind.fallback}."
        for t, kind in pieces.types.items()
        if kind.fallback is not None
    ]


def _steps(pieces: Pieces, max_rows: int | None) -> list[str]:
    plan = pieces.plan
    if not plan.groups:
        return []
    program = plan.program
    groups = group_nodes(len(program.types), program.type, program.ptr, program.src)
    free = {types[0] for types, cyclic in zip(groups.types, groups.cyclic, strict=True) if not cyclic}
    swept = [group for group in plan.groups if group.cyclic and group.steps > 1 and any(map(pieces.steps_of, group.types))]
    found = [_why_steps(pieces, group, free) for group in swept]
    if max_rows is not None and any((group.step_hi - group.step_lo == max_rows).any() for group in plan.groups):
        found.append(f"Steps of more than {max_rows:,} rows are cut: max_rows={max_rows}.")
    return found


def _why_steps(pieces: Pieces, group: Group, on_no_cycle: set[int]) -> str:
    names = [pieces.told(t) for t in group.types]
    if not on_no_cycle.isdisjoint(group.types):
        scattered = [pieces.told(t) for t in group.types if t in on_no_cycle and pieces.types[t].steps > 1]
        rest = f"; policy 'condense' would run {_listed(scattered)} once" if scattered else ""
        return f"Policy {pieces.plan.policy!r} keeps all types in one order of {group.steps:,} steps{rest}."
    if len(names) > 1:
        return f"{_listed(names)} feed each other, so they are on one cycle: {group.steps:,} steps, each of one type."
    return f"{names[0]} feeds itself: {group.steps:,} steps, each reads what earlier ones computed."


def _apart(pieces: Pieces) -> list[str]:
    """The same code as two types: with and without children."""
    suffix = " (no children)"
    names = {kind.name: kind for kind in pieces.types.values()}
    return [
        f"{name.removesuffix(suffix)} without children is a type of its own: it has no recurrence to wait for, and runs once."
        for name, kind in names.items()
        if name.endswith(suffix) and name.removesuffix(suffix) in names and "during" not in kind.forward
    ]


def _gathers(pieces: Pieces) -> list[str]:
    found: list[str] = []
    for t, kind in pieces.types.items():
        by_read: dict[int, list[str]] = {}
        reads: dict[int, Read] = {}
        for gather in kind.gathers:
            if not gather.is_view:
                by_read.setdefault(gather.read.port, []).append(gather.key)
                reads[gather.read.port] = gather.read
        for port, keys in by_read.items():
            what = what_is_read(pieces.plan, reads[port], list(dict.fromkeys(keys)))
            why = why_index(pieces.plan, reads[port], KEY in keys)
            found.append(f"{pieces.told(t)} gathers {what} by index: {why}.")
    return found


def what_is_read(plan: Plan, read: Read, keys: list[str]) -> str:
    """States of children by their keys; recorded calls have arguments instead, or the items of a list, without keys."""
    recorded = KEY in keys
    if read.kind == "slots":
        where = _slots(plan, read, "argument" if recorded else "slot")
    else:
        where = f"all {'items' if recorded else 'children'}{', summed,' if read.kind == 'sum' else ''}"
    return where if recorded else f"{', '.join(keys)} of {where}"


def _slots(plan: Plan, read: Read, word: str) -> str:
    positions: Sequence[int] = plan.program.types[read.type].ports[read.port].positions
    own = []
    if INIT in plan.program.types:  # rounds: a vertex's own state comes before its children
        own = ["its own state"] if 0 in positions else []
        positions = [position - 1 for position in positions if position]
    slots = [f"{word}{'s' if len(positions) > 1 else ''} {', '.join(map(str, positions))}"] if positions else []
    return " and ".join([*own, *slots])


def why_index(plan: Plan, read: Read, recorded: bool = False) -> str:
    """Why what a port reads is not a view."""
    read_from = "children" if not recorded else "arguments" if read.kind == "slots" else "items"
    if read.kind == "sum":
        return f"{read_from} are added up while they are gathered"
    counts = obstacles(plan, read)
    total = sum(counts.values())
    told = {name: _OBSTACLES[name].format(read_from) for name, count in counts.items() if count}
    if total == 1:
        return next(iter(told.values()))
    return "; ".join(f"{text} ({counts[name]:,} of {total:,} steps)" for name, text in told.items())


_OBSTACLES = {
    "empty": "some slots are empty",
    "several": "{} come from several steps",
    "shared": "some {} are read more than once",
    "order": "{} are read in another order than they are computed",
    "view": "rows are consecutive, but all steps of a port read alike",
}


def obstacles(plan: Plan, read: Read) -> dict[str, int]:
    """How many pieces of a read each obstacle keeps from being views; a piece counts once, for the first that holds."""
    bounds = read.offsets[read.bounds] if read.offsets is not None else read.bounds * read.width
    begin, end = bounds[:-1].astype(np.int64), bounds[1:].astype(np.int64)
    rest = (read.slices == NOT_A_SLICE) & (end > begin)
    counts = {"view": int(np.count_nonzero(~rest))}
    wrote = _writing_step(plan, read.value_class)[read.index]
    piece = np.repeat(np.arange(len(begin)), end - begin)
    for name, odd in (
        ("empty", wrote < 0),
        ("several", wrote != wrote[np.minimum(begin, len(wrote) - 1)][piece]),
        ("shared", _repeated(read.index, piece)),
        ("order", np.ones(len(wrote), dtype=np.bool_)),
    ):
        hit = np.zeros(len(begin), dtype=np.bool_)
        hit[piece[odd]] = True
        counts[name] = int(np.count_nonzero(hit & rest))
        rest &= ~hit
    return {name: counts[name] for name in _OBSTACLES}


def _repeated(index: Ints, piece: Indices) -> Bools:
    """Entries of `index` that occur again in the same piece."""
    order = np.lexsort((index, piece))
    again = np.zeros(len(index), dtype=np.bool_)
    again[order[1:]] = (np.diff(index[order]) == 0) & (np.diff(piece[order]) == 0)
    return again


def _writing_step(plan: Plan, value_class: int) -> Ints:
    """For every row of a class the step that writes it, -1 for the row of zeros that empty slots read."""
    wrote = np.full(plan.classes[value_class].rows + 1, -1, dtype=np.int32)
    first = 0
    for group in plan.groups:
        for t, output in plan.classes[value_class].members:
            if t in group.types:
                mine = np.flatnonzero(group.step_type == t)
                sizes = (group.step_hi - group.step_lo)[mine]
                wrote[plan.class_row[t, output]] = np.repeat(first + mine, sizes)
        first += group.steps
    return wrote


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
