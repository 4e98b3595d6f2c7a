"""Kinds of values: shape and dtype, one object for each, so that comparing two is comparing identities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.graph.rows import TensorSpec

FEW_SIZES = 6
"""A function of no more sizes than that is one kind of call for each; of more it is better taken otherwise."""


class Kind:
    """Shape and dtype of a value."""

    __slots__ = ("count", "dtype", "shape", "spec")

    def __init__(self, shape: torch.Size, dtype: torch.dtype) -> None:
        self.shape, self.dtype, self.count = shape, dtype, shape.numel()
        self.spec = TensorSpec(tuple(shape), dtype)

    def __reduce__(self) -> Any:
        return kind_of, (tuple(self.shape), self.dtype)

    def __repr__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


_kinds: dict[tuple[tuple[int, ...], torch.dtype], Kind] = {}


def kind_of(shape: Sequence[int], dtype: torch.dtype) -> Kind:
    """The kind of that shape and dtype: always the same object.

    >>> kind_of((3,), torch.float32) is kind_of([3], torch.float32)
    True
    """
    key = (tuple(shape), dtype)
    found = _kinds.get(key)
    if found is None:
        found = _kinds.setdefault(key, Kind(torch.Size(shape), dtype))
    return found
