"""What an empty batch gives: known once a batch of the same signature was run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import StructureError
from weft.lazy.arguments import Argument
from weft.lazy.nests import Structure, build
from weft.lazy.state import State
from weft.lazy.value import Value


def signature(fn: Any, stack: bool, items: Sequence[Argument]) -> Hashable:
    """What decides the shapes and dtypes of results, as far as an empty batch shows it."""
    holder = getattr(fn, "__self__", fn)
    first = next(holder.parameters(), None) if isinstance(holder, nn.Module) else None
    rows = tuple(item.row() for item in items)
    return ("empty", stack, None if first is None else first.dtype, torch.get_default_dtype(), rows)


def remember(state: State, key: Any, structure: Structure, result: Any) -> None:
    """Keep what a batch gave; `structure` is that of one example. Empty lists show no shapes: there the last batch counts."""
    if None in key[-1] or key not in state.kept:
        leaves: list[Any] = []
        _leaves_of(structure, result, leaves)
        state.kept[key] = (structure, [_kind(leaf) for leaf in leaves])


def _leaves_of(structure: Structure, result: Any, leaves: list[Any]) -> None:
    """The leaves of a batch's result: a list of objects is one."""
    if structure is None:
        leaves.append(result)
        return
    cls, names, *inner = structure
    for at, part in enumerate(inner):
        if names is None:
            _leaves_of(part, result[at], leaves)
        else:
            _leaves_of(part, result[names[at]] if issubclass(cls, dict) else getattr(result, names[at]), leaves)


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, Tensor | Value):
        return (tuple(leaf.shape[1:]), leaf.dtype, leaf.requires_grad)
    return None if leaf is None else list


def empty(state: State, key: Any, device: str) -> Any:
    """The result of no examples."""
    if not key[1]:
        return []
    if key not in state.kept:
        raise StructureError("an empty batch: what comes out is not known before a batch with examples was run")
    structure, kinds = state.kept[key]
    return build(structure, iter([_made(kind, device) for kind in kinds]))


def _made(kind: Any, device: str) -> Any:
    if kind is None:
        return None
    if kind is list:
        return []
    shape, dtype, requires_grad = kind
    return torch.zeros((0, *shape), dtype=dtype, device=device, requires_grad=requires_grad and torch.is_grad_enabled())
