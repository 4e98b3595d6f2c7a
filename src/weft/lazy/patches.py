"""What of torch asks, for as long as some thread records, whether this thread does.

What `nn.Module.__call__` calls, and `torch.tensor`, which are recorded as one call and as a constant (`__call__` itself stays:
another one would be written into every class of modules there is); `torch.autograd.Function.apply`, which would silently lose
its backward on values; `torch.autocast` and `torch.inference_mode`, whose state decides what a call means;
`torch.distributions`, which looks at the numbers that it is given, and insists on tensors; `nn.TransformerEncoder` and
`nn.TransformerDecoder`, which do the same with a mask; and the helper by which functions of `torch.nn.functional` find our
mode, which takes longer than to record a call.
"""

from __future__ import annotations

import os
import threading
import weakref
from sys import _getframe
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints
from torch.distributions.dirichlet import _Dirichlet
from torch.distributions.utils import lazy_property
from torch.overrides import handle_torch_function

from weft.errors import TraceError
from weft.graph.undo import Undo
from weft.lazy.constants import constant
from weft.lazy.given import tensors_of_known
from weft.lazy.keeping import refuse_reading
from weft.lazy.modules import CALL, recorded_call
from weft.lazy.nests import flatten
from weft.lazy.shortcuts import HANDLED, MODULE, NUMBER, install, shortcut
from weft.lazy.tape import active
from weft.lazy.value import Value
from weft.locks import lock

_apply = torch.autograd.Function.__dict__["apply"]


def dirichlet(concentration: Tensor) -> Tensor:
    """A sample with the implicit gradient of torch.distributions (Figurnov et al. 2018), written without an autograd.Function.

    d sample_j / d concentration_i = slope_i * ((i == j) - sample_j), as what is added below has it, and is zero.
    """
    plain = concentration.detach()
    sample = torch._sample_dirichlet(plain)
    slope = torch._dirichlet_grad(sample, plain, plain.sum(-1, True).expand_as(plain))
    along = slope * (concentration - plain)
    return sample + along - sample * along.sum(-1, True)


def _checked_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    tape = active.tape
    if tape is None or tape.paused:
        return _apply.__get__(None, cls)(*args, **kwargs)
    if cls is _Dirichlet:
        return tape.record(dirichlet, args, kwargs, _getframe(1))
    args, kwargs = tensors_of_known((args, kwargs))
    leaves = _check_no_values(f" {cls.__name__}", (*args, *kwargs.values()))
    refuse_reading(tape, f"{cls.__name__}.apply", leaves)
    with tape.pause(), torch._C.DisableTorchFunction():  # its forward works on real tensors, and keeps its backward
        return _apply.__get__(None, cls)(*args, **kwargs)


def _check_no_values(name: str, args: Any) -> list[Any]:
    leaves: list[Any] = []
    flatten(args, leaves)
    if any(isinstance(item, Value) for item in leaves):
        raise TraceError(
            f"autograd.Function{name} on a Value would lose its backward; put the call into a weft.cell, where there "
            "are real tensors"
        )
    return leaves


_unwrap = torch._functorch.utils.unwrap_dead_wrappers


def _checked_unwrap(args: Any) -> Any:
    """Every `apply` comes by here, also one that was taken from its class before the recording began."""
    tape = active.tape
    if tape is not None and not tape.paused:
        leaves = _check_no_values("", args)
        if any(isinstance(item, Tensor) and tape.state.place_of(item) is not None for item in leaves):
            raise TraceError(
                "apply of an autograd.Function, taken from its class before the recording, on a tensor of the model would lose "
                "its backward; call it as MyFunction.apply(...), or put the call into a weft.cell"
            )
    return _unwrap(args)


_enter, _exit = torch.autocast.__enter__, torch.autocast.__exit__


def _entered(self: Any) -> Any:
    found = _enter(self)  # type: ignore[no-untyped-call]  # torch has no types there
    if active.tape is not None:
        active.tape.set_context()
    return found


def _exited(self: Any, *error: Any) -> Any:
    found = _exit(self, *error)
    if active.tape is not None:
        active.tape.set_context()
    return found


_inference = torch.inference_mode.__enter__, torch.inference_mode.__exit__
_BEFORE = "_weft_grad_before"


def _inference_entered(self: Any) -> None:
    """While recording, code that runs in inference mode records calls without gradients; nothing runs there."""
    if active.tape is None or active.tape.paused:
        _inference[0](self)
        return
    self.__dict__[_BEFORE] = torch.is_grad_enabled()
    if self.mode:
        torch._C._set_grad_enabled(False)


def _inference_exited(self: Any, *error: Any) -> None:
    before = self.__dict__.pop(_BEFORE, None)
    if before is None:
        _inference[1](self, *error)
    else:
        torch._C._set_grad_enabled(before)


_tensor = torch.tensor


def _number(data: Any, *args: Any, **kwargs: Any) -> Any:
    tape = active.tape
    if tape is not None and not args and not kwargs and not tape.paused:
        made = constant(tape, data)
        if made is not None:
            return made
    return _tensor(data, *args, **kwargs)


_validated = Distribution._validate_sample


def _checked_sample(self: Distribution, value: Any) -> None:
    """Values are not looked at."""
    if not isinstance(value, Value):
        _validated(self, value)


_is_symmetric: Any = constraints._Symmetric.check


def _checked_symmetric(self: Any, value: Any) -> Any:
    """The one check that asks for numbers on its way, in tensors that it makes itself."""
    tape = active.tape
    if tape is None or tape.paused:
        return _is_symmetric(self, value)
    with tape.pause():
        return torch.ones(value.shape[:-2]).bool() if isinstance(value, Value) else _is_symmetric(self, value)


_lazy = lazy_property.__get__


def _lazily(self: Any, instance: Any, owner: Any = None) -> Any:
    """In a batched call without gradients there are none here either."""
    tape = active.tape
    if tape is None or tape.paused or tape.ambient_grad or instance is None:
        return _lazy(self, instance, owner)
    found = self.wrapped(instance)
    setattr(instance, self.wrapped.__name__, found)
    return found


_dtype_of_mask, _is_causal = torch.nn.functional._none_or_dtype, torch.nn.modules.transformer._detect_is_causal_mask


def _dtype_of_value(mask: Any) -> Any:
    return mask.dtype if isinstance(mask, Value) else _dtype_of_mask(mask)


def _told_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    """A stack of layers looks whether its mask is the causal one, to take a faster kernel; one that is not known is applied."""
    tape = active.tape
    if tape is not None and not tape.paused and (isinstance(mask, Value) or tape.keeper):
        return is_causal is True
    return _is_causal(mask, is_causal, size)


_swapped = torch.nn.utils.stateless._reparametrize_module


def _not_swapped(*args: Any, **kwargs: Any) -> Any:
    if active.tape is not None and not active.tape.paused:
        raise TraceError(
            "torch.func.functional_call puts other tensors into a module while it runs, and what is recorded runs later; put "
            "the call into a weft.cell"
        )
    return _swapped(*args, **kwargs)


_callback: Any = getattr(torch._dynamo.eval_frame, "_callback_from_stance", None)


def _not_compiled(callback: Any) -> Any:
    """Every compiled function comes by here when it is called."""
    if callable(callback) and active.tape is not None and not active.tape.paused:
        raise TraceError(
            "a compiled function insists on real tensors; put the call into a weft.cell, or use the function that was compiled"
        )
    return _callback(callback)


def _compiled(module: nn.Module, function: Any) -> None:
    module.__dict__["_compiled_call_impl"] = function


_unseen = property({}.get, _compiled)
"""`module.compile()` leaves a function that `__call__` would take; `recorded_call` looks first whether the call is recorded.

Every call of a module asks: nothing is found, in less time than a function of Python takes.
"""

install()
PATCHES: list[tuple[Any, str, Any, Any]] = [
    (nn.Module, "_call_impl", CALL, shortcut(MODULE, None, CALL, recorded_call)),
    (nn.Module, "_compiled_call_impl", nn.Module._compiled_call_impl, _unseen),
    (torch, "tensor", torch.tensor, shortcut(NUMBER, None, None, _number)),
    (torch.nn.functional, "handle_torch_function", handle_torch_function, shortcut(HANDLED, None, None, handle_torch_function)),
    (torch.autograd.Function, "apply", _apply, classmethod(_checked_apply)),
    (torch._functorch.utils, "unwrap_dead_wrappers", _unwrap, _checked_unwrap),
    (torch.autocast, "__enter__", _enter, _entered),
    (torch.autocast, "__exit__", _exit, _exited),
    (torch.inference_mode, "__enter__", _inference[0], _inference_entered),
    (torch.inference_mode, "__exit__", _inference[1], _inference_exited),
    (torch.nn.functional, "_none_or_dtype", _dtype_of_mask, _dtype_of_value),
    (torch.nn.modules.transformer, "_detect_is_causal_mask", _is_causal, _told_causal),
    (torch.nn.utils.stateless, "_reparametrize_module", _swapped, _not_swapped),
    (torch._dynamo.eval_frame, "_callback_from_stance", _callback, _not_compiled),
    (Distribution, "_validate_sample", _validated, _checked_sample),
    (constraints._Symmetric, "check", _is_symmetric, _checked_symmetric),
    (lazy_property, "__get__", _lazy, _lazily),
]
"""Where, under what name, what was there, and what is there while some thread records."""

# Sets of its functions that torch makes when it first needs them, and keeps: with what was there, not with what is exchanged.
torch.utils._device._device_constructors()
torch.overrides.get_ignored_functions()

_lock = lock()


class intercepted:
    """While some recording goes on anywhere, these functions ask whether their thread records."""

    def __enter__(self) -> None:
        self.thread = threading.get_ident()
        with _lock:
            _recordings.add(self)
            for where, name, _, ours in PATCHES:
                setattr(where, name, ours)

    def __exit__(self, *_: object) -> None:
        _end({self})


_recordings: weakref.WeakSet[intercepted] = weakref.WeakSet()
"""Who records now. What an interrupt left behind goes with the frame that held it."""


def _end(over: set[intercepted]) -> None:
    with _lock:
        _recordings.difference_update(over)
        if not _recordings:
            for where, name, theirs, _ in PATCHES:
                setattr(where, name, theirs)


def _of_this_thread() -> set[intercepted]:
    return {each for each in list(_recordings) if each.thread == threading.get_ident()}


def _after_fork() -> None:
    """In a child there are no other threads that could record."""
    _end(set(_recordings) - _of_this_thread())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class UndoRecording(Undo):
    """After an error this thread records, if it does, what it did before, and torch's functions are its own again."""

    def __enter__(self) -> None:
        self.tape, self.before = active.tape, _of_this_thread()
        super().__enter__()

    def put_back(self) -> None:
        super().put_back()
        active.tape = self.tape
        _end(_of_this_thread() - self.before)
