"""Strided access as the derivative of writing into a slice traces it, on tensors that are themselves parts of larger ones."""

from __future__ import annotations

import torch
from torch import Tensor


def strided(tensor: Tensor, size: list[int], stride: list[int], offset: int | None = None) -> Tensor:
    """`as_strided`, with the offset counted from where the tensor starts and not from where its memory does."""
    tensor = tensor.contiguous()
    return tensor.as_strided(size, stride, tensor.storage_offset() + (offset or 0))


def strided_scatter(tensor: Tensor, src: Tensor, size: list[int], stride: list[int], offset: int | None = None) -> Tensor:
    """`as_strided_scatter`, counted likewise."""
    fresh = tensor.clone(memory_format=torch.contiguous_format)
    return torch.as_strided_scatter(fresh, src, size, stride, offset or 0)
