"""The reference engine: one node at a time, ordinary autograd, ordinary tracebacks. The definition of right."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only

from weft.graph.cell import Body
from weft.graph.program import Program
from weft.graph.rows import ChildFunction, Spec, TensorSpec
from weft.graph.tape import Name
from weft.plan.levels import levels, stable_order

State = dict[str, Tensor]


def run_reference(
    program: Program,
    body_of: Callable[[int], tuple[Body, Spec]],
    feeds: Mapping[str, Any],
    edge: Any,
    visit: Callable[[int, Exception], None] | None = None,
    among: Container[int] | None = None,
) -> list[dict[Name, Tensor]]:
    """Every node's named outputs. `feeds` and `edge` are nests of whole tensors; `visit` is told of an error's node.

    `among`: only these nodes run, which need none of the others.
    """
    level = levels(program.ptr, program.src)
    order = stable_order(level, int(level.max(initial=0)) + 1).tolist()
    results: list[dict[Name, Tensor]] = [{} for _ in range(program.num_nodes)]
    for node in order if among is None else filter(among.__contains__, order):
        body, spec = body_of(int(program.type[node]))
        try:
            results[node] = dict(body(real_row(program, node, spec, results, feeds, edge)))
        except Exception as error:
            if visit is not None:
                visit(node, error)
            raise
    return results


def real_row(
    program: Program, node: int, spec: Spec, results: Sequence[Mapping[Name, Tensor]], feeds: Mapping[str, Any], edge: Any
) -> RealRow:
    """What a node's code can ask for, once there are results of what it reads."""
    arguments = slice(int(program.ptr[node]), int(program.ptr[node + 1]))
    sources = program.src[arguments].tolist()
    rows = [None] * len(sources) if program.edge is None else program.edge[arguments].tolist()
    states = [None if source < 0 else _state(results[source]) for source in sources]
    edges = [None if source < 0 else row for source, row in zip(sources, rows, strict=True)]
    return RealRow(spec, states, edges, node if program.feed is None else int(program.feed[node]), feeds, edge)


def _state(outputs: Mapping[Name, Tensor]) -> State:
    return {name[1]: value for name, value in outputs.items() if isinstance(name, tuple) and name[0] == 0}


def _row(nest: Any, row: int) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor[row].clone(), nest)


class RealRow:
    """Answers a cell's questions with the real tensors of one node."""

    def __init__(
        self,
        spec: Spec,
        states: Sequence[State | None],
        edges: Sequence[int | None],
        row: int,
        feeds: Mapping[str, Any],
        edge: Any,
    ) -> None:
        self.spec, self.states, self.edges, self.row, self.feeds, self.edge = spec, states, edges, row, feeds, edge
        self.specs = dict(spec.state)
        self.children = [i for i in range(spec.first_child, len(states)) if states[i] is not None]

    def _zeros(self, spec: TensorSpec) -> Tensor:
        return torch.zeros(spec.shape, dtype=spec.dtype, device=self.spec.device)

    def feed(self, name: str) -> Any:
        return _row(self.feeds.get(name), self.row)

    def slot(self, position: int, key: str) -> Tensor:
        state = self.states[position] if position < len(self.states) else None
        return self._zeros(self.specs[key]) if state is None else state[key].clone()

    def slot_filled(self, position: int) -> Tensor:
        return torch.tensor(position < len(self.states) and self.states[position] is not None, device=self.spec.device)

    def slot_edge(self, position: int) -> Any:
        row = self.edges[position] if position < len(self.edges) else None
        return tree_map_only(TensorSpec, self._zeros, self.spec.edge) if row is None else _row(self.edge, row)

    def count(self) -> Tensor:
        return torch.tensor(float(len(self.children)), dtype=self.spec.float_dtype, device=self.spec.device)

    def child_sum(self, key: str) -> Tensor:
        if not self.children:
            return self._zeros(self.specs[key])
        return torch.stack([self._child(i)[key] for i in self.children]).sum(0)

    def _child(self, position: int) -> State:
        state = self.states[position]
        assert state is not None
        return {key: value.clone() for key, value in state.items()}

    def child_map(self, fn: ChildFunction, *per_edge: Tensor) -> Any:
        if not self.children:
            with torch.no_grad():
                edge = tree_map_only(TensorSpec, self._zeros, self.spec.edge)
                extra = [tensor.new_zeros(tensor.shape[1:]) for tensor in per_edge]
                one = fn({key: self._zeros(spec) for key, spec in self.spec.state}, edge, *extra)
            return tree_map_only(Tensor, lambda tensor: tensor.new_zeros((0, *tensor.shape)), one)
        rows = [self.edges[i] for i in self.children]
        edges = [None if row is None else _row(self.edge, row) for row in rows]
        results = [
            fn(self._child(i), edges[number], *(tensor[number] for tensor in per_edge))
            for number, i in enumerate(self.children)
        ]
        return tree_map(lambda *parts: torch.stack(parts), *results)

    def reduce_sum(self, per_edge: Tensor) -> Tensor:
        return per_edge.sum(0, dtype=per_edge.dtype)

    def reduce_max(self, per_edge: Tensor) -> Tensor:
        return per_edge.amax(0) if per_edge.shape[0] else per_edge.new_zeros(per_edge.shape[1:])
