"""Stand-ins for tensors: which memory, from where on, which sizes and strides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from weft.run.gpu.onecall.numbers import ALIGNED, NotLowered, Size

if TYPE_CHECKING:
    from weft.run.gpu.onecall.record import Recorder

COUNTER = "counter"
"""The name of the memory that belongs to the stream; see `counts`."""


@dataclass(eq=False)
class Storage:
    """Memory by a name: of a tensor that the call is given, of an index array, or fresh."""

    name: str
    dtype: torch.dtype
    count: Size | None = None
    """Elements of fresh memory."""
    sizes: tuple[Size, ...] = ()
    """As which it is first seen."""
    anywhere: bool = False
    """Whether it may start between multiples of 16 bytes."""


@dataclass(eq=False)
class Either(Storage):
    """One block's memory where a number is not negative, else another's."""

    number: Size = 0
    one: Block | None = None
    other: Block | None = None


class Block:
    """A tensor's looks. Everything else that Python would do with a tensor is not lowered."""

    def __init__(
        self, recorder: Recorder, storage: Storage, sizes: Sequence[Size], strides: Sequence[Size], offset: Size = 0
    ) -> None:
        self.recorder, self.storage, self.offset = recorder, storage, offset
        self.shape, self.strides = tuple(sizes), tuple(strides)
        self.dtype = storage.dtype
        self.device = recorder.device

    def __getattr__(self, name: str) -> Any:
        raise NotLowered(f"tensor.{name}")

    # What kernels must know.

    @property
    def aligned(self) -> bool:
        """Whether it starts at a multiple of 16 bytes, whatever the sizes are."""
        if isinstance(self.storage, Either):
            either = self.storage
            assert either.one is not None and either.other is not None
            return either.one.aligned and either.other.aligned and self.offset == 0
        return not self.storage.anywhere and _multiple(self.offset, ALIGNED // self.dtype.itemsize)

    @property
    def contiguous_(self) -> bool:
        return same(self.strides, strides_of(self.shape))

    @property
    def is_whole(self) -> bool:
        """Whether it is all of some fresh memory."""
        return same((self.numel(), self.offset), (self.storage.count or 0, 0))

    def numel(self) -> Size:
        return prod(self.shape)

    # What recipes and pieces do with tensors.

    def dim(self) -> int:
        return len(self.shape)

    def data_ptr(self) -> Pointer:
        return Pointer(self)

    @property
    def repeats(self) -> bool:
        """Whether all rows are one, which lies there once."""
        if not self.strides or type(self.strides[0]) is not int or self.strides[0] != 0:
            return False
        return same(self.strides[1:], strides_of(self.shape[1:]))

    def clone(self) -> Block:
        return self.recorder.copied(self)

    def contiguous(self) -> Block:
        if self.repeats:
            return self.clone()
        if not self.contiguous_:
            raise NotLowered("a copy of strided memory")
        return self

    def to(self, target: Any) -> Block:
        if target != self.device and target is not self.dtype:
            raise NotLowered(f"tensor.to({target})")
        return self

    def expand(self, sizes: Sequence[Size]) -> Block:
        """One row as many of them."""
        row = self.select(0, 0) if self.dim() == len(sizes) and _is_one(self.shape[0]) else self
        if row.dim() != len(sizes) - 1 or not same(row.shape, sizes[1:]):
            raise NotLowered("tensor.expand of other than rows")
        return Block(self.recorder, self.storage, sizes, (0, *row.strides), row.offset)

    def narrow(self, dim: int, start: Size, length: Size) -> Block:
        sizes = [length if at == dim else size for at, size in enumerate(self.shape)]
        return Block(self.recorder, self.storage, sizes, self.strides, self.offset + start * self.strides[dim])

    def __getitem__(self, at: Any) -> Block:
        if isinstance(at, slice) and at.start is None and at.step is None and at.stop is not None:
            return self.narrow(0, 0, at.stop)
        if type(at) is int and at == -1:
            last = self.narrow(0, self.shape[0] - 1, 1)
            return last.select(0, 0)
        raise NotLowered("tensor[...]")

    def view(self, *shape: Any) -> Block:
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
        if any(type(size) is int and size < 0 for size in sizes) or not self.contiguous_:
            raise NotLowered("a view whose sizes are to be found")
        return Block(self.recorder, self.storage, sizes, strides_of(sizes), self.offset)

    def reshape(self, *shape: Any) -> Block:
        return self.view(*shape)

    def flatten(self, first: int, last: int) -> Block:
        return self.view(*self.shape[:first], prod(self.shape[first : last + 1]), *self.shape[last + 1 :])

    def select(self, dim: int, at: int) -> Block:
        one = self.narrow(dim, at, 1)
        sizes, strides = [*one.shape], [*one.strides]
        del sizes[dim], strides[dim]
        return Block(self.recorder, self.storage, sizes, strides, one.offset)

    def split_with_sizes(self, sizes: Sequence[int], dim: int) -> list[Block]:
        return [self.narrow(dim, sum(sizes[:at]), size) for at, size in enumerate(sizes)]

    def t(self) -> Block:
        return Block(self.recorder, self.storage, self.shape[::-1], self.strides[::-1], self.offset)

    def detach(self) -> Block:
        raise NotLowered("a result that shares memory with what is kept")

    def index_select(self, dim: int, index: Block) -> Block:
        if dim != 0:
            raise NotLowered("index_select of columns")
        return self.recorder.take(self, index)

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, Block):
            return NotImplemented  # what torch makes at the end knows how
        if not self._looks_like(other):
            raise NotLowered("a sum of two shapes")
        return self.recorder.add(self, other)

    def _looks_like(self, other: Any) -> bool:
        if not isinstance(other, Block) or self.dtype is not other.dtype or self.dim() != other.dim():
            return False
        return all(one == two for one, two in zip(self.shape, other.shape, strict=True))

    def copy_(self, other: Block) -> Block:
        if not self._looks_like(other):
            raise NotLowered("a copy that changes numbers")
        return self.recorder.copy(other, self)

    def zero_(self) -> Block:
        return self.recorder.fill(self)


class Pointer:
    """The address of a block."""

    def __init__(self, block: Block) -> None:
        self.block = block

    def __or__(self, other: Pointer) -> Pointer:
        return self


def _is_one(size: Size) -> bool:
    return type(size) is int and size == 1


def same(some: Sequence[Size], others: Sequence[Size]) -> bool:
    """Whether sizes are the same in every call."""
    return [*map(str, some)] == [*map(str, others)]


def strides_of(sizes: Sequence[Size]) -> tuple[Size, ...]:
    found: list[Size] = []
    apart: Size = 1
    for size in reversed(sizes):
        found.append(apart)
        apart = apart * size
    return tuple(found[::-1])


def _multiple(offset: Size, by: int) -> bool:
    """Whether an offset is a multiple of a number, as far as its text shows: sums of products with constants."""
    if isinstance(offset, int):
        return offset % by == 0
    terms = re.split("[+-]", offset.text.replace("(", " ").replace(")", " "))
    return "FLOOR" not in offset.text and all(_has_factor(term, by) for term in terms if term.strip())


def _has_factor(term: str, by: int) -> bool:
    factors = [int(part) for part in term.split("*") if part.strip().isdigit()]
    return bool(factors) and prod(factors) % by == 0
