"""Memory that one pass leaves for the next.

Products before their bias is added, gradients of a sweep: such tensors are seen by nobody outside, and training fills equal
ones at every step. The system takes large freed memory back and hands out fresh pages one by one, which costs more than
filling them; so a few buffers are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from weft.locks import lock

LEAST = 1 << 20
"""Bytes below which fresh memory costs nothing."""
MOST = 1 << 28
"""Bytes that are kept for one cell."""

CPU = torch.device("cpu")


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Fresh memory."""
    return torch.empty(tuple(shape), dtype=dtype, device=device)


def _laid_out(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(sizes, strides, dtype=dtype, device=CPU)


laid_out: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor]
laid_out = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", _laid_out)
"""Fresh memory of the host, by a way of torch that takes a third of the time."""


_lock = lock()


class Spare:
    """Memory between two uses. Taking some removes it, so that two passes at once never share any.

    Kept is the memory, not the tensors: whether a tensor belongs to inference is its own affair.
    """

    def __init__(self) -> None:
        self._kept: list[torch.UntypedStorage] = []

    def take(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
        """A tensor with unknown contents."""
        needed = math.prod(shape) * dtype.itemsize
        if device.type != "cpu" or not LEAST <= needed <= MOST:
            return empty(shape, dtype, device)
        storage = self._fitting(needed)
        if storage is None:  # the next batch may be somewhat larger
            storage = torch.empty(needed + needed // 8, dtype=torch.uint8).untyped_storage()
        tensor: Tensor = torch.empty(0, dtype=dtype).set_(storage, 0, tuple(shape))  # type: ignore[call-overload]  # it can
        return tensor

    def _fitting(self, needed: int) -> torch.UntypedStorage | None:
        with _lock:
            sizes = [storage.nbytes() for storage in self._kept]
            fitting = [(size, at) for at, size in enumerate(sizes) if needed <= size <= 2 * needed]
            return self._kept.pop(min(fitting)[1]) if fitting else None

    def give_back(self, taken: Iterable[Tensor], in_use: Iterable[Tensor]) -> None:
        """Keep what was taken, unless its memory is also that of something in use."""
        large = [tensor for tensor in taken if tensor.nbytes >= LEAST and tensor.device.type == "cpu"]
        if not large:
            return
        busy = {tensor.untyped_storage().data_ptr() for tensor in in_use}
        with _lock:
            busy |= {storage.data_ptr() for storage in self._kept}
            for tensor in large:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in busy:
                    self._kept.append(storage)
                    busy.add(storage.data_ptr())
            while sum(storage.nbytes() for storage in self._kept) > MOST:
                self._kept.pop(0)
