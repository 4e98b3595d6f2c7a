"""Index arrays on a device: all that a call needs in one pinned buffer and one copy, which the host does not wait for."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

ALIGNED = 4
"""Arrays start at multiples of so many integers: 16 bytes."""
_PADDING = [np.zeros(count, dtype=np.int32) for count in range(ALIGNED)]


def as_tensor(array: np.ndarray, device: torch.device) -> Tensor:
    """One array by itself."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)


def upload(arrays: Iterable[np.ndarray], device: torch.device) -> dict[int, Tensor]:
    """Integer arrays as 32-bit tensors, by `id` of the array. The arrays must outlive the use of these numbers."""
    parts: list[np.ndarray] = []
    sizes: list[int] = []
    wanted = {id(array): array for array in arrays}
    for array in wanted.values():
        flat = array if array.ndim == 1 else array.reshape(-1)
        parts += (flat, _PADDING[-flat.size % ALIGNED])
        sizes += (flat.size, -flat.size % ALIGNED)
    pinned = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
    if parts:
        np.concatenate(parts, out=pinned.numpy(), casting="unsafe")
    there = pinned.to(device, non_blocking=True)
    return dict(zip(wanted, there.split_with_sizes(sizes)[::2], strict=True)) if parts else {}
