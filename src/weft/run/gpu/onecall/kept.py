"""What a forward pass keeps for its backward pass: one piece of memory. Tensors are made of it only where somebody asks.

A backward pass that is one call wants addresses and numbers of rows, and to make a tensor of each part takes Python longer than
to launch a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

Views = Callable[[Tensor, tuple[int, ...], tuple[int, ...]], tuple[Tensor, ...]]


class Kept:
    """Parts of one piece of memory: from which element on each lies there, and how many rows it has."""

    __slots__ = ("memory", "offsets", "rows", "views")

    def __init__(self, memory: Tensor, offsets: tuple[int, ...], rows: tuple[int, ...], views: Views) -> None:
        self.memory, self.offsets, self.rows, self.views = memory, offsets, rows, views

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.views(self.memory, self.offsets, self.rows))

    def __len__(self) -> int:
        return len(self.offsets)
