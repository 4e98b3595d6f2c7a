"""Index arrays on a device: all that a call needs in one pinned buffer and one copy, which the host does not wait for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from weft.graph.program import Ints
from weft.plan.library import address
from weft.run.gpu.launch import allocator, current_stream
from weft.run.gpu.pinned import SIZE, ring

ALIGNED = 4
"""Blocks start at multiples of so many integers: 16 bytes."""


def as_tensor(array: np.ndarray, device: torch.device) -> Tensor:
    """One array by itself."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)


def has_own_memory(device: torch.device) -> bool:
    """Whether what a device reads must be copied to it."""
    return device.type == "cuda"


class Uploaded:
    """Integers on a device, in one piece of memory: blocks of arrays, in which the arrays are found by their addresses."""

    def __init__(self, blocks: Sequence[Ints], device: torch.device) -> None:
        self.blocks = blocks
        self.spans: list[tuple[int, int, int]] = []
        total = 0
        for block in blocks:
            at = address(block)
            self.spans.append((at, at + 4 * block.size, total))
            total += -(-block.size // ALIGNED) * ALIGNED
        self.memory = self._sent(total, device) if device.type == "cuda" else self._copied(total, device)
        start = self.memory.data_ptr()
        self.places = [start + 4 * at for _, _, at in self.spans]
        """Where each block begins, on the device."""

    def _sent(self, total: int, device: torch.device) -> Tensor:
        """Through pinned memory that is there."""
        there = ring(device) if 4 * total <= SIZE else None
        if there is None:
            return self._copied(total, device)
        memory = allocator(device)((total,), (1,), torch.int32)
        parts = [(first, last - first, 4 * at) for first, last, at in self.spans]
        there.send(parts, memory.data_ptr(), 4 * total, current_stream(device))
        return memory

    def _copied(self, total: int, device: torch.device) -> Tensor:
        """Through pinned memory that torch keeps."""
        pinned = torch.empty(total, dtype=torch.int32, device="cpu", pin_memory=device.type == "cuda")
        into = pinned.numpy()
        for block, (_, _, at) in zip(self.blocks, self.spans, strict=True):
            into[at : at + block.size] = block.reshape(-1)
        return pinned.to(device, non_blocking=True)

    def tensor(self, array: Ints) -> Tensor | None:
        """An array that lies in one of the blocks."""
        at = address(array)
        for first, last, start in self.spans:
            if first <= at < last:
                return self.memory.narrow(0, start + (at - first) // 4, array.size)
        return None
