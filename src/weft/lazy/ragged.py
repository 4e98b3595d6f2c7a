"""`weft.ragged`: reductions over lists of any length, batched across lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import _getframe
from typing import Any

import torch
from torch import Tensor

from weft.errors import MissingKey, StructureError, TypeMismatch
from weft.lazy.nests import build, flatten
from weft.lazy.reduce import reduce_values
from weft.lazy.value import Value


class Ragged:
    """A list of nests of tensors, all of one structure, to be reduced. `weft.ragged` makes it."""

    def __init__(self, items: Sequence[Any], like: Any) -> None:
        self.items, self.like = list(items), like

    @property
    def count(self) -> Any:
        """How many there are, as a 0-d tensor."""
        return torch.tensor(float(len(self.items)))

    def __len__(self) -> int:
        return len(self.items)

    def sum(self, key: Any = None) -> Any:
        return self._reduced("sum", key)

    def mean(self, key: Any = None) -> Any:
        return self._reduced("mean", key)

    def max(self, key: Any = None) -> Any:
        return self._reduced("max", key)

    def min(self, key: Any = None) -> Any:
        return self._reduced("min", key)

    def map(self, fn: Callable[[Any], Any]) -> Ragged:
        """Apply `fn` to every item."""
        like = None if self.like is None else fn(self.like)
        return Ragged([fn(item) for item in self.items], like)

    def softmax_sum(self, score_fn: Callable[[Any], Any], value_fn: Callable[[Any], Any] | None = None) -> Any:
        """The sum of the values, weighted by the softmax of the scores over the items."""
        values = self if value_fn is None else self.map(value_fn)
        if not self.items:
            return values.sum()
        scores = [score_fn(item) for item in self.items]
        top = _reduce("max", scores).detach()
        powers = [(score - top).exp() for score in scores]
        total = _reduce("sum", powers)
        return Ragged([_scaled(item, power / total) for item, power in zip(values.items, powers, strict=True)], None).sum()

    def _reduced(self, how: str, key: Any) -> Any:
        items = self.items if self.items else [self._nothing()]
        if key is not None:
            for item in items:
                if not isinstance(item, dict) or key not in item:
                    known = ", ".join(map(repr, item)) if isinstance(item, dict) else "no keys"
                    raise MissingKey(f"weft.ragged: unknown key {key!r}; an item has {known}")
            items = [item[key] for item in items]
        columns: list[list[Any]] = []
        structures = set()
        for item in items:
            leaves: list[Any] = []
            structures.add(flatten(item, leaves))
            columns.append(leaves)
        if len(structures) != 1:
            raise StructureError("weft.ragged: the items have different structures")
        return build(structures.pop(), iter([_reduce(how, list(column)) for column in zip(*columns, strict=True)]))

    def _nothing(self) -> Any:
        if self.like is None:
            raise StructureError("weft.ragged: an empty list has no shape; pass like=, an example of an item")
        leaves: list[Any] = []
        structure = flatten(self.like, leaves)
        return build(structure, iter([torch.zeros_like(leaf) for leaf in leaves]))


def ragged(items: Sequence[Any], like: Any = None) -> Ragged:
    """A list of tensors (or of nests of them), to be reduced with `sum`, `mean`, `max`, `min`, `map` and `softmax_sum`.

    While recording, lists of different lengths batch together. Reductions of an empty list are zeros like `like`.

    >>> import torch, weft
    >>> def fn(sizes):
    ...     return weft.ragged([torch.ones(2) * size for size in sizes]).mean()
    >>> weft.batched(fn)([[1, 3], [5]])
    tensor([[2., 2.],
            [5., 5.]])
    """
    if isinstance(items, Tensor | Value):
        raise TypeMismatch("weft.ragged: expected a list of tensors, got one tensor; its first dimension reduces as it is")
    return Ragged(items, like)


def _scaled(nest: Any, weight: Any) -> Any:
    leaves: list[Any] = []
    structure = flatten(nest, leaves)
    return build(structure, iter([weight * leaf for leaf in leaves]))


_WITH_TORCH: dict[str, Callable[..., Any]] = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}


def _reduce(how: str, column: list[Any]) -> Any:
    first = next((leaf for leaf in column if leaf.__class__ is Value and not leaf._tape.is_over()), None)
    plain = first is not None and all(leaf.__class__ is Value and leaf._kind is first._kind for leaf in column)
    if first is None or not plain or not first.is_floating_point():
        return _WITH_TORCH[how](torch.stack(column), 0)
    return reduce_values(first._tape, how, column, _getframe(2))
