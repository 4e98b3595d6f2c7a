"""Hooks of modules: forward ones fire once per batch where their cell is batched as it is, backward ones need single calls."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn


def hooked(modules: Iterable[nn.Module]) -> nn.Module | None:
    """The first module that carries forward or backward hooks."""
    for module in modules:
        if module._forward_hooks or module._forward_pre_hooks or has_backward_hooks(module):
            return module
    return None


def has_backward_hooks(module: nn.Module) -> bool:
    """Whether a module carries hooks that see, and may change, the gradients of each of its calls."""
    return bool(module._backward_hooks or module._backward_pre_hooks)
