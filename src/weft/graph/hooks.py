"""Hooks of modules: forward ones fire once per batch where their cell is batched as it is, backward ones need single calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

_all: Any = nn.modules.module


def hooked(modules: Iterable[nn.Module]) -> nn.Module | None:
    """The first module that carries forward or backward hooks."""
    of_all = for_all_modules()
    for module in modules:
        if of_all or module._forward_hooks or module._forward_pre_hooks or has_backward_hooks(module):
            return module
    return None


def for_all_modules() -> bool:
    """Whether there are hooks of every module, as `torch.nn.modules.module.register_module_forward_hook` makes them.

    Torch's own only tell where it is: those of `FlopCounterMode`, which counts operations as they come.
    """
    if not _all._has_any_global_hook():
        return False
    every = (
        _all._global_forward_pre_hooks,
        _all._global_forward_hooks,
        _all._global_backward_pre_hooks,
        _all._global_backward_hooks,
    )
    hooks = [hook for one in every for hook in one.values()]
    return not all(str(getattr(hook, "__module__", "")).startswith("torch.") for hook in hooks)


def has_backward_hooks(module: nn.Module) -> bool:
    """Whether a module carries hooks that see, and may change, the gradients of each of its calls."""
    of_all = _all._global_backward_hooks or _all._global_backward_pre_hooks
    return bool(module._backward_hooks or module._backward_pre_hooks or of_all)
