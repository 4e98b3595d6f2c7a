"""Strided access as the derivative of writing into a slice traces it, on tensors that are themselves parts of larger ones."""

from __future__ import annotations

import torch
from torch import Tensor


def strided(
    tensor: Tensor, size: list[int], stride: list[int], offset: int | None = None, order: tuple[int, ...] | None = None
) -> Tensor:
    """`as_strided`, with the offset counted from where the tensor starts and not from where its memory does.

    `order` says how the dimensions lay in memory where this was traced, outermost first, if not as they are numbered.
    """
    tensor = _laid_out(tensor, order).contiguous()
    return tensor.as_strided(size, stride, tensor.storage_offset() + (offset or 0))


def strided_scatter(
    tensor: Tensor,
    src: Tensor,
    size: list[int],
    stride: list[int],
    offset: int | None = None,
    order: tuple[int, ...] | None = None,
) -> Tensor:
    """`as_strided_scatter`, counted likewise."""
    fresh = _laid_out(tensor, order).clone(memory_format=torch.contiguous_format)
    made = torch.as_strided_scatter(fresh, src, size, stride, offset or 0)
    return made if order is None else made.permute([order.index(dim) for dim in range(len(order))])


def _laid_out(tensor: Tensor, order: tuple[int, ...] | None) -> Tensor:
    return tensor if order is None else tensor.permute(order)


def order_in_memory(strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """The dimensions from the outermost to the innermost in memory; None if that is their own order.

    >>> order_in_memory((4, 2, 1)), order_in_memory((4, 1, 2))
    (None, (0, 2, 1))
    """
    order = tuple(sorted(range(len(strides)), key=lambda dim: -strides[dim]))
    return None if order == tuple(range(len(strides))) else order
