"""Index arrays on a device: all that a call needs in one pinned buffer and one copy, which the host does not wait for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from weft.graph.program import Ints
from weft.plan.library import address

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
        sizes = [-(-block.size // ALIGNED) * ALIGNED for block in blocks]
        pinned = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
        into, start = pinned.numpy(), 0
        self.spans: list[tuple[int, int, int]] = []
        for block, size in zip(blocks, sizes, strict=True):
            into[start : start + block.size] = block.reshape(-1)
            self.spans.append((address(block), address(block) + 4 * block.size, start))
            start += size
        self.memory = pinned.to(device, non_blocking=True)
        self.places = [self.memory.data_ptr() + 4 * start for _, _, start in self.spans]
        """Where each block begins, on the device."""

    def tensor(self, array: Ints) -> Tensor | None:
        """An array that lies in one of the blocks."""
        at = address(array)
        for first, last, start in self.spans:
            if first <= at < last:
                return self.memory.narrow(0, start + (at - first) // 4, array.size)
        return None
