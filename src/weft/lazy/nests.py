"""Nests: tuples, lists, dictionaries, named tuples and dataclasses of leaves, taken apart and put together again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

Structure = tuple[Any, ...] | None
"""What a nest looks like without its leaves; None is a leaf. Structures are hashable and compare by what they hold."""


LEAVES: set[type] = {bool, int, float, str, bytes, type(None), Tensor, nn.Parameter}
"""Classes of which it is known that they are leaves; `lazy/value.py` adds its own."""


def flatten(nest: Any, leaves: list[Any]) -> Structure:
    """Append the leaves in order; return the structure.

    >>> leaves = []
    >>> structure = flatten({"a": (1, 2), "b": [3]}, leaves)
    >>> leaves, build(structure, iter(leaves))
    ([1, 2, 3], {'a': (1, 2), 'b': [3]})
    """
    cls = nest.__class__
    if cls in LEAVES:
        leaves.append(nest)
        return None
    if cls is tuple or cls is list:
        if LEAVES.issuperset(map(type, nest)):
            leaves += nest
            return (cls, None, *[None] * len(nest))
        return (cls, None, *[flatten(part, leaves) for part in nest])
    if isinstance(nest, dict):
        return (cls, tuple(nest), *[flatten(part, leaves) for part in nest.values()])
    if (isinstance(nest, tuple) and hasattr(cls, "_make")) or _is_return_type(cls):
        return (cls, None, *[flatten(part, leaves) for part in nest])
    if dataclasses.is_dataclass(cls):
        names = tuple(field.name for field in dataclasses.fields(cls))
        return (cls, names, *[flatten(getattr(nest, name), leaves) for name in names])
    leaves.append(nest)
    return None


def _is_return_type(cls: type) -> bool:
    return cls.__module__ == "torch.return_types"


def build(structure: Structure, leaves: Iterator[Any]) -> Any:
    """The nest of that structure with these leaves."""
    if structure is None:
        return next(leaves)
    cls, names, *inner = structure
    parts = [next(leaves) if part is None else build(part, leaves) for part in inner]
    if cls is list:
        return parts
    if cls is tuple:
        return tuple(parts)
    if issubclass(cls, dict):
        return _dictionary(cls, zip(names, parts, strict=True))
    if names is not None:
        return _dataclass(cls, names, parts)
    return cls._make(parts) if hasattr(cls, "_make") else cls(parts)


def _dictionary(cls: Any, pairs: Any) -> Any:
    """A dictionary of that class, or a plain one where the class cannot be made empty."""
    try:
        made = cls()
    except TypeError:
        made = {}
    made.update(pairs)
    return made


def sorted_structure(structure: Structure) -> Any:
    """The structure whatever the order in which dictionaries got their keys."""
    if structure is None:
        return None
    cls, names, *inner = structure
    parts = [sorted_structure(part) for part in inner]
    if not issubclass(cls, dict):
        return (cls, names, *parts)
    return (cls, *sorted(zip(names, parts, strict=True), key=lambda pair: repr(pair[0])))


def _dataclass(cls: Any, names: tuple[str, ...], parts: list[Any]) -> Any:
    """A dataclass with these fields, whatever its constructor asks for."""
    made = object.__new__(cls)
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(made, name, part)
    return made


def paths(structure: Structure, start: str = "") -> Iterator[str]:
    """How each leaf is reached, as Python would write it.

    >>> list(paths(flatten({"a": (1, 2)}, [])))
    ["['a'][0]", "['a'][1]"]
    """
    if structure is None:
        yield start
        return
    cls, names, *inner = structure
    for number, part in enumerate(inner):
        if names is None:
            yield from paths(part, f"{start}[{number}]")
        elif issubclass(cls, dict):
            yield from paths(part, f"{start}[{names[number]!r}]")
        else:
            yield from paths(part, f"{start}.{names[number]}")
