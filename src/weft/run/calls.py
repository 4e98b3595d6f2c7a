"""Running recorded calls: the one entry for front ends that record call by call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.graph.calls import KEY, Library
from weft.graph.plain import Unforeseen
from weft.graph.program import Ints, NodeType, Program
from weft.graph.recording import OUTPUT_BITS, CallProgram, Picked, References, as_tensor, merge_calls, merge_tables
from weft.graph.transforms import is_transformed
from weft.graph.uncast import cat, stack, uncast
from weft.locks import lock
from weft.plan.native import wanted_natively
from weft.plan.plan import Plan
from weft.plan.schedule import PlanCache, schedule
from weft.run.batched import run_batched
from weft.run.call import Call, CompiledCell
from weft.run.callcells import MOST_TOGETHER, Cells
from weft.run.callgraph import CallGraph, call_graph, needed, planned_program, without
from weft.run.callports import Sharing
from weft.run.dedupe import same_calls
from weft.run.options import Options
from weft.run.reference import RealRow
from weft.run.wanted import Wanted

Blame = Callable[[int, Exception], None]
"""Told of the call, numbered in the merged program, in which an error came up."""

LOW = (1 << OUTPUT_BITS) - 1


@dataclass(frozen=True, eq=False)
class Group:
    """Results of one kind: `rows[i]` answers the wanted reference number `at[i]`."""

    at: Ints
    rows: Tensor


@dataclass(eq=False)
class Engine:
    """What is kept with a library: traced cells, plans, and which arguments share a class."""

    cells: Cells = field(default_factory=Cells)
    sharing: Sharing = field(default_factory=Sharing)
    plans: PlanCache = field(default_factory=PlanCache)
    lock: threading.RLock = field(default_factory=lock)
    """Threads that record by themselves share what a library knows."""
    kinds: dict[tuple[int, ...], tuple[dict[int, CompiledCell], tuple[NodeType, ...]]] = field(default_factory=dict)
    """What the planner is told of types, made for these cells."""

    @staticmethod
    def of(library: Library) -> Engine:
        engine: Engine | None = library.kept.get("engine")
        return library.kept.setdefault("engine", Engine()) if engine is None else engine

    def ready(self, library: Library, types: tuple[int, ...]) -> Ready:
        """The cells of these types, as they hold now."""

        def make() -> dict[int, CompiledCell]:
            groups = [self.sharing.groups(library.types, t) for t in types]
            return {i: self.cells.cell(t, library.types[t], groups[i]) for i, t in enumerate(types)}

        cells, captured = self.cells.all((types, self.sharing.count), make)
        known = self.kinds.get(types)
        if known is None or known[0] is not cells:
            if len(self.kinds) >= MOST_TOGETHER:
                self.kinds.clear()
            named = [(library.types[t], cells[i].trace.ports) for i, t in enumerate(types)]
            known = self.kinds[types] = cells, tuple([NodeType(kind.name, ports, len(kind.outputs)) for kind, ports in named])
        return Ready(cells, captured, known[1])


class Ready(NamedTuple):
    """The cells of a plan's types, the tensors that they use, if those were looked up, and what the planner is told of them."""

    cells: dict[int, CompiledCell]
    captured: Sequence[Tensor] | None
    kinds: tuple[NodeType, ...]


def run_calls(
    library: Library,
    programs: Sequence[CallProgram],
    wanted: References,
    options: Options = Options(),  # noqa: B008 - frozen
    blame: Blame | None = None,
    final: bool = True,
) -> list[Group]:
    """Compute what `wanted` needs of the calls of `programs`; the results come back with gradient.

    `wanted` holds references into the merged program: program k's calls follow those of program k - 1. `final` is False where
    more will be recorded once these results are known.
    """
    wanted = np.asarray(wanted, np.int64)
    if not len(wanted):
        return []
    if _looking.on:
        raise Observed(*engine_call(library, programs, wanted, options), final)
    if options.backend == "reference" or is_transformed():
        return _one_by_one(library, merge_calls(programs), wanted, blame)
    while True:
        try:
            return _batched(library, programs, wanted, options)
        except Unforeseen as late:
            Engine.of(library).cells.foresee(late.name, late.spec)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A merged program as the engine runs it."""

    plan: Plan
    types: tuple[int, ...]
    """The library's number of each type of the plan."""
    results: tuple[tuple[Ints, Wanted], ...]
    """What is wanted, by type and output, and the places of it among all wanted references."""

    @property
    def program(self) -> Program:
        return self.plan.program


class Observed(BaseException):
    """What would run now. No `Exception`, so that nobody on the way takes it for an error of the user's code."""

    def __init__(self, call: Call, at: list[Ints], cached: bool, final: bool) -> None:
        super().__init__("observed")
        self.call, self.cached, self.final = call, cached, final


class _Looking(threading.local):
    on = False


_looking = _Looking()


def is_observed() -> bool:
    """Whether somebody looks at what would run."""
    return _looking.on


def observe(work: Callable[[], Any]) -> Observed | None:
    """Do some work up to the first time that recorded calls would run; nothing is computed. None: none would."""
    _looking.on = True
    try:
        work()
    except Observed as seen:
        return seen
    finally:
        _looking.on = False
    return None


def _batched(library: Library, programs: Sequence[CallProgram], wanted: References, options: Options) -> list[Group]:
    call, places, _ = engine_call(library, programs, wanted, options)
    with uncast(call.device.type):
        rows = run_batched(call)
    return [Group(at, part) for at, part in zip(places, rows, strict=True)]


def engine_call(
    library: Library, programs: Sequence[CallProgram], wanted: References, options: Options
) -> tuple[Call, list[Ints], bool]:
    """What the engine is to compute, the places of its results among the wanted ones, and whether its plan was kept."""
    engine = Engine.of(library)
    with engine.lock:
        made: dict[tuple[int, ...], Ready] = {}
        prepared, cached = prepare(library, programs, wanted, options, made)
        cells, captured, _ = made.get(prepared.types) or engine.ready(library, prepared.types)
    plan = prepared.plan
    device = torch.device(library.types[prepared.types[0]].device)
    tables, backend = merge_tables(programs), options.backend_on(device)
    feeds: dict[tuple[Any, ...], Tensor] = {}
    feed: Ints | None = None
    for i, t in enumerate(prepared.types):
        for number in range(len(library.types[t].feeds)):
            table = tables[t, number]
            if isinstance(table, Picked) and backend == "native" and len(library.types[t].feeds) == 1:
                feed = _picking(plan, i, table, feed)
                table = table.rows
            feeds[i, "data", number] = as_tensor(table).to(device)
    results = [each for _, each in prepared.results]
    how = options.recompute, backend
    call = Call(plan, cells, feeds, (), results, device, *how, graph=options.graph, captured=captured, feed=feed)
    return call, [at for at, _ in prepared.results], cached


def _picking(plan: Plan, type: int, picked: Picked, feed: Ints | None) -> Ints:
    """For each node its row of what is fed, if the nodes of a type are fed some rows of a tensor."""
    before, nodes = plan.program.feed, plan.rows[type]
    assert before is not None, "recorded calls are numbered type by type"
    feed = before.copy() if feed is None else feed
    feed.put(nodes, picked.at.take(before.take(nodes)))
    return feed


def prepare(
    library: Library,
    programs: Sequence[CallProgram],
    wanted: References,
    options: Options,
    made: dict[tuple[int, ...], Ready],
) -> tuple[Prepared, bool]:
    """The plan for some programs, made once for equal programs, and whether it was there already.

    The cells that a new plan asked for are left in `made`, by its types.
    """
    engine = Engine.of(library)
    structure: tuple[Any, ...] = tuple(program.structure for program in programs)
    asked = wanted.tobytes()
    key = (structure, asked, engine.sharing.count, options.policy, options.max_rows)
    if not options.dedupe and key in engine.plans:  # what such programs read was seen when it was made
        kept = engine.plans.get(key, lambda: None)
        assert isinstance(kept, Prepared)
        return kept, True
    merged: CallProgram | None = None
    known: CallGraph | None = None
    if any(program._cache.get("seen by") is not engine for program in programs):
        merged = merge_calls(programs)
        known = call_graph(library.types, merged)
        engine.sharing.see(library.types, known)
        for program in programs:
            program._cache["seen by"] = engine
    first: Ints | None = None
    if options.dedupe:
        merged = merged or merge_calls(programs)
        first = same_calls(call_graph(library.types, merged), library.types, merged.data)
        structure = (*structure, first.tobytes())
    key = (structure, asked, engine.sharing.count, options.policy, options.max_rows)

    def make() -> Prepared:
        graph = known or call_graph(library.types, merged or merge_calls(programs))
        results = wanted
        if first is not None:
            graph = replace(graph, src=first[graph.src])
            results = first[wanted >> OUTPUT_BITS].astype(np.int64) << OUTPUT_BITS | wanted & LOW
        keep = needed(graph, results)
        if keep is None:
            return _planned(library, engine, graph, results, options, made)
        number = np.cumsum(keep) - 1
        results = number[results >> OUTPUT_BITS] << OUTPUT_BITS | results & LOW
        return _planned(library, engine, without(graph, keep), results, options, made)

    cached = key in engine.plans
    found = engine.plans.get(key, make)
    assert isinstance(found, Prepared)
    return found, cached


def _planned(
    library: Library,
    engine: Engine,
    graph: CallGraph,
    results: References,
    options: Options,
    made: dict[tuple[int, ...], Ready],
) -> Prepared:
    present = tuple(np.flatnonzero(np.bincount(graph.type)).tolist())
    made[present] = engine.ready(library, present)
    program = planned_program(graph, present, made[present].kinds)
    plan = schedule(program, options.policy, options.max_rows)
    return Prepared(plan, present, _wanted_groups(plan, results))


def _wanted_groups(plan: Plan, results: References) -> tuple[tuple[Ints, Wanted], ...]:
    """The wanted references by type and output, with their places among all wanted ones."""
    found = wanted_natively(plan, results, OUTPUT_BITS) or _with_numpy(plan, results)
    return tuple([(at, Wanted((output, KEY), nodes, type, rows)) for type, output, at, nodes, rows in found])


def _with_numpy(plan: Plan, results: References) -> list[tuple[int, int, Ints, Ints, Ints | None]]:
    """The slow twin of finding them in C."""
    nodes, outputs = results >> OUTPUT_BITS, results & LOW
    keys = plan.program.type[nodes].astype(np.int64) << OUTPUT_BITS | outputs
    places = [(key, np.flatnonzero(keys == key)) for key in np.unique(keys).tolist()]
    return [(key >> OUTPUT_BITS, key & LOW, at.astype(np.int32), nodes[at].astype(np.int32), None) for key, at in places]


def in_order(groups: Sequence[Group], count: int) -> list[Tensor]:
    """One tensor for each wanted reference, which may be written into."""
    found: list[Any] = [None] * count
    for group in groups:
        apart: Any = torch.unbind_copy if group.rows.requires_grad else torch.unbind
        for at, row in zip(group.at.tolist(), apart(group.rows), strict=True):
            found[at] = row
    return found


def stacked(groups: Sequence[Group], positions: Ints) -> Tensor:
    """The rows of these wanted references as one tensor; all must have the same shape and dtype."""
    if len(groups) == 1 and len(groups[0].at) == len(positions) and bool((groups[0].at == positions).all()):
        return groups[0].rows
    count = sum(len(group.at) for group in groups)
    owner, place = np.empty(count, np.int64), np.empty(count, np.int64)
    for number, group in enumerate(groups):
        owner[group.at] = number
        place[group.at] = np.arange(len(group.at))
    owner, place = owner[positions], place[positions]
    used = np.flatnonzero(np.bincount(owner)).tolist()
    first = np.zeros(len(groups), np.int64)
    first[used] = np.cumsum([0, *(len(groups[number].at) for number in used)])[:-1]
    rows = groups[used[0]].rows if len(used) == 1 else cat([groups[number].rows for number in used])
    chosen = first[owner] + place
    if len(chosen) == len(rows) and bool((chosen == np.arange(len(chosen))).all()):
        return rows
    return rows.index_select(0, torch.from_numpy(chosen).to(rows.device))


def _one_by_one(library: Library, program: CallProgram, wanted: References, blame: Blame | None) -> list[Group]:
    """The reference: calls in the order in which they were recorded, ordinary autograd, ordinary tracebacks."""
    results: list[Sequence[Tensor]] = []
    arguments, further = program.arguments.tolist(), iter(program.further.tolist())
    fed = {key: as_tensor(rows).to(library.types[key[0]].device).unbind(0) for key, rows in program.data.items()}
    seen: dict[int, int] = {}
    at = 0
    for number, t in enumerate(program.type.tolist()):
        kind = library.types[t]
        end = at + len(kind.args) + (next(further) if kind.many is not None else 0)
        given = [results[ref >> OUTPUT_BITS][ref & LOW] for ref in arguments[at:end]]
        at = end
        row = seen[t] = seen.get(t, -1) + 1
        feeds = [fed[t, i][row] for i in range(len(kind.feeds))]
        single, rest = given[: len(kind.args)], given[len(kind.args) :]
        answers = () if kind.many is None else (_further(library, t, rest),)
        try:
            results.append(kind.body(*(tensor.clone() for tensor in single), *(feed.clone() for feed in feeds), *answers))
        except Exception as error:
            if blame is not None:
                blame(number, error)
            raise
    chosen = [results[ref >> OUTPUT_BITS][ref & LOW] for ref in wanted.tolist()]
    kinds: dict[Any, list[int]] = {}
    for position, tensor in enumerate(chosen):
        kinds.setdefault((tensor.shape, tensor.dtype), []).append(position)
    return [Group(np.array(each, np.int32), stack([chosen[i] for i in each])) for each in kinds.values()]


def _further(library: Library, t: int, rest: list[Tensor]) -> RealRow:
    spec = library.types[t].spec
    states: list[dict[str, Tensor] | None] = [{} for _ in spec.slots]
    states += [{KEY: tensor} for tensor in rest]
    return RealRow(spec, states, [None] * len(states), 0, {}, None)
