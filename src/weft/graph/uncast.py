"""Rows put together, whatever autocast is on: it has no say in what only moves numbers, and knows not every dtype."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

_AS_EVER = nullcontext()


def uncast(kind: str) -> Any:
    """A context without autocast on this kind of device."""
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else _AS_EVER


def cat(parts: list[Tensor]) -> Tensor:
    """The rows of several tensors of one dtype, one after the other.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     cat([torch.zeros(1).half(), torch.ones(1).half()])
    tensor([0., 1.], dtype=torch.float16)
    """
    with uncast(parts[0].device.type):
        return torch.cat(parts)


def stack(rows: list[Tensor]) -> Tensor:
    """Tensors of one shape and dtype as the rows of one.

    >>> stack([torch.zeros(2), torch.ones(2)])
    tensor([[0., 0.],
            [1., 1.]])
    """
    with uncast(rows[0].device.type):
        return torch.stack(rows)
