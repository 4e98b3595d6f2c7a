"""Index arrays on a device: all that a call needs in one pinned buffer and one copy, which the host does not wait for."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

ALIGNED = 4
"""Arrays start at multiples of so many integers: 16 bytes."""


def as_tensor(array: np.ndarray, device: torch.device) -> Tensor:
    """One array by itself."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)


def upload(arrays: Iterable[np.ndarray], device: torch.device) -> dict[int, Tensor]:
    """Integer arrays as 32-bit tensors, by `id` of the array. The arrays must outlive the use of these numbers."""
    wanted = list({id(array): array for array in arrays}.values())
    starts: list[int] = []
    total = 0
    for array in wanted:
        starts.append(total)
        total += -(-array.size // ALIGNED) * ALIGNED
    pinned = torch.empty(total, dtype=torch.int32, pin_memory=device.type == "cuda")
    place = pinned.numpy()
    for start, array in zip(starts, wanted, strict=True):
        place[start : start + array.size] = array.reshape(-1)
    there = pinned.to(device, non_blocking=True)
    return {id(array): there[start : start + array.size] for start, array in zip(starts, wanted, strict=True)}
