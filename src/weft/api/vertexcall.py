"""One call of a vertex function: check the inputs, find or make the traces and the plan, run an engine, return the rows."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from weft.api import inputs as check
from weft.api.function import Typed, VertexFunction, first_float
from weft.api.graph import Graph
from weft.api.options import Options
from weft.api.structure import INIT, node_types, plan_tree, reaching, round_program, tree_program
from weft.api.vertex import Vertex
from weft.errors import FallbackWarning, ShapeError, StructureError, TraceError, WeftError
from weft.graph.capture import Surroundings
from weft.graph.cell import Trace, discover, ports_of, trace, trace_plainly
from weft.graph.plain import Unforeseen
from weft.graph.program import Ints, NodeType, Program
from weft.graph.rows import Rows, Spec, TensorSpec
from weft.graph.tape import Name
from weft.graph.twin import Escaped
from weft.plan.plan import Plan
from weft.plan.schedule import PlanCache, schedule
from weft.run.batched import Call, CompiledCell, run_batched
from weft.run.reference import run_reference

KEPT_TRACES = 4

_tracing = threading.RLock()
"""Tracing changes what torch does everywhere in the process, so one thread at a time does it."""


class ModelCache:
    """What a vertex function keeps between calls: traces by signature, plans by structure."""

    def __init__(self) -> None:
        self.cells: dict[Hashable, list[CompiledCell]] = {}
        self.plans = PlanCache()
        self.surroundings: dict[int, Surroundings] = {}
        self.reads_type: dict[int, bool] = {}
        self.warned: set[str] = set()
        self.foreseen: dict[Name, TensorSpec] = {}
        """Inputs that code with value-dependent paths asked for late."""

    @staticmethod
    def of(model: VertexFunction) -> ModelCache:
        found = model.__dict__.get("_weft")
        if found is None:
            found = ModelCache()
            model.__dict__["_weft"] = found
        return found


class VertexCall:
    """A vertex function applied to a graph and its inputs."""

    def __init__(
        self,
        model: VertexFunction,
        graph: Graph,
        x: Any,
        edges: Any,
        rounds: int | None,
        init: Mapping[str, Tensor] | None,
        options: Options,
    ) -> None:
        self.model, self.graph, self.options, self.rounds = model, graph, options, rounds
        self.name = type(model).__name__
        check.rounds(self.name, rounds, init)
        self.cache = ModelCache.of(model)
        self.functions = model.vertex_functions()
        self.x, self.edges = x, edges
        n = graph.num_vertices
        self.x_leaves = check.rows(x, n, f"{self.name}: x", "vertices")
        self.edge_leaves = check.rows(edges, graph.num_edges, f"{self.name}: edges", "edges")
        self.device = check.one_device(
            self.name, model, [*self.x_leaves, *self.edge_leaves, *(init or {}).values()], graph.device
        )
        self.float_dtype = first_float(model) or check.first_float(self.x_leaves) or torch.get_default_dtype()
        self.state = tuple((key, TensorSpec(shape, self.float_dtype)) for key, shape in model.state_shapes.items())
        self.init = None if rounds is None else check.first_states(self.name, init, self.state, n, self.device)
        self.type_ids = self._vertex_types()

    def _vertex_types(self) -> Ints | None:
        """Type ids in the order of the model's functions."""
        graph, count = self.graph, len(self.functions)
        ids = graph.type_ids
        if not isinstance(self.model, Typed) or (count == 1 and ids is None):
            return ids
        if ids is None:
            raise StructureError(f"{self.name}: the graph has no types; build it with Graph(..., types=...)")
        names = [name for name, _ in self.functions]
        if graph.type_names is not None:
            unknown = [i for i, name in enumerate(graph.type_names) if name not in names]
            if unknown:
                vertex = int(np.isin(ids, unknown).argmax())
                raise StructureError(
                    f"{self.name}: vertex {vertex} has the unknown type {graph.type_names[ids[vertex]]!r}; "
                    f"the types are {', '.join(map(repr, names))}"
                )
            return np.array([names.index(name) for name in graph.type_names], dtype=np.int32)[ids]
        if len(ids) and int(ids.max()) >= count:
            vertex = int((ids >= count).argmax())
            raise StructureError(
                f"{self.name}: vertex {vertex} has type {int(ids[vertex])}, but the types are 0 to {count - 1} "
                f"({', '.join(map(repr, names))})"
            )
        return ids

    # Cells.

    def _function(self, vertex_type: int) -> tuple[str, VertexFunction]:
        return self.functions[vertex_type] if len(self.functions) > 1 else self.functions[0]

    def _shown_name(self, vertex_type: int) -> str:
        """A cell's path: the model, and which of its types."""
        name = self._function(vertex_type)[0]
        return f"{self.name}.{name}" if len(self.functions) > 1 else name

    @staticmethod
    def _name(error: WeftError, name: str) -> None:
        """Put the cell's path before what went wrong, once."""
        if not isinstance(error, TraceError) and not str(error).startswith(f"{name}: "):
            error.args = (f"{name}: {error}",)

    @cached_property
    def _specs(self) -> tuple[tuple[Spec, Spec], Hashable]:
        """What rows look like to vertices with and without children, and a key for that."""
        feeds = [("x", tree_map_only(Tensor, _row_spec, self.x))] if self.x is not None else []
        if self.init is not None:
            feeds.append(("init", dict(self.state)))
        edge = None if self.edges is None else tree_map_only(Tensor, _row_spec, self.edges)
        own = int(self.rounds is not None)
        inner = Spec(tuple(feeds), edge, self.state, own, False, self.float_dtype, str(self.device))
        kind = self.device.type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        shape = (_hashable(feeds), _hashable(edge), self.state, own, inner.device, autocast, torch.get_default_dtype())
        return (inner, replace(inner, childless=True)), shape

    def _spec(self, childless: bool) -> Spec:
        return self._specs[0][int(childless)]

    def body(self, vertex_type: int, spec: Spec, told: dict[str, Any] | None = None) -> Any:
        """The engine's view of a vertex function: from rows to named outputs."""
        _, function = self._function(vertex_type)
        shown = self._shown_name(vertex_type)
        forward = getattr(type(function).forward, "_one_vertex", type(function).forward)

        def run(rows: Rows) -> dict[Name, Tensor]:
            vertex = Vertex(rows, spec, vertex_type, self.rounds is not None)
            try:
                forward(function, vertex)
                outputs, tree = vertex.results()
            except WeftError as error:
                self._name(error, shown)
                raise
            if told is not None:
                told["tree"], told["reads type"] = tree, vertex.type_was_read
            return outputs

        return run

    def cell(self, vertex_type: int, childless: bool) -> tuple[CompiledCell, Any]:
        """The traced cell of a node type, and the structure of what it pushes."""
        function = self._function(vertex_type)[1]
        spec = self._spec(childless)

        def key() -> Hashable:
            return (id(function), childless, vertex_type if self.cache.reads_type.get(id(function)) else 0, self._specs[1])

        kept = self.cache.cells.get(key(), ())
        found = next((cell for cell in kept if cell.trace.holds()), None)
        if found is None:
            told: dict[str, Any] = {}
            found = CompiledCell(self._trace(self._shown_name(vertex_type), function, vertex_type, spec, told))
            self.cache.reads_type[id(function)] = told["reads type"] or self.cache.reads_type.get(id(function), False)
            found.tree = told["tree"]
            # The last few stay: train and eval, with and without gradients.
            self.cache.cells[key()] = [found, *self.cache.cells.get(key(), ())][:KEPT_TRACES]
        return found, found.tree

    def _trace(self, name: str, function: VertexFunction, vertex_type: int, spec: Spec, told: dict[str, Any]) -> Trace:
        """Trace a vertex function; what cannot be traced is batched the slower way, with one warning."""
        body, surroundings = self.body(vertex_type, spec, told), Surroundings().add(function)
        try:
            with _tracing:
                return trace(name, body, spec, surroundings)
        except Escaped as error:
            raise Escaped(f"{name}: {error}") from None
        except TraceError as error:
            reason = str(error)
        try:
            made = trace_plainly(name, body, spec, surroundings, reason, self.cache.foreseen)
        except Exception as error:
            error.add_note(f"in {name}, for {'a vertex without children' if spec.childless else 'a vertex'}")
            raise
        if name not in self.cache.warned:
            self.cache.warned.add(name)
            warnings.warn(f"{name}: {made.fallback}", FallbackWarning, stacklevel=2)
        return made

    def _first_state_cell(self) -> CompiledCell:
        """Layer 0 of rounds: hands the given first states on."""
        spec = self._spec(True)
        key = ("first state", spec.state, str(self.device))
        if key not in self.cache.cells:

            def body(rows: Rows) -> dict[Name, Tensor]:
                return {(0, key): value.clone() for key, value in rows.feed("init").items()}

            self.cache.cells[key] = [CompiledCell(trace("first state", body, spec, Surroundings()))]
        return self.cache.cells[key][0]

    def cells(self) -> tuple[dict[int, CompiledCell], list[NodeType], Ints, Any]:
        """Cells and node types for the vertices of this graph, each vertex's node type, and what is pushed."""
        many = self.type_ids is not None and (len(self.functions) > 1 or self._type_matters())
        ids = self._node_types(many)
        if self.rounds is not None:
            ids = ids & ~np.int32(1)
        present = np.flatnonzero(np.bincount(ids)).tolist() if len(ids) else []
        cells: dict[int, CompiledCell] = {}
        trees: dict[int, Any] = {}
        width = max([2 * len(self.functions), *(t + 1 for t in present)])
        kinds = [NodeType("unused")] * width
        for number in present:
            cells[number], trees[number] = self.cell(number // 2, bool(number % 2))
            made = cells[number].trace
            kinds[number] = NodeType(made.name + (" (no children)" if number % 2 else ""), made.ports, 1)
        if self.rounds is not None:
            kinds.append(INIT)
            cells[len(kinds) - 1] = self._first_state_cell()
        tree = self._pushed(cells, trees)
        silent = [number for number, pushed in trees.items() if pushed is None]
        if tree is not None and silent and self.rounds is None:
            needed = reaching(self.graph, ~np.isin(ids, silent))
            if not needed.all():
                ids = np.where(needed, ids, np.int32(len(kinds))).astype(np.int32)
                cells[len(kinds)] = self._idle_cell()
                kinds.append(NodeType("not needed"))
        return cells, kinds, ids, tree

    def _idle_cell(self) -> CompiledCell:
        """For vertices that no result depends on: they compute nothing, and nothing of them reaches a gradient."""
        spec = self._spec(True)
        key = ("not needed", spec.state, str(self.device))
        if key not in self.cache.cells:

            def body(rows: Rows) -> dict[Name, Tensor]:
                return {(0, name): torch.zeros(s.shape, dtype=s.dtype, device=self.device) for name, s in spec.state}

            self.cache.cells[key] = [CompiledCell(trace("not needed", body, spec, Surroundings()))]
        return self.cache.cells[key][0]

    def _node_types(self, many: bool) -> Ints:
        if len(self.functions) > 1 and self.graph.type_names is not None:
            assert self.type_ids is not None
            return node_types(self.graph, False) + np.int32(2) * self.type_ids
        return node_types(self.graph, many)

    def _type_matters(self) -> bool:
        function = self.functions[0][1]
        if id(function) not in self.cache.reads_type:
            told: dict[str, Any] = {}
            spec = self._spec(True)
            discover(self.body(0, spec, told), spec)
            self.cache.reads_type[id(function)] = told["reads type"]
        return self.cache.reads_type[id(function)]

    def _pushed(self, cells: dict[int, CompiledCell], trees: dict[int, Any]) -> Any:
        """The common structure of what is pushed; None if nothing is."""
        return self._common({n: (trees[n], _pushes(cells[n].trace.outputs)) for n in trees if trees[n] is not None})

    def _common(self, pushed: Mapping[int, tuple[Any, list[TensorSpec]]]) -> Any:
        """The structure that all of these node types push."""
        if not pushed:
            return None
        first = next(iter(pushed))
        for number, found in pushed.items():
            if found != pushed[first]:
                raise ShapeError(
                    f"{self.name}: all types push results of one structure and shape, but {self._shown_name(first // 2)} "
                    f"pushes {_shown(*pushed[first])} and {self._shown_name(number // 2)} pushes {_shown(*found)}"
                )
        return pushed[first][0]

    # Plan and run.

    def plan(self) -> tuple[Plan, dict[int, CompiledCell], Any, bool]:
        known = dict(self.cache.reads_type)
        cells, kinds, ids, tree = self.cells()
        if self.cache.reads_type != known:  # only now is it known whether v.type makes a difference
            cells, kinds, ids, tree = self.cells()
        options = self.options
        key = (self.graph.key, tuple(kinds), self.rounds, options.policy, options.max_rows, self.edges is None)
        cached = key in self.cache.plans
        plan = self.cache.plans.get(key, lambda: self._schedule(kinds, ids))
        assert isinstance(plan, Plan)
        return plan, cells, tree, cached

    def program(self, kinds: list[NodeType], ids: Ints) -> Program:
        with_edges = self.edges is not None
        if self.rounds is None:
            return tree_program(self.graph, kinds, ids, with_edges)
        return round_program(self.graph, kinds, ids, self.rounds, with_edges)

    def _schedule(self, kinds: list[NodeType], ids: Ints) -> Plan:
        program = self.program(kinds, ids)
        if self.rounds is None:
            with self._naming_cycles():
                return plan_tree(self.graph, program, self.options.policy, self.options.max_rows)
        return schedule(program, self.options.policy, self.options.max_rows)

    @contextmanager
    def _naming_cycles(self) -> Iterator[None]:
        """A cycle is told with the model, the graph of the batch that has it, and the way out."""
        try:
            yield
        except StructureError as error:
            text = str(error)
            if text.startswith("cycle: "):
                part = self._part(int(text.split()[1]))
                error.args = (f"{self.name}: graph {part}: {text}; rounds= runs on graphs with cycles",)
            raise

    def _part(self, vertex: int) -> int:
        return int(np.searchsorted(self.graph.part_offsets, vertex, side="right")) - 1

    def run(self) -> Any:
        if self.options.backend == "reference":
            return self._run_reference()
        while True:
            try:
                return self._run_batched()
            except Unforeseen as late:
                self.cache.foreseen[late.name] = late.spec
                self.cache.cells.clear()

    def _run_batched(self) -> Any:
        plan, cells, tree, _ = self.plan()
        wanted = self._wanted(tree)
        if not plan.program.num_nodes:
            return self._empty(tree)
        feeds = {("x", i): leaf for i, leaf in enumerate(self.x_leaves)}
        feeds |= {("init", i): leaf for i, leaf in enumerate((self.init or {}).values())}
        call = Call(
            plan, cells, feeds, self.edge_leaves, wanted, self.device, self.options.recompute, self._backend(), self._everyone()
        )
        with torch.autocast(self.device.type, enabled=False):
            rows = run_batched(call)
        return self._result(tree, [self._last_round(row) for row in rows])

    def _everyone(self) -> list[Tensor]:
        together = torch.distributed.is_available() and torch.distributed.is_initialized()
        return [p for p in self.model.parameters() if p.requires_grad] if together else []

    def _backend(self) -> str:
        if self.options.backend != "auto":
            return self.options.backend
        return "native" if self.device.type == "cpu" else "eager"

    def _wanted(self, tree: Any) -> list[Name]:
        if tree is None:
            return [(0, key) for key, _ in self.state]
        return [("push", i) for i in range(tree.num_leaves)]

    def _last_round(self, rows: Tensor) -> Tensor:
        return rows if self.rounds is None else rows[self.rounds * self.graph.num_vertices :]

    def _result(self, tree: Any, rows: list[Tensor]) -> Any:
        if tree is None:
            return {key: row for (key, _), row in zip(self.state, rows, strict=True)}
        return tree_unflatten(rows, tree)

    def _empty(self, tree: Any) -> Any:
        """No vertices: rows of the right shape, none of them."""
        kinds = [self.cell(t, True) for t in range(len(self.functions))]
        cell, tree = next((kind for kind in kinds if kind[1] is not None), kinds[0])
        outputs = cell.trace.outputs
        specs = [outputs[name] for name in self._wanted(tree)]
        rows = [torch.empty((0, *spec.shape), dtype=spec.dtype, device=self.device) for spec in specs]
        # As with any PyTorch module, the result of an empty batch can be trained on: gradients are zeros.
        anchor = sum(
            ((p * 0).sum() for p in self.model.parameters() if p.requires_grad and p.is_floating_point()), torch.zeros(())
        )
        return self._result(tree, [row + anchor.to(row) if row.is_floating_point() else row for row in rows])

    def _run_reference(self) -> Any:
        kinds, ids, bodies, trees = self._reference_types()
        program = self.program(kinds, ids)
        if not program.num_nodes:
            return self._empty(None)
        feeds = {"x": self.x, "init": self.init}
        with self._naming_cycles():
            results = run_reference(program, lambda number: bodies[number], feeds, self.edges, self._blame)
        mine = results if self.rounds is None else results[self.rounds * self.graph.num_vertices :]
        tree = self._pushed_by_rows(mine, ids, trees)
        rows = []
        for name in self._wanted(tree):
            example = next(result[name] for result in mine if name in result)
            rows.append(torch.stack([result.get(name, torch.zeros_like(example)) for result in mine]))
        return self._result(tree, rows)

    def _pushed_by_rows(self, rows: list[dict[Name, Tensor]], ids: Ints, trees: dict[int, dict[str, Any]]) -> Any:
        """The common structure of what vertices pushed one by one."""
        found = {}
        for number in np.unique(ids).tolist():
            if trees[number].get("tree") is not None:
                one = rows[int((ids == number).argmax())]
                outputs = {name: TensorSpec(tuple(value.shape), value.dtype) for name, value in one.items()}
                found[number] = trees[number]["tree"], _pushes(outputs)
        return self._common(found)

    def _reference_types(self) -> tuple[list[NodeType], Ints, dict[int, Any], dict[int, dict[str, Any]]]:
        many = self.type_ids is not None
        ids = self._node_types(many) & ~np.int32(1)
        bodies: dict[int, Any] = {}
        trees: dict[int, dict[str, Any]] = {}
        spec = self._spec(False)
        kinds: list[NodeType] = []
        for number in range(int(ids.max(initial=-1)) + 1):
            trees[number] = {}
            bodies[number] = self.body(number // 2, spec, trees[number]), spec
            kinds.append(NodeType(self.name, ports_of({("sum", ""): TensorSpec((), torch.float32)}, spec.first_child)))
        if self.rounds is not None:
            kinds.append(INIT)
            bodies[len(kinds) - 1] = (lambda rows: {(0, key): value for key, value in rows.feed("init").items()}), spec
        return kinds, ids, bodies, trees

    def _blame(self, node: int, error: Exception) -> None:
        vertex = node % max(self.graph.num_vertices, 1)
        part = self._part(vertex)
        inside = vertex - int(self.graph.part_offsets[part])
        name = self._shown_name(0 if self.type_ids is None else int(self.type_ids[vertex]))
        error.add_note(f"in {name}, vertex {inside} of graph {part} (vertex {vertex} of the batch)")


def _row_spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape[1:]), tensor.dtype)


def _hashable(nest: Any) -> Hashable:
    if not nest:
        return None
    leaves, tree = tree_flatten(nest)
    return tuple(leaves), tree


def _pushes(outputs: Mapping[Name, TensorSpec]) -> list[TensorSpec]:
    return [spec for name, spec in outputs.items() if name[0] == "push"]


class _Text(str):
    """Shows itself without quotation marks, inside a nest as well."""

    __repr__ = str.__str__


def _shown(tree: Any, specs: list[TensorSpec]) -> str:
    return repr(tree_unflatten([_Text(f"{list(spec.shape)} {spec.dtype}") for spec in specs], tree))
