"""Whether a tensor's numbers are what its memory holds: kernels of weft's own read memory as it is."""

from __future__ import annotations

import torch
from torch import Tensor


def is_as_stored(tensor: Tensor) -> bool:
    """Not so for views that only say that they negate or conjugate, and for torch's zeros without memory."""
    return not (tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor())


def as_stored(tensor: Tensor) -> Tensor:
    """The same numbers, in memory.

    >>> turned = torch.imag(torch.tensor([1 + 2j]).conj())
    >>> is_as_stored(turned), is_as_stored(as_stored(turned)), as_stored(turned)
    (False, True, tensor([-2.]))
    """
    if tensor._is_zerotensor():
        return tensor + torch.zeros_like(tensor)  # with its gradient
    return tensor.resolve_neg().resolve_conj()
