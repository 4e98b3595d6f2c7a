"""Index arrays on a device: all that a call needs in one pinned buffer and one copy, which the host does not wait for."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from weft.graph.program import Ints
from weft.plan.library import address
from weft.run.gpu.launch import allocator, current_stream, is_gpu
from weft.run.gpu.pinned import SIZE, Part, ring

ALIGNED = 4
"""Blocks start at multiples of so many integers: 16 bytes."""


def as_tensor(array: np.ndarray, device: torch.device) -> Tensor:
    """One array by itself."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)


def has_own_memory(device: torch.device) -> bool:
    """Whether what a device reads must be copied to it."""
    return is_gpu(device)


class Uploaded:
    """Integers on a device, in one piece of memory: blocks of arrays, in which the arrays are found by their addresses."""

    def __init__(self, blocks: Sequence[tuple[int, int]], device: torch.device) -> None:
        """`blocks`: the address of each, and how many integers it has. The plan that they are part of is there for longer."""
        self.parts: list[Part] = []
        total = 0
        for at, count in blocks:
            self.parts.append((at, 4 * count, total))
            total += -(-count // ALIGNED) * 4 * ALIGNED
        self.memory = self._sent(total, device) if is_gpu(device) else self._copied(total, device)
        start = self.memory.data_ptr()
        self.places = [start + into for _, _, into in self.parts]
        """Where each block begins, on the device."""

    def _sent(self, total: int, device: torch.device) -> Tensor:
        """Through pinned memory that is there."""
        there = ring(device) if total <= SIZE else None
        if there is None:
            return self._copied(total, device)
        memory = allocator(device)((total // 4,), (1,), torch.int32)
        there.send(self.parts, memory.data_ptr(), total, current_stream(device))
        return memory

    def _copied(self, total: int, device: torch.device) -> Tensor:
        """Through pinned memory that torch keeps."""
        pinned = torch.empty(total // 4, dtype=torch.int32, device="cpu", pin_memory=is_gpu(device))
        for at, count, into in self.parts:
            ctypes.memmove(pinned.data_ptr() + into, at, count)
        return pinned.to(device, non_blocking=True)

    def tensor(self, array: Ints) -> Tensor | None:
        """An array that lies in one of the blocks."""
        at = address(array)
        for first, count, into in self.parts:
            if first <= at < first + count:
                return self.memory.narrow(0, (into + at - first) // 4, array.size)
        return None
