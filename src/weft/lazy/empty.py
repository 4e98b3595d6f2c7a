"""What an empty batch gives: known once a batch of the same signature was run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import StructureError
from weft.lazy.arguments import Argument
from weft.lazy.gradients import parameters_of
from weft.lazy.nests import Structure, build
from weft.lazy.state import State
from weft.lazy.value import Value


def signature(fn: Any, stack: bool, items: Sequence[Argument]) -> Hashable:
    """What decides the shapes and dtypes of results, as far as an empty batch shows it."""
    holder = getattr(fn, "__self__", fn)
    first = next(parameters_of([holder]), None) if isinstance(holder, nn.Module) else None
    rows = tuple(item.row() for item in items)
    return ("empty", stack, None if first is None else first.dtype, torch.get_default_dtype(), rows)


def remember(state: State, key: Any, structure: Structure, result: Any) -> None:
    """Keep what a batch gave; `structure` is that of one example. Empty lists show no shapes: there the last batch counts."""
    known = state.kept.get(key)
    if known is None or None in key[-1]:
        leaves: list[Any] = []
        _leaves_of(structure, result, leaves)
        looks = [_look(leaf) for leaf in leaves]
        if known is None or known[:2] != (structure, looks):  # gradients are asked for once: the answer may take a while
            state.kept[key] = (structure, looks, [isinstance(leaf, Tensor | Value) and leaf.requires_grad for leaf in leaves])


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


def _look(leaf: Any) -> Any:
    if isinstance(leaf, Tensor | Value):
        return tuple(leaf.shape[1:]), leaf.dtype
    return None if leaf is None else list


def empty(state: State, key: Any, device: str) -> Any:
    """The result of no examples."""
    if not key[1]:
        return []
    if key not in state.kept:
        raise StructureError("an empty batch: what comes out is not known before a batch with examples was run")
    structure, looks, trained = state.kept[key]
    return build(structure, iter(map(_made, looks, trained, repeat(device))))


def _made(look: Any, is_trained: bool, device: str) -> Any:
    if look is None:
        return None
    if look is list:
        return []
    shape, dtype = look
    return torch.zeros((0, *shape), dtype=dtype, device=device, requires_grad=is_trained and torch.is_grad_enabled())
