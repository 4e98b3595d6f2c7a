"""All children of a vertex at once: reductions over any number of them, empty slots left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only

from weft.errors import MissingKey, TypeMismatch
from weft.graph.rows import Rows, edge_row


class Child(Mapping[str, Tensor]):
    """One child inside `map`: `k["h"]` is its state, `k.edge` the row of its edge."""

    def __init__(self, state: Mapping[str, Tensor], edge: Any, keys: tuple[str, ...]) -> None:
        self._state, self._edge, self._keys = state, edge, keys

    def __getitem__(self, key: str) -> Tensor:
        check_key(key, self._keys)
        return self._state[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def edge(self) -> Any:
        row = edge_row(self._edge)
        if row is None:
            raise TypeMismatch("k.edge was read, but the call has no edges=; pass model(graph, x, edges=...)")
        return row


def check_key(key: object, keys: tuple[str, ...]) -> None:
    if key not in keys:
        raise MissingKey(f"unknown state key {key!r}; the state has {', '.join(map(repr, keys))}")


class Children:
    """What `v.gather()` returns: the states of all children."""

    def __init__(self, rows: Rows, keys: tuple[str, ...]) -> None:
        self._rows, self._keys = rows, keys

    def __iter__(self) -> Iterator[Any]:
        raise TypeMismatch("v.gather() cannot be looped over: vertices have different numbers of children; use .map(fn)")

    def __len__(self) -> int:
        raise TypeMismatch("v.gather() has no length as a Python number; use .count, a tensor")

    @property
    def count(self) -> Tensor:
        """How many children there are, as a 0-d tensor."""
        return self._rows.count()

    def _key(self, key: str | None) -> str:
        if key is None:
            if len(self._keys) != 1:
                raise MissingKey(f"which state key? the state has {', '.join(map(repr, self._keys))}")
            return self._keys[0]
        check_key(key, self._keys)
        return key

    def sum(self, key: str | None = None) -> Tensor:
        return self._rows.child_sum(self._key(key))

    def mean(self, key: str | None = None) -> Tensor:
        return self.sum(key) / self.count.clamp_min(1)

    def max(self, key: str | None = None) -> Any:
        return self._of(key).max()

    def min(self, key: str | None = None) -> Any:
        return self._of(key).min()

    def _of(self, key: str | None) -> Mapped:
        name = self._key(key)
        return self.map(lambda child: child[name])

    def map(self, fn: Callable[[Child], Any]) -> Mapped:
        """Apply `fn` to every child; reduce the result with `sum`, `mean`, `max` or `min`."""
        keys = self._keys
        return Mapped(self._rows, self._rows.child_map(lambda state, edge: _tensors(fn(Child(state, edge, keys)))))

    def softmax_sum(self, score_fn: Callable[[Child], Tensor], value_fn: Callable[[Child], Any] | None = None) -> Any:
        """The sum of the values, weighted by the softmax of the scores over the children."""
        rows, keys = self._rows, self._keys
        value = value_fn or self._whole_state

        def scored(state: Mapping[str, Tensor], edge: Any) -> Any:
            child = Child(state, edge, keys)
            return _tensors(score_fn(child), "softmax_sum"), _tensors(value(child), "softmax_sum")

        scores, values = rows.child_map(scored)
        top = rows.reduce_max(scores.detach())
        powers = rows.child_map(lambda state, edge, score: (score - top).exp(), scores)
        total = rows.reduce_sum(powers)

        def weighted(part: Tensor) -> Tensor:
            shares = rows.child_map(lambda state, edge, power, row: power / total * row, powers, part)
            return rows.reduce_sum(shares)

        return tree_map_only(Tensor, weighted, values)

    def _whole_state(self, child: Child) -> Any:
        return child[self._keys[0]] if len(self._keys) == 1 else dict(child)


def _tensors(nest: Any, caller: str = "map") -> Any:
    """What a function of one child returned; numbers become tensors."""

    def tensor(leaf: Any) -> Tensor:
        if isinstance(leaf, Tensor):
            return leaf
        try:
            return torch.as_tensor(leaf)
        except (TypeError, ValueError, RuntimeError):
            wanted, came = "a function that returns a tensor or a nest of tensors", type(leaf).__name__
            raise TypeMismatch(f"{caller}: expected {wanted}, got {came}") from None

    return tree_map(tensor, nest)


class Mapped:
    """One nest of tensors per child, waiting to be reduced."""

    def __init__(self, rows: Rows, per_edge: Any) -> None:
        self._rows, self._per_edge = rows, per_edge

    def _reduce(self, key: Any, reduce: Callable[[Tensor], Tensor]) -> Any:
        nest = self._per_edge
        if key is not None:
            if not isinstance(nest, Mapping) or key not in nest:
                known = ", ".join(map(repr, nest)) if isinstance(nest, Mapping) else "no keys"
                raise MissingKey(f"unknown key {key!r}; the mapped function returned {known}")
            nest = nest[key]
        return tree_map_only(Tensor, reduce, nest)

    def sum(self, key: Any = None) -> Any:
        return self._reduce(key, self._rows.reduce_sum)

    def mean(self, key: Any = None) -> Any:
        count = self._rows.count().clamp_min(1)
        return tree_map_only(Tensor, lambda total: total / count.to(total.dtype), self.sum(key))

    def max(self, key: Any = None) -> Any:
        return self._reduce(key, self._rows.reduce_max)

    def min(self, key: Any = None) -> Any:
        return self._reduce(key, lambda per_edge: -self._rows.reduce_max(-per_edge))
