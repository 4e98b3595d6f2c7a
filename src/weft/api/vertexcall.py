"""One call of a vertex function: plan it, run an engine, return the rows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_unflatten

from weft.api import inputs as check
from weft.api.callcells import CallCells, pushes
from weft.api.firstrow import Answers, lowest
from weft.api.function import VertexFunction, prepared
from weft.api.modelcache import Kinds, ModelCache
from weft.api.repeat import MOST_ALIKE, MOST_LOOKS, Repeat, is_distributed, looks, plan_key
from weft.api.structure import INIT, Seen, plan_tree, round_program, tree_program
from weft.errors import StructureError, TraceError, WeftError
from weft.graph.cell import Sample, undrawn
from weft.graph.placed import without_numbers
from weft.graph.plain import Unforeseen
from weft.graph.ports import ports_of
from weft.graph.program import Ints, NodeType, Program
from weft.graph.rows import Spec, TensorSpec
from weft.graph.tape import Name
from weft.graph.uncast import uncast
from weft.graph.writes import Unwritten
from weft.plan.plan import Plan
from weft.plan.schedule import schedule
from weft.run.batched import run_batched
from weft.run.blaming import NOBODY
from weft.run.call import Call, CompiledCell
from weft.run.reference import real_row, run_reference
from weft.run.wanted import Wanted, only_type

_OF_THE_BATCH = "of the batch"


def run(model: VertexFunction, structure: Any, x: Any, keywords: dict[str, Any]) -> Any:
    """Run a vertex function on a graph: the way of an earlier call, if this one looks like it."""
    alike = looks(structure, x, keywords)
    if alike is None:
        return prepared(model, structure, x, **keywords).run()
    cache = ModelCache.of(model)
    try:
        known: list[Repeat] = cache.repeats.get(alike, [])
    except TypeError:  # an option that cannot be looked up, and will be named
        return prepared(model, structure, x, **keywords).run()
    for one in known:
        try:
            rows = one.run(model, structure, x, cache.plans)
        except NOBODY:
            raise
        except Exception as error:
            raise prepared(model, structure, x, **keywords).blamed(error) from None
        if rows is not None:
            return one.result(rows)
    call = prepared(model, structure, x, **keywords)
    result = call.run()
    made = call.repeat()
    if made is not None:
        if len(cache.repeats) >= MOST_LOOKS:
            cache.repeats.clear()
        cache.repeats[alike] = [made, *known][:MOST_ALIKE]
    return result


class Planned(NamedTuple):
    """A call's plan, and what it is a plan of."""

    plan: Plan
    cells: dict[int, CompiledCell]
    kinds: Kinds
    seen: Seen
    tree: Any
    """The structure of what is pushed; None if nothing is."""
    was_kept: bool


class VertexCall(CallCells):
    """A vertex function applied to a graph and its inputs."""

    ran: tuple[Planned, Call] | None = None
    """What ran, where the traces of the cells can be compared."""

    def plan(self) -> Planned:
        known = self.cache.reads_type
        cells, kinds, seen, tree = self.cells()
        if self.cache.reads_type is not known:  # only now is it known whether v.type makes a difference
            cells, kinds, seen, tree = self.cells()
        key = plan_key(self.graph, kinds, self.rounds, self.options, self.edges is not None)
        found = self.cache.plans.find(key)
        plan = self.cache.plans.add(key, self._schedule(kinds.types, seen) if found is None else found)
        assert isinstance(plan, Plan)
        return Planned(plan, cells, kinds, seen, tree, found is not None)

    def program(self, kinds: tuple[NodeType, ...], seen: Seen) -> Program:
        with_edges = self.edges is not None
        if self.rounds is None:
            return tree_program(self.graph, kinds, seen, with_edges)
        return round_program(self.graph, kinds, seen.ids, self.rounds, with_edges)

    def _schedule(self, kinds: tuple[NodeType, ...], seen: Seen) -> Plan:
        program = self.program(kinds, seen)
        if self.rounds is not None:
            return schedule(program, self.options.policy, self.options.max_rows)
        try:
            return plan_tree(self.graph, program, self.options.policy, self.options.max_rows)
        except StructureError as error:
            self._name_cycle(error)
            raise

    def _name_cycle(self, error: StructureError) -> None:
        """A cycle is told with the model, the graph of the batch that has it, and the way out."""
        text = str(error)
        if text.startswith("cycle: "):
            part = self._part(int(text.split()[1]))
            error.args = (f"{self.name}: graph {part}: {text}; rounds= runs on graphs with cycles",)

    def _part(self, vertex: int) -> int:
        return int(np.searchsorted(self.graph.part_offsets, vertex, side="right")) - 1

    def run(self) -> Any:
        if self.device.type == "meta":
            raise without_numbers(f"{self.name}: the call is on meta")
        if self.options.backend == "reference":
            return self._run_reference()
        check.no_transforms(self.name, self.model, chain(self.x_leaves, self.edge_leaves, (self.init or {}).values()))
        while True:
            try:
                return self._run_batched()
            except Unforeseen as late:
                self.cache.foreseen[late.name] = late.spec
                self.cache.cells.clear()
                self.cache.settled.clear()
            except NOBODY:
                raise
            except Exception as error:
                raise self.blamed(error) from None

    def blamed(self, error: Exception) -> Exception:
        """The error with a note of the vertex that it came up at: rows fail together, so all run again, one by one."""
        if isinstance(error, TraceError) or _names_a_vertex(error):
            return error
        try:
            with undrawn(str(self.device)), Unwritten(self.model.modules()):
                self._run_reference()
        except NOBODY:
            return error
        except Exception as again:
            # What one vertex raises is the truth: without numbers, code goes on where dtypes differ, and fails later.
            is_worded = isinstance(error, WeftError) and not isinstance(again, WeftError)
            return error if is_worded and not _names_a_vertex(again) else again
        return error

    def _run_batched(self) -> Any:
        planned = self.plan()
        plan, cells, tree = planned.plan, planned.cells, planned.tree
        if not plan.program.num_nodes:
            return self._empty()
        silent = self._silent() if tree is None else None
        if silent is not None:
            return silent
        if any(cell.trace.writes for cell in cells.values()):
            return self._run_reference()  # what a vertex reads was written by those before it
        call = self.engine_call(plan, cells, tree, self._backend())
        with uncast(self.device.type):
            rows = run_batched(call)
        if self.captured is not None:
            self.ran = planned, call
        return self._result(tree, [self._last_round(row) for row in rows])

    def repeat(self) -> Repeat | None:
        """For calls that look like this one, which has run; None where they would need to compare more than it does."""
        if self.ran is None:
            return None
        planned, call = self.ran
        if not planned.seen.by_kind or any(cell.trace.fallback is not None for cell in planned.cells.values()):
            return None
        pushes_one = planned.tree is not None and planned.tree.is_leaf()
        result = itemgetter(0) if pushes_one else partial(_result, planned.tree, [key for key, _ in self.state])
        return Repeat(self.model, planned.kinds, planned.seen.table.types, call, self.options, result)

    def engine_call(self, plan: Plan, cells: dict[int, CompiledCell], tree: Any, backend: str) -> Call:
        """What the engine is to compute."""
        feeds = {("x", i): leaf for i, leaf in enumerate(self.x_leaves)}
        if self.init:
            feeds |= {("init", i): leaf for i, leaf in enumerate(self.init.values())}
        nodes, options = self._nodes(), self.options
        type = None if nodes is None else only_type(plan, nodes)
        wanted = [Wanted(name, nodes, type) for name in self._wanted(tree)]
        call = Call(plan, cells, feeds, self.edge_leaves, wanted, self.device, options.recompute, backend, self._everyone())
        call.graph, call.captured = options.graph, self.captured
        return call

    def _nodes(self) -> Ints | None:
        """The nodes whose rows are wanted; None: all."""
        if self.at is None or self.rounds is None:
            return self.at
        return self.at + np.int32(self.rounds * self.graph.num_vertices)

    def _everyone(self) -> list[Tensor]:
        return [p for p in self.model.parameters() if p.requires_grad] if is_distributed() else []

    def _backend(self) -> str:
        return self.options.backend_on(self.device)

    def _wanted(self, tree: Any) -> list[Name]:
        """The outputs that the caller receives, by name."""
        if tree is None:
            return [(0, key) for key, _ in self.state]
        return [("push", i) for i in range(tree.num_leaves)]

    def _last_round(self, rows: Tensor) -> Tensor:
        return rows if self.rounds is None or self.at is not None else rows[self.rounds * self.graph.num_vertices :]

    def _result(self, tree: Any, rows: list[Tensor]) -> Any:
        return _result(tree, [key for key, _ in self.state], rows)

    def _empty(self) -> Any:
        """No vertices: rows of the right shape, none of them."""
        pushing = self._pushing(range(len(self.functions)))
        return self._zeros(pushing or self.cell(0, self.rounds is None)[0], 0)

    def _silent(self) -> Any:
        """Nothing is pushed in this graph: the rows that types which are not in it would push, zeros; None if none would."""
        ids = self.type_ids
        if len(self.functions) == 1 or ids is None:
            return None
        pushing = self._pushing(sorted(set(range(len(self.functions))).difference(np.unique(ids).tolist())))
        return None if pushing is None else self._zeros(pushing, self.graph.num_vertices if self.at is None else len(self.at))

    def _pushing(self, types: Iterable[int]) -> CompiledCell | None:
        """The first of these types that pushes something."""
        cells = (self.cell(number, self.rounds is None) for number in types)
        return next((cell for cell, tree in cells if tree is not None), None)

    def _zeros(self, cell: CompiledCell, count: int) -> Any:
        """Rows of zeros in the form that a cell gives."""
        specs = [cell.trace.outputs[name] for name in self._wanted(cell.tree)]
        rows = [torch.zeros((count, *spec.shape), dtype=spec.dtype, device=self.device) for spec in specs]
        # As with any PyTorch module, the result can be trained on: gradients are zeros.
        start = torch.zeros((), device=self.device)
        trained = [p for p in self.model.parameters() if p.requires_grad and p.is_floating_point()]
        anchor = sum((p.flatten()[:0].sum() for p in trained), start)
        return self._result(cell.tree, [row + anchor.to(row) if row.is_floating_point() else row for row in rows])

    def _run_reference(self) -> Any:
        kinds, seen, bodies, trees = self._reference_types()
        program = self.program(tuple(kinds), seen)
        if not program.num_nodes:
            return self._empty()
        feeds = {"x": self.x, "init": self.init}
        try:
            results = run_reference(program, lambda number: bodies[number], feeds, self.edges, self._blame)
        except StructureError as error:
            self._name_cycle(error)
            raise
        mine = results if self.rounds is None else results[self.rounds * self.graph.num_vertices :]
        tree = self._pushed_by_rows(mine, seen.ids, trees)
        silent = self._silent() if tree is None else None
        if silent is not None:
            return silent
        at = range(len(mine)) if self.at is None else self.at.tolist()
        rows = []
        for name in self._wanted(tree):
            example = next(result[name] for result in mine if name in result)
            rows.append(_stacked([mine[i].get(name, torch.zeros_like(example)) for i in at], example))
        return self._result(tree, rows)

    def _pushed_by_rows(self, rows: list[dict[Name, Tensor]], ids: Ints, trees: dict[int, dict[str, Any]]) -> Any:
        """The common structure of what vertices pushed one by one."""
        found = {}
        for number in np.unique(ids).tolist():
            if trees[number].get("tree") is not None:
                one = rows[int((ids == number).argmax())]
                outputs = {name: TensorSpec(tuple(value.shape), value.dtype) for name, value in one.items()}
                found[number] = trees[number]["tree"], pushes(outputs)
        return self._common(found)

    def _reference_types(self) -> tuple[list[NodeType], Seen, dict[int, Any], dict[int, dict[str, Any]]]:
        seen = self._node_types(self.graph.has_types)
        seen = seen.replaced(seen.ids & ~np.int32(1))
        bodies: dict[int, Any] = {}
        trees: dict[int, dict[str, Any]] = {}
        spec = self._spec(False)
        kinds: list[NodeType] = []
        anything = [("sum", ""), *([] if self.rounds is None else [("slot", 0, "")])]
        for number in range(max(seen.present, default=-1) + 1):
            trees[number] = {}
            bodies[number] = self.body(number // 2, spec, trees[number]), spec
            kinds.append(NodeType(self.name, ports_of(anything, spec.first_child)))
        if self.rounds is not None:
            kinds.append(INIT)
            bodies[len(kinds) - 1] = (lambda rows: {(0, key): value for key, value in rows.feed("init").items()}), spec
        return kinds, seen, bodies, trees

    def first_row(self, vertex_type: int, spec: Spec) -> Sample:
        """What a vertex is answered whose code must be looked at with real numbers; what it reads runs one by one."""
        kinds, seen, bodies, _ = self._reference_types()
        ids = self._node_types(self.graph.has_types).ids
        alike = np.flatnonzero(np.ones_like(ids, bool) if self.rounds is not None else ids % 2 == int(spec.childless))
        mine = alike[ids[alike] // 2 == vertex_type]
        candidates = mine if len(mine) else alike  # where types make no difference all are told to be of the first
        if not len(candidates):
            return {}
        try:
            program = self.program(tuple(kinds), seen)
            node, needed = lowest(program, candidates + self.graph.num_vertices * int(self.rounds is not None))
        except StructureError as error:
            self._name_cycle(error)
            raise
        feeds = {"x": self.x, "init": self.init}
        with torch.no_grad(), undrawn(str(self.device)), Unwritten(self.model.modules()):
            results = run_reference(program, lambda number: bodies[number], feeds, self.edges, self._blame, needed)
        return Answers(real_row(program, node, spec, results, feeds, self.edges))

    def _blame(self, node: int, error: Exception) -> None:
        vertex = node % max(self.graph.num_vertices, 1)
        part = self._part(vertex)
        inside = vertex - int(self.graph.part_offsets[part])
        name = self._shown_name(0 if self.type_ids is None else int(self.type_ids[vertex]))
        error.add_note(f"in {name}, vertex {inside} of graph {part} (vertex {vertex} {_OF_THE_BATCH})")


def _names_a_vertex(error: Exception) -> bool:
    return any(_OF_THE_BATCH in note for note in getattr(error, "__notes__", ()))


def _stacked(rows: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(rows) if rows else like.new_empty((0, *like.shape))


def _result(tree: Any, keys: list[str], rows: list[Tensor]) -> Any:
    """Rows as the caller receives them: as they were pushed, or the states, if nothing was."""
    if tree is None:
        return dict(zip(keys, rows, strict=True))
    return rows[0] if tree.is_leaf() else tree_unflatten(rows, tree)
