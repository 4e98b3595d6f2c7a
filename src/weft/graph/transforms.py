"""Whether tensors are those of a transform.

Inside `torch.func.grad`, `torch.vmap` and their kind, in forward-mode differentiation, and where somebody traces (`make_fx`,
`torch.jit.trace`, a `weft.cell` that makes a batched call), tensors stand for more than their memory holds. What is recorded
there could not run later, as one step: code runs as it is written, one example after the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

_C: Any = torch._C
_TRACING = _C._TorchDispatchModeKey.FAKE, _C._TorchDispatchModeKey.PROXY


def is_transformed() -> bool:
    return stands_for_others() or forward_ad._current_level >= 0


def stands_for_others() -> bool:
    """Whether tensors may have no memory: the same without forward mode, where those of no interest are as ever."""
    if _C._are_functorch_transforms_active() or _C._get_tracing_state() is not None:
        return True
    return any(_C._get_dispatch_mode(key) is not None for key in _TRACING)
