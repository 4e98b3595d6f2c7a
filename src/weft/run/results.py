"""Results: the rows that a caller receives, and the gradients that come back for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from weft.graph.program import Ints
from weft.graph.tape import Name
from weft.run.backward import Given
from weft.run.call import Call
from weft.run.code import CellCode
from weft.run.indices import Indices
from weft.run.inorder import in_order
from weft.run.somerows import SomeRows
from weft.run.typerun import Arenas, TypeRun
from weft.run.upload import as_tensor
from weft.run.views import is_free
from weft.run.wanted import Wanted


class Results:
    """From what a plan has computed to what was wanted, and back."""

    def __init__(self, call: Call, codes: Mapping[int, CellCode], indices: Indices) -> None:
        self.call, self.codes, self.indices, self.plan = call, codes, indices, call.plan

    def name_at(self, t: int, wanted: Wanted) -> Name:
        """What a wanted output is called in a type's cell."""
        return self.call.cells[t].own_name(wanted.name)

    def rows(self, wanted: Wanted, runs: Mapping[int, TypeRun], arenas: Arenas) -> Tensor:
        """The rows of one wanted output, in the order asked for."""
        self.runs, self.arenas = runs, arenas
        return self._all_nodes(wanted) if wanted.nodes is None else self._some_nodes(wanted)

    def _rows_of(self, t: int, name: Name) -> Tensor | None:
        """A wanted output's rows of one type."""
        value = self.codes[t].split.outputs.get(name)
        if value is None:
            return None
        if name in self.codes[t].role.exchanged:
            output, key = name
            arena = self.arenas[self.plan.class_of[t, output], key]
            where = self.indices.class_rows(t, output)
            return arena[where[0] : where[1]] if isinstance(where, tuple) else arena.index_select(0, where)
        rows = self.runs[t].whole(value)
        # What was not computed here belongs to someone else: an input, a parameter, or a part of them.
        return rows.clone() if is_free(value) or value.name in self.codes[t].input_name else rows

    def _some_nodes(self, wanted: Wanted) -> Tensor:
        parts = [(at, self._chosen(t, self.name_at(t, wanted), rows)) for t, at, rows in wanted.parts(self.plan)]
        if len(parts) == 1 and parts[0][1] is not None:
            return parts[0][1]
        assert wanted.nodes is not None
        kinds = [self.call.cells[t].trace.outputs for t in self.runs]
        spec = next(outputs[wanted.name] for outputs in kinds if wanted.name in outputs)
        out = torch.zeros((len(wanted.nodes), *spec.shape), dtype=spec.dtype, device=self.call.device)
        for at, part in parts:
            if part is not None and at is not None:
                out[as_tensor(at, self.call.device)] = part
        return out

    def _chosen(self, t: int, name: Name, rows: Ints) -> Tensor | None:
        """Some rows of an output of one type."""
        value = self.codes[t].split.outputs.get(name)
        if value is None:
            return None
        if name in self.codes[t].role.exchanged:
            output, key = name
            arena = self.arenas[self.plan.class_of[t, output], key]
            return arena.index_select(0, as_tensor(self.plan.class_row[t, output][rows], self.call.device))
        return self.runs[t].whole(value).index_select(0, as_tensor(rows, self.call.device))

    def _all_nodes(self, wanted: Wanted) -> Tensor:
        parts = [(t, self._rows_of(t, self.name_at(t, wanted))) for t in self.runs]
        given = [(t, part) for t, part in parts if part is not None]
        example = given[0][1]
        n = self.plan.program.num_nodes
        if len(given) == 1 and self.indices.nodes(given[0][0]) is None:
            return example.detach() if example.shape[0] == n else example
        if len(given) == 1 and len(self.plan.rows[given[0][0]]) == n:
            return example.index_select(0, self.indices.row_of_node())
        if sum(part.shape[0] for _, part in given) == n:
            names = [self.name_at(t, wanted) for t, _ in given]
            return in_order(self.indices, self.codes, self.arenas, names, given)
        out = torch.zeros((n, *example.shape[1:]), dtype=example.dtype, device=example.device)
        for t, part in given:
            nodes = self.indices.nodes(t)
            assert nodes is not None
            out.index_copy_(0, nodes.long(), part)
        return out

    def given(self, grads: Sequence[Tensor | None]) -> Given:
        """Gradients of the wanted outputs, by type and output."""
        given: Given = {}
        for wanted, grad in zip(self.call.wanted, grads, strict=True):
            if grad is None:
                continue
            if wanted.nodes is not None:
                self._give(given, wanted, grad)
                continue
            for t in self.codes:
                name = self.name_at(t, wanted)
                if name in self.codes[t].split.outputs:
                    nodes = self.indices.nodes(t)
                    _add(given, (t, name), grad if nodes is None else grad.index_select(0, nodes))
        return given

    def _give(self, given: Given, wanted: Wanted, grad: Tensor) -> None:
        """Gradients of some nodes' rows."""
        for t, at, rows in wanted.parts(self.plan):
            name = self.name_at(t, wanted)
            if name not in self.codes[t].split.outputs:
                continue
            part = grad if at is None else grad.index_select(0, as_tensor(at, self.call.device))
            _add(given, (t, name), SomeRows(rows, part, len(self.plan.rows[t])))


def _add(given: Given, key: tuple[int, Name], grad: Tensor | SomeRows) -> None:
    """A gradient beside what came before under the same name."""
    before = given.get(key)
    if before is not None:
        first, second = (part.dense() if isinstance(part, SomeRows) else part for part in (before, grad))
        grad = first + second
    given[key] = grad
