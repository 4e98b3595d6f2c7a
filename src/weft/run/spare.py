"""Memory that one pass leaves for the next.

Products before their bias is added, gradients of a sweep: such tensors are seen by nobody outside, and training fills equal
ones at every step. The system takes large freed memory back and hands out fresh pages one by one, which costs more than
filling them; so a few buffers are kept.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

LEAST = 1 << 20
"""Bytes below which fresh memory costs nothing."""
MOST = 1 << 26
"""Bytes that are kept for one cell."""

CPU = torch.device("cpu")

_lock = threading.Lock()


class Spare:
    """Buffers between two uses. Taking one removes it, so that two passes at once never share memory."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []

    def take(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
        """Memory with unknown contents."""
        needed = math.prod(shape) * dtype.itemsize
        if device.type != "cpu" or not LEAST <= needed <= MOST:
            return torch.empty(shape, dtype=dtype, device=device)
        buffer = self._fitting(needed)
        if buffer is None:
            buffer = torch.empty(needed + needed // 8, dtype=torch.uint8)  # the next batch may be somewhat larger
        return buffer[:needed].view(dtype).view(shape)

    def _fitting(self, needed: int) -> Tensor | None:
        with _lock:
            sizes = [buffer.numel() for buffer in self._buffers]
            fitting = [(size, at) for at, size in enumerate(sizes) if needed <= size <= 2 * needed]
            return self._buffers.pop(min(fitting)[1]) if fitting else None

    def give_back(self, taken: Iterable[Tensor], in_use: Iterable[Tensor]) -> None:
        """Keep what was taken, unless its memory is also that of something in use."""
        busy = {tensor.untyped_storage().data_ptr() for tensor in in_use}
        with _lock:
            for tensor in taken:
                storage = tensor.untyped_storage()
                if tensor.device.type == "cpu" and storage.nbytes() >= LEAST and storage.data_ptr() not in busy:
                    self._buffers.append(torch.empty(0, dtype=torch.uint8).set_(storage))
            while sum(buffer.numel() for buffer in self._buffers) > MOST:
                self._buffers.pop(0)
