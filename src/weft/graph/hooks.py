"""Hooks of modules: forward ones fire once per batch where their cell is batched as it is, backward ones need single calls."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
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


def kind_of_hooks(modules: Sequence[nn.Module]) -> str | None:
    """What calls of these modules need: "backward" hooks single ones, "forward" ones that the code runs as it is."""
    if hooked(modules) is None:
        return None
    return "backward" if any(map(has_backward_hooks, modules)) else "forward"


_FORWARD = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_ALL = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks")


class unhooked:
    """Code that is only looked at, or tried, calls no hooks: they are for those who run it."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        places = [(module.__dict__, name) for module in modules for name in _FORWARD]
        places += [(_all.__dict__, name) for name in _OF_ALL]
        self.before = [(where, name, where[name]) for where, name in places if where.get(name)]

    def __enter__(self) -> None:
        for where, name, _ in self.before:
            where[name] = OrderedDict()

    def __exit__(self, *_: object) -> None:
        for where, name, hooks in self.before:
            where[name] = hooks


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
