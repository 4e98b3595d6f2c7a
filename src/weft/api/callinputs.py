"""What one call of a vertex function is given, checked, and what that looks like to a single vertex."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only

from weft.api import inputs as check
from weft.api.function import Typed, VertexFunction
from weft.api.graph import Graph
from weft.api.modelcache import ModelCache, State
from weft.api.vertex import Vertex
from weft.errors import StructureError, TraceError, WeftError
from weft.graph.program import Ints
from weft.graph.rows import Rows, Spec, TensorSpec
from weft.graph.tape import Name
from weft.run.options import Options


class CallInputs:
    """A vertex function with a graph and the rows for its vertices and edges."""

    def __init__(
        self,
        model: VertexFunction,
        graph: Graph,
        x: Any,
        edges: Any,
        rounds: int | None,
        init: Mapping[str, Tensor] | None,
        options: Options,
        at: Any = None,
    ) -> None:
        self.model, self.graph, self.options, self.rounds = model, graph, options, rounds
        self.name = type(model).__name__
        check.rounds(self.name, rounds, init)
        self.cache = ModelCache.of(model)
        self.functions = model.vertex_functions()
        self.x, self.edges = x, edges
        n = graph.num_vertices
        self.x_leaves = check.rows(x, n, f"{self.name}: x", "vertices")
        self.edge_leaves = [] if edges is None else check.rows(edges, graph.num_edges, f"{self.name}: edges", "edges")
        first, own_dtype = check.leading(model)
        fed = [*self.x_leaves, *self.edge_leaves, *(init or {}).values()]
        self.device = check.one_device(self.name, first, fed, graph.device)
        self.float_dtype = own_dtype or check.first_float(self.x_leaves) or torch.get_default_dtype()
        self.state = self._state()
        self.init = None if rounds is None else check.first_states(self.name, init, self.state, n, self.device)
        self._check_types()
        self.at = None if at is None else check.vertices(self.name, at, n)
        self.captured: list[Tensor] | None = None
        """What the cells capture, where that is known: their cells in ascending order of node types."""

    def _state(self) -> State:
        """The state's keys with the looks of their rows: equal ones are one object."""
        key = (self.float_dtype, *self.model.state_shapes.items())
        found = self.cache.states.get(key)
        if found is None:
            shapes = self.model.state_shapes.items()
            found = self.cache.states[key] = tuple((key, TensorSpec(shape, self.float_dtype)) for key, shape in shapes)
        return found

    def _check_types(self) -> None:
        """Every type of the graph is one of the model's."""
        graph, count = self.graph, len(self.functions)
        if not isinstance(self.model, Typed) or (count == 1 and not graph.has_types):
            return
        if not graph.has_types:
            raise StructureError(f"{self.name}: the graph has no types; build it with Graph(..., types=...)")
        if graph.type_names is None and graph.highest_type < count:
            return
        names = [name for name, _ in self.functions]
        if graph.type_names is not None:
            unknown = [i for i, name in enumerate(graph.type_names) if name not in names]
            if unknown and graph.type_ids is not None:
                vertex = int(np.isin(graph.type_ids, unknown).argmax())
                raise StructureError(
                    f"{self.name}: vertex {vertex} has the unknown type {graph.type_names[graph.type_ids[vertex]]!r}; "
                    f"the types are {', '.join(map(repr, names))}"
                )
        elif graph.type_ids is not None:
            vertex = int((graph.type_ids >= count).argmax())
            raise StructureError(
                f"{self.name}: vertex {vertex} has type {int(graph.type_ids[vertex])}, but the types are 0 to {count - 1} "
                f"({', '.join(map(repr, names))})"
            )

    @cached_property
    def type_ids(self) -> Ints | None:
        """Type ids in the order of the model's functions."""
        ids, names = self.graph.type_ids, self.graph.type_names
        if not isinstance(self.model, Typed) or ids is None or names is None:
            return ids
        known = [name for name, _ in self.functions]
        return np.array([known.index(name) for name in names], dtype=np.int32)[ids]

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
    def _specs(self) -> tuple[tuple[Spec, Spec], int]:
        """What rows look like to vertices with and without children, and a key for that."""
        kind = self.device.type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        key = (
            _signature(self.x),
            _signature(self.edges),
            self.init is not None,
            id(self.state),
            self.device,
            autocast,
            torch.get_default_dtype(),
        )
        return self.cache.specs_of(key, self._make_specs)

    def _make_specs(self) -> tuple[Spec, Spec]:
        feeds = [("x", _row_specs(self.x))] if self.x is not None else []
        if self.init is not None:
            feeds.append(("init", dict(self.state)))
        edge = None if self.edges is None else _row_specs(self.edges)
        own = int(self.rounds is not None)
        inner = Spec(tuple(feeds), edge, self.state, own, False, self.float_dtype, str(self.device))
        return inner, replace(inner, childless=True)

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
                told_apart = vertex.type_was_read and self.graph.has_types
                self._name(error, f"{shown}, v.type {vertex_type}" if told_apart else shown)
                raise
            if told is not None:
                told["tree"], told["reads type"] = tree, vertex.type_was_read
            return outputs

        return run


def _row_spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape[1:]), tensor.dtype)


def _row_specs(nest: Any) -> Any:
    return _row_spec(nest) if isinstance(nest, Tensor) else tree_map_only(Tensor, _row_spec, nest)


def _signature(nest: Any) -> Hashable:
    """Equal where the rows of two nests look alike."""
    if nest is None or isinstance(nest, Tensor):
        return None if nest is None else (nest.shape[1:], nest.dtype)
    leaves, tree = tree_flatten(nest)
    return tuple([(leaf.shape[1:], leaf.dtype) for leaf in leaves]), tree
