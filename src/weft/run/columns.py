"""Columns: for each argument of a per-step piece, what it is in every step. Made a block of steps at a time.

A step's arguments are views of tensors over all rows. A chain of 100,000 vertices has as many steps, so views are made for a
block of steps, used and dropped; making a block's views of one tensor is a single call.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol

from torch import Tensor

BLOCK = 512


class Numbers(list[int]):
    """A list of numbers that C code can read as well."""

    _packed: array[int] | None = None

    @property
    def address(self) -> int:
        if self._packed is None:
            self._packed = array("q", self)
        return self._packed.buffer_info()[0]


class Cuts:
    """Sizes of consecutive pieces, and where each starts."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = Numbers(sizes)
        self.offsets = Numbers([0, *accumulate(sizes)])

    @cached_property
    def most(self) -> int:
        """The largest piece."""
        return max(self.sizes, default=0)

    @cached_property
    def narrow(self) -> int:
        """How many pieces are neither almost nothing nor large."""
        return sum(6 < size <= 150 for size in self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)


class Column(Protocol):
    """Gives one item for each of the steps `first` to `last`."""

    def block(self, first: int, last: int) -> Sequence[Any]: ...


Line = tuple[int, int, int]
"""A column of numbers for C code: in each step the first number plus the second times what the third, an address, lists."""


class Countable(Column, Protocol):
    """A column of numbers or addresses."""

    def line(self) -> Line: ...


class Cut:
    """A tensor cut into the rows of the steps; `times` rows of it belong to one row of a step."""

    def __init__(self, tensor: Tensor, cuts: Cuts, times: int = 1, dim: int = 0) -> None:
        self.tensor, self.cuts, self.times, self.dim = tensor, cuts, times, dim

    def block(self, first: int, last: int) -> Sequence[Tensor]:
        offsets = self.cuts.offsets
        sizes: list[int] = self.cuts.sizes
        tensor, times = self.tensor, self.times
        if last - first != len(sizes):
            sizes = sizes[first:last]
            tensor = tensor.narrow(self.dim, offsets[first] * times, (offsets[last] - offsets[first]) * times)
        if times != 1:
            sizes = [size * times for size in sizes]
        return tensor.split_with_sizes(sizes, self.dim)


class Addresses:
    """Where in memory each step's rows of a contiguous tensor begin: what a kernel needs to know, and cheaper than a view."""

    def __init__(self, tensor: Tensor, starts: Numbers) -> None:
        self.tensor, self.starts = tensor, starts
        self.apart = tensor.stride(0) * tensor.element_size() if tensor.dim() else tensor.element_size()

    def block(self, first: int, last: int) -> Sequence[int]:
        base, apart = self.tensor.data_ptr(), self.apart
        return [base + start * apart for start in self.starts[first:last]]

    def line(self) -> Line:
        return self.tensor.data_ptr(), self.apart, self.starts.address


class Address:
    """Where a contiguous tensor begins, for every step."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def block(self, first: int, last: int) -> Sequence[int]:
        return [self.tensor.data_ptr()] * (last - first)

    def line(self) -> Line:
        return self.tensor.data_ptr(), 0, 0


class Same:
    """The same item in every step."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def block(self, first: int, last: int) -> Sequence[Any]:
        return [self.item] * (last - first)

    def line(self) -> Line:
        return self.item, 0, 0


class Listed:
    """Items from a list."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def block(self, first: int, last: int) -> Sequence[Any]:
        return self.items if last - first == len(self.items) else self.items[first:last]

    def line(self) -> Line:
        if not isinstance(self.items, Numbers):
            self.items = Numbers(self.items)
        return 0, 1, self.items.address


def blocks(steps: int) -> Iterator[tuple[int, int]]:
    for first in range(0, steps, BLOCK):
        yield first, min(first + BLOCK, steps)
