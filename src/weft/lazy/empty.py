"""What an empty batch gives: known once a batch of the same signature was run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from weft.errors import StructureError
from weft.lazy.arguments import Argument
from weft.lazy.gradients import parameters_of
from weft.lazy.nests import Structure, build
from weft.lazy.state import State
from weft.lazy.value import Value


class Signature(NamedTuple):
    """What decides the shapes and dtypes of results, as far as an empty batch shows it."""

    settings: tuple[Hashable, ...]
    stack: bool
    rows: Hashable = None
    """What one example is, argument by argument; None stands for anything."""


MOST_KEPT = 64
"""For so many kinds of examples it is kept what came out."""


def signature(fn: Any, stack: bool, items: Sequence[Argument] | None) -> Signature:
    """The signature of a call; without arguments it is that of any call."""
    holder = getattr(fn, "__self__", fn)
    first = next(parameters_of([holder]), None) if isinstance(holder, nn.Module) else None
    settings = ("empty", None if first is None else first.dtype, torch.get_default_dtype())
    return Signature(settings, stack, None if items is None else tuple(item.row() for item in items))


def remember(state: State, key: Signature, structure: Structure, result: Any) -> None:
    """Keep what a batch gave; `structure` is that of one example. What was kept last comes last."""
    store: dict[Hashable, Any] = state.kept.setdefault(key.settings, {})
    known = store.pop(key.rows, None)
    leaves: list[Any] = []
    _leaves_of(structure, result, leaves)
    looks = [_look(leaf) for leaf in leaves]
    if known is None or known[:2] != (structure, looks):  # gradients are asked for once: the answer may take a while
        known = (structure, looks, [isinstance(leaf, Tensor | Value) and leaf.requires_grad for leaf in leaves])
    store[key.rows] = known
    if len(store) > MOST_KEPT:
        store.pop(next(iter(store)), None)


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


def empty(state: State, key: Signature, device: str) -> Any:
    """The result of no examples: as that of the last batch whose examples may have been such as these would be."""
    if not key.stack:
        return []
    store: dict[Hashable, Any] = state.kept.get(key.settings, {})
    fitting = [known for rows, known in list(store.items()) if _fits(rows, key.rows)]
    if not fitting:
        raise StructureError("an empty batch: what comes out is not known before a batch with examples was run")
    structure, looks, trained = store.get(key.rows, fitting[-1])
    return build(structure, iter(map(_made, looks, trained, repeat(device))))


def _fits(one: Any, other: Any) -> bool:
    """Whether two rows may be the same, as far as they are known: those of an empty list are not, nor are shared arguments."""
    if one is None or other is None or one == other:
        return True
    are_nests = isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other)
    return are_nests and all(map(_fits, one, other))


def _made(look: Any, is_trained: bool, device: str) -> Any:
    if look is None:
        return None
    if look is list:
        return []
    shape, dtype = look
    return torch.zeros((0, *shape), dtype=dtype, device=device, requires_grad=is_trained and torch.is_grad_enabled())
