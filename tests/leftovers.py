"""What a call must not leave behind: modes, recordings, exchanged functions, locks."""

from __future__ import annotations

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _pop_mode

from weft.graph.tracing import tracing
from weft.lazy.patches import PATCHES, _end, _recordings
from weft.lazy.tape import active


def left_behind() -> list[str]:
    """What is there that should not be."""
    found = [f"mode {mode}" for mode in _get_current_function_mode_stack()]
    found += ["a recording"] * (active.tape is not None) + ["no gradients"] * (not torch.is_grad_enabled())
    found += ["a dispatch mode"] * torch._C._len_torch_dispatch_stack()
    found += ["a layer of vmap"] * torch._C._functorch.get_dynamic_layer_stack_depth()
    found += ["no unrolling"] * (not torch._C._functorch._is_vmap_fallback_enabled())
    found += [f"{name} exchanged" for where, name, theirs, _ in PATCHES if where.__dict__[name] is not theirs]
    found += ["somebody records"] * len(_recordings) + ["a lock"] * (not tracing.acquire(blocking=False))
    if found[-1:] != ["a lock"]:
        tracing.release()
    return found


def clear_away() -> None:
    """Begin anew, so that what one test left does not fail the others."""
    active.tape = None
    _end(set(_recordings))
    while torch._C._len_torch_function_stack():
        torch._C._pop_torch_function_stack()
    while torch._C._len_torch_dispatch_stack():
        _pop_mode()
    torch.set_grad_enabled(True)
