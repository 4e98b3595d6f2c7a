"""What a cell's code can ask for: its fed row, its child slots, all its children. One interface, three ways to answer.

`OneRow` answers with single (fake) tensors, to find out what the code asks for and what comes out. `ManyRows` answers under
vmap for all vertices at once: vertices are rows of one vmap, edges are rows of another inside it, and a vertex value that is
used per edge is repeated by an index. The third, with real tensors one vertex at a time, is the reference engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from weft.graph.drawing import EdgeMode
from weft.graph.tape import Name

_functorch = torch._C._functorch


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of one row of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Rows(Protocol):
    """The questions a cell may ask about the row it computes. `PerEdge` values stand for one tensor per child."""

    def feed(self, name: str) -> Any: ...
    def slot(self, position: int, key: str) -> Tensor: ...
    def slot_filled(self, position: int) -> Tensor: ...
    def slot_edge(self, position: int) -> Any: ...
    def count(self) -> Tensor: ...
    def child_sum(self, key: str) -> Tensor: ...
    def child_map(self, fn: ChildFunction, *per_edge: Tensor) -> Any: ...
    def reduce_sum(self, per_edge: Tensor) -> Tensor: ...
    def reduce_max(self, per_edge: Tensor) -> Tensor: ...


ChildFunction = Callable[..., Any]
"""From a child's state, its edge row, and its rows of further per-edge tensors, to a nest of tensors."""

Ask = Callable[[Name, TensorSpec], Tensor]


@dataclass(frozen=True)
class Spec:
    """Everything outside the code that decides a trace: what is fed, what state the neighbours have."""

    feeds: tuple[tuple[str, Any], ...]
    """Named nests of TensorSpec: what one row of the fed data looks like."""
    edge: Any
    state: tuple[tuple[str, TensorSpec], ...]
    first_child: int = 0
    """Argument position of child slot 0 (1 where position 0 is the vertex's own previous state)."""
    childless: bool = False
    """Vertices without any child: slots are zeros, and no edge exists."""
    float_dtype: torch.dtype = torch.float32
    device: str = "cpu"
    slots: tuple[TensorSpec, ...] = ()
    """What single arguments look like where they are not states: argument i is `slots[i]`."""

    def slot(self, position: int, key: str) -> TensorSpec:
        return self.slots[position] if position < len(self.slots) else dict(self.state)[key]


class _Asking:
    """Shared by both tracing answers: inputs are asked for by name, so that only what the code uses becomes an input."""

    def __init__(self, spec: Spec, ask: Ask) -> None:
        self.spec, self.ask = spec, ask
        self.state = dict(spec.state)

    def _nest(self, nest: Any, *name: Any) -> Any:
        if nest is None:
            return None
        leaves, tree = torch.utils._pytree.tree_flatten(nest)
        return torch.utils._pytree.tree_unflatten([self.ask((*name, i), leaf) for i, leaf in enumerate(leaves)], tree)

    def _zeros(self, spec: TensorSpec) -> Tensor:
        return torch.zeros(spec.shape, dtype=spec.dtype, device=self.spec.device)

    def feed(self, name: str) -> Any:
        return self._nest(dict(self.spec.feeds).get(name), "feed", name)

    def slot(self, position: int, key: str) -> Tensor:
        spec = self.spec.slot(position, key)
        return (
            self._zeros(spec)
            if self.spec.childless and position >= self.spec.first_child
            else self.ask(("slot", position, key), spec)
        )

    def slot_filled(self, position: int) -> Tensor:
        if self.spec.childless:
            return torch.zeros((), dtype=torch.bool, device=self.spec.device)
        return self.ask(("filled", position), TensorSpec((), torch.bool))

    def slot_edge(self, position: int) -> Any:
        if self.spec.childless:
            return tree_map_only(TensorSpec, self._zeros, self.spec.edge)
        return self._nest(self.spec.edge, "slot_edge", position)

    def count(self) -> Tensor:
        spec = TensorSpec((), self.spec.float_dtype)
        return self._zeros(spec) if self.spec.childless else self.ask(("count",), spec)

    def _imagined_child(self, fn: ChildFunction, *per_edge: Tensor) -> Any:
        """What a map over no children would return for one: only its shape matters."""
        edge = tree_map_only(TensorSpec, self._imagined, self.spec.edge)
        return fn({key: self._imagined(spec) for key, spec in self.state.items()}, edge, *per_edge)

    def _imagined(self, spec: TensorSpec) -> Tensor:
        return self._zeros(spec)

    def child_sum(self, key: str) -> Tensor:
        spec = self.state[key]
        return self._zeros(spec) if self.spec.childless else self.ask(("sum", key), spec)


class OneRow(_Asking):
    """Single tensors: a child map runs once, reductions keep the shape."""

    def child_map(self, fn: ChildFunction, *per_edge: Tensor) -> Any:
        if self.spec.childless:
            return self._imagined_child(fn, *per_edge)
        self.ask(("edge_number",), TensorSpec((), torch.int64))
        return fn(_AskedState(self), self._edge(), *per_edge)

    def _edge(self) -> Any:
        return _Lazy(lambda: self._nest(self.spec.edge, "edge_feed"))

    def reduce_sum(self, per_edge: Tensor) -> Tensor:
        return per_edge.clone()

    def reduce_max(self, per_edge: Tensor) -> Tensor:
        return per_edge.clone()


class _AskedState(dict[str, Tensor]):
    """A child's state of which only the keys that are read become inputs."""

    def __init__(self, rows: OneRow) -> None:
        super().__init__()
        self.rows = rows
        for key in rows.state:
            self[key] = torch.empty(0)

    def __getitem__(self, key: str) -> Tensor:
        return self.rows.ask(("edge", key), self.rows.state[key])


class _Lazy:
    """An edge row that becomes an input only if the code looks at it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def edge_row(edge: Any) -> Any:
    return edge.make() if isinstance(edge, _Lazy) else edge


class ManyRows(_Asking):
    """Under vmap: `ask` gives the vertex's row; edge inputs are whole tensors, and vmapped here."""

    def __init__(self, spec: Spec, ask: Ask, edges: Mapping[Name, Tensor], seg: Tensor | None, rows: int, level: int) -> None:
        super().__init__(spec, ask)
        self.edges, self.seg, self.rows, self.level = edges, seg, rows, level

    def child_map(self, fn: ChildFunction, *per_edge: Tensor) -> Any:
        if self.spec.childless:
            return self._imagined_child(fn, *per_edge)
        leaves, tree = torch.utils._pytree.tree_flatten(self.spec.edge)
        count = 0 if self.spec.edge is None else len(leaves)

        def one_edge(number: Tensor, inputs: dict[Name, Tensor], *extra: Tensor) -> Any:
            level = _functorch.maybe_get_level(number)
            state = {key: inputs[("edge", key)].clone() for key in self.state if ("edge", key) in inputs}
            feeds = [inputs.get(("edge_feed", i)) for i in range(count)]
            edge = torch.utils._pytree.tree_unflatten(feeds, tree) if count else None
            with EdgeMode(lambda tensor: self._on_edge(tensor, level), level, self.level, edges):
                result = fn(state, edge, *extra)
            # A copy, so that what the code reaches outside is seen by the mode around, which knows what stands for it.
            return tree_map_only(Tensor, lambda tensor: self._on_edge(tensor.clone(), level), result)

        assert self.seg is not None
        edges = self.seg.shape[0]
        return torch.vmap(one_edge, randomness="different")(self.seg, dict(self.edges), *per_edge)

    def _on_edge(self, tensor: Tensor, level: int) -> Tensor:
        """Repeat a vertex's value for each of its edges; leave everything else alone."""
        if not _functorch.is_batchedtensor(tensor) or _functorch.maybe_get_level(tensor) != self.level:
            return tensor
        assert self.seg is not None
        whole = _functorch._remove_batch_dim(tensor, self.level, self.rows, 0)
        return _functorch._add_batch_dim(whole.index_select(0, self.seg), 0, level)

    def _imagined(self, spec: TensorSpec) -> Tensor:
        """A row for each vertex: code that draws random numbers into what is like a child's state needs one."""
        return self._vertex(torch.zeros((self.rows, *spec.shape), dtype=spec.dtype, device=self.spec.device))

    def _vertex(self, whole: Tensor) -> Tensor:
        return _functorch._add_batch_dim(whole, 0, self.level)

    def reduce_sum(self, per_edge: Tensor) -> Tensor:
        if self.spec.childless:
            return torch.zeros_like(per_edge)
        assert self.seg is not None
        zeros = per_edge.new_zeros((self.rows, *per_edge.shape[1:]))
        return self._vertex(zeros.index_add(0, self.seg, per_edge))

    def reduce_max(self, per_edge: Tensor) -> Tensor:
        if self.spec.childless:
            return torch.zeros_like(per_edge)
        assert self.seg is not None
        return self._vertex(segment_max(per_edge, self.seg, self.rows))


def segment_max(per_edge: Tensor, seg: Tensor, rows: int) -> Tensor:
    """The largest row of each segment, zeros where there is none. The gradient is shared among ties, as that of torch.amax:
    where the largest is not a number, no gradient is one."""
    index = seg.reshape(-1, *[1] * (per_edge.dim() - 1)).expand_as(per_edge)
    start = per_edge.new_zeros((rows, *per_edge.shape[1:]))
    top = start.scatter_reduce(0, index, per_edge.detach(), "amax", include_self=False)
    ties = (per_edge.detach() == top.index_select(0, seg)).to(per_edge.dtype)
    share = ties / start.index_add(0, seg, ties).index_select(0, seg)  # NaN, for all of a segment, where nothing ties
    carrier = start.index_add(0, seg, torch.where(share != 0, per_edge, torch.zeros((), dtype=per_edge.dtype)) * share)
    # The carrier has the gradient and, up to rounding, the value: a sum of equal shares need not round to the maximum.
    return carrier + torch.where(top == carrier, torch.zeros((), dtype=top.dtype), top - carrier).detach()
