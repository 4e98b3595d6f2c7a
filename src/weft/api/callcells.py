"""The cells of one call: a vertex function traced for the vertices of a graph, by type, with and without children."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_unflatten

from weft.api.callinputs import CallInputs
from weft.api.function import VertexFunction
from weft.api.modelcache import Kinds, Settled
from weft.api.structure import EVERY_TYPE, INIT, ONE_TYPE, Seen, by_name, reaching
from weft.errors import ShapeError, TraceError, warn
from weft.graph.capture import Surroundings
from weft.graph.cell import Body, Sample, Trace, trace, trace_plainly
from weft.graph.held import Held
from weft.graph.program import NodeType
from weft.graph.rows import Rows, Spec, TensorSpec
from weft.graph.tape import Name
from weft.graph.tracing import tracing
from weft.graph.twin import Escaped
from weft.run.call import CompiledCell

KEPT_TRACES = 4


class CallCells(CallInputs):
    """What the vertices of a call compute."""

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
            self._note_reads_type(function, told["reads type"] or self.cache.reads_type.get(id(function), False))
            found.tree, found.owner = told["tree"], function
            # The last few stay: train and eval, with and without gradients.
            self.cache.cells[key()] = [found, *self.cache.cells.get(key(), ())][:KEPT_TRACES]
        return found, found.tree

    def _trace(self, name: str, function: VertexFunction, vertex_type: int, spec: Spec, told: dict[str, Any]) -> Trace:
        """Trace a vertex function; what cannot be traced is batched the slower way, with one warning."""
        body, surroundings = self.body(vertex_type, spec, told), Surroundings().add(function)
        try:
            with tracing:
                return trace(name, body, spec, surroundings)
        except Escaped as error:
            raise Escaped(f"{name}: {error}") from None
        except TraceError as error:
            reason = str(error)
        sample = self.first_row(vertex_type, spec)
        try:
            made = trace_plainly(name, body, spec, surroundings, reason, self.cache.foreseen, sample=sample)
        except Exception as error:
            error.add_note(f"in {name}, for {'a vertex without children' if spec.childless else 'a vertex'}")
            raise
        if name not in self.cache.warned:
            self.cache.warned.add(name)
            warn(f"{name}: {made.fallback}")
        return made

    def first_row(self, vertex_type: int, spec: Spec) -> Sample:
        """The tensors of a vertex of this type, with or without children, as far as there is one."""
        raise NotImplementedError

    def _own_cell(self, name: str, body: Body) -> CompiledCell:
        """A cell of weft's own, beside the user's."""
        spec = self._spec(True)
        key = (name, spec.state, str(self.device))
        if key not in self.cache.cells:
            self.cache.cells[key] = [CompiledCell(trace(name, body, spec, Surroundings()))]
        return self.cache.cells[key][0]

    def _first_state_cell(self) -> CompiledCell:
        """Layer 0 of rounds: hands the given first states on."""

        def body(rows: Rows) -> dict[Name, Tensor]:
            return {(0, key): value.clone() for key, value in rows.feed("init").items()}

        return self._own_cell("first state", body)

    def _idle_cell(self) -> CompiledCell:
        """For vertices that no result depends on: they compute nothing, and nothing of them reaches a gradient."""

        def body(rows: Rows) -> dict[Name, Tensor]:
            return {(0, key): torch.zeros(spec.shape, dtype=spec.dtype, device=self.device) for key, spec in self.state}

        return self._own_cell("not needed", body)

    def cells(self) -> tuple[dict[int, CompiledCell], Kinds, Seen, Any]:
        """Cells and node types for the vertices of this graph, which type each vertex is, and what is pushed."""
        many = self.graph.has_types and (len(self.functions) > 1 or self._type_matters())
        seen = self._node_types(many)
        if self.rounds is not None:
            seen = seen.replaced(seen.ids & ~np.int32(1))
        found = self._settled(seen.present)
        cells, kinds, tree = found.cells, found.kinds, found.tree
        # What pushes nothing is needed by its readers; where all roots push something, every vertex is.
        if tree is not None and self.rounds is None and found.silent and seen.any_root_among(found.silent):
            needed = reaching(self.graph, ~np.isin(seen.ids, found.silent))
            if not needed.all():
                seen = seen.replaced(np.where(needed, seen.ids, np.int32(len(kinds.types))))
                cells = {**cells, len(kinds.types): self._idle_cell()}
                kinds = self.cache.numbered([*kinds.types, NodeType("not needed")])
                self.captured = None
        return cells, kinds, seen, tree

    def _settled(self, present: Sequence[int]) -> Settled:
        """The cells of these node types; what they capture is left in `captured`, where it is known."""
        key = (self._specs[1], self.rounds is None, *present, *[id(function) for _, function in self.functions])
        kept = self.cache.settled.get(key, [])
        for held, found in kept:
            self.captured = held.tensors()
            if self.captured is not None:
                return found
        known = self.cache.reads_type
        cells = {number: self.cell(number // 2, bool(number % 2))[0] for number in present}
        kinds, tree = self.cache.numbered(self._kinds(cells)), self._pushed(cells)
        silent = [number for number in present if cells[number].tree is None]
        traces = [cell.trace for cell in cells.values()]
        if self.rounds is not None:
            cells[len(kinds.types) - 1] = self._first_state_cell()
        settled = Settled(cells, kinds, tree, silent)
        if known is self.cache.reads_type and Held.can_tell(traces):
            self.cache.settled[key] = [(Held(traces), settled), *kept][:KEPT_TRACES]
        return settled

    def _kinds(self, cells: dict[int, CompiledCell]) -> list[NodeType]:
        """The node types of these cells, by number."""
        kinds = [NodeType("unused")] * max([2 * len(self.functions), *(number + 1 for number in cells)])
        for number, cell in cells.items():
            kinds[number] = NodeType(cell.trace.name + (" (no children)" if number % 2 else ""), cell.trace.ports, 1)
        return kinds if self.rounds is None else [*kinds, INIT]

    def _node_types(self, many: bool) -> Seen:
        names = self.graph.type_names
        if many and len(self.functions) > 1 and names is not None:
            return Seen(self.graph, by_name(tuple([name for name, _ in self.functions]), names))
        return Seen(self.graph, EVERY_TYPE if many else ONE_TYPE)

    def _type_matters(self) -> bool:
        """Whether the one function reads `v.type`, as far as is known: its first trace tells."""
        return self.cache.reads_type.get(id(self.functions[0][1]), True)

    def _note_reads_type(self, function: VertexFunction, reads: bool) -> None:
        """A new dictionary where something is new: who holds the old one sees that."""
        if self.cache.reads_type.get(id(function)) is not reads:
            self.cache.reads_type = {**self.cache.reads_type, id(function): reads}

    def _pushed(self, cells: dict[int, CompiledCell]) -> Any:
        """The common structure of what is pushed; None if nothing is."""
        return self._common({n: (c.tree, pushes(c.trace.outputs)) for n, c in cells.items() if c.tree is not None})

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


def pushes(outputs: Mapping[Name, TensorSpec]) -> list[TensorSpec]:
    return [spec for name, spec in outputs.items() if name[0] == "push"]


class _Text(str):
    """Shows itself without quotation marks, inside a nest as well."""

    __repr__ = str.__str__


def _shown(tree: Any, specs: list[TensorSpec]) -> str:
    return repr(tree_unflatten([_Text(f"{list(spec.shape)} {spec.dtype}") for spec in specs], tree))
