"""Columns: for each argument of a per-step piece, what it is in every step. Made a block of steps at a time.

A step's arguments are views of tensors over all rows. A chain of 100,000 vertices has as many steps, so views are made for a
block of steps, used and dropped; making a block's views of one tensor is a single call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol

from torch import Tensor

BLOCK = 512


class Cuts:
    """Sizes of consecutive pieces, and where each starts."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.offsets = [0, *accumulate(sizes)]

    @cached_property
    def narrow(self) -> int:
        """How many pieces are neither almost nothing nor large."""
        return sum(6 < size <= 150 for size in self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)


class Column(Protocol):
    """Gives one item for each of the steps `first` to `last`."""

    def block(self, first: int, last: int) -> Sequence[Any]: ...


class Cut:
    """A tensor cut into the rows of the steps; `times` rows of it belong to one row of a step."""

    def __init__(self, tensor: Tensor, cuts: Cuts, times: int = 1, dim: int = 0) -> None:
        self.tensor, self.cuts, self.times, self.dim = tensor, cuts, times, dim

    def block(self, first: int, last: int) -> Sequence[Tensor]:
        sizes, offsets = self.cuts.sizes, self.cuts.offsets
        tensor, times = self.tensor, self.times
        if last - first != len(sizes):
            sizes = sizes[first:last]
            tensor = tensor.narrow(self.dim, offsets[first] * times, (offsets[last] - offsets[first]) * times)
        if times != 1:
            sizes = [size * times for size in sizes]
        return tensor.split_with_sizes(sizes, self.dim)


class Addresses:
    """Where in memory each step's rows of a contiguous tensor begin: what a kernel needs to know, and cheaper than a view."""

    def __init__(self, tensor: Tensor, starts: Sequence[int]) -> None:
        self.tensor, self.starts = tensor, starts
        self.apart = tensor.stride(0) * tensor.element_size() if tensor.dim() else tensor.element_size()

    def block(self, first: int, last: int) -> Sequence[int]:
        base, apart = self.tensor.data_ptr(), self.apart
        return [base + start * apart for start in self.starts[first:last]]


class Address:
    """Where a contiguous tensor begins, for every step."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def block(self, first: int, last: int) -> Sequence[int]:
        return [self.tensor.data_ptr()] * (last - first)


class Same:
    """The same item in every step."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def block(self, first: int, last: int) -> Sequence[Any]:
        return [self.item] * (last - first)


class Listed:
    """Items from a list."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def block(self, first: int, last: int) -> Sequence[Any]:
        return self.items if last - first == len(self.items) else self.items[first:last]


def blocks(steps: int) -> Iterator[tuple[int, int]]:
    for first in range(0, steps, BLOCK):
        yield first, min(first + BLOCK, steps)
