"""An interrupt may come anywhere, in the clean-up of a context manager, too: what it leaves of torch's modes is put back.

    with Undo(), Undo():
        ...

Two, one in the other: what interrupts the clean-up of the inner one leaves that of the outer one to do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import torch
from torch.utils._python_dispatch import _pop_mode as _pop_dispatch_mode

_functorch: Any = torch._C._functorch
P = ParamSpec("P")
R = TypeVar("R")


class Undo:
    """After an error torch's function modes, dispatch modes, layers of vmap, grad mode and autocast are what they were."""

    def __enter__(self) -> None:
        get = torch._C._get_function_stack_at
        self.modes = [get(at) for at in range(torch._C._len_torch_function_stack())]
        self.dispatch_modes: int = torch._C._len_torch_dispatch_stack()
        self.layers = _functorch.get_dynamic_layer_stack_depth()
        self.unrolls = _functorch._is_vmap_fallback_enabled()
        self.grad = torch.is_grad_enabled()
        self.autocast = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in (("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",))
        ]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.put_back()

    def put_back(self) -> None:
        if _functorch.get_dynamic_layer_stack_depth() > self.layers:
            _functorch.pop_dynamic_layer_stack_and_undo_to_depth(self.layers)
        _functorch._set_vmap_fallback_enabled(self.unrolls)
        while torch._C._len_torch_dispatch_stack() > self.dispatch_modes:
            _pop_dispatch_mode()
        self._put_back_function_modes()
        torch._C._set_grad_enabled(self.grad)
        for kind, enabled, dtype in self.autocast:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)

    def _put_back_function_modes(self) -> None:
        get = torch._C._get_function_stack_at
        now = [get(at) for at in range(torch._C._len_torch_function_stack())]
        same = 0
        while same < min(len(now), len(self.modes)) and now[same] is self.modes[same]:
            same += 1
        for _ in now[same:]:
            torch._C._pop_torch_function_stack()
        for mode in self.modes[same:]:
            torch._C._push_on_torch_function_stack(mode)


def undone(function: Callable[P, R]) -> Callable[P, R]:
    """The function; where it fails, torch's modes are as they were before it."""

    @wraps(function)
    def undoing(*args: P.args, **kwargs: P.kwargs) -> R:
        with Undo(), Undo():
            return function(*args, **kwargs)

    return undoing
