"""Calls of modules while recording: a layer of `torch.nn`, or a module marked as a cell, is one call and does not run.

For as long as some thread records, `nn.Module.__call__` asks first whether this thread does. The same holds for
`torch.autograd.Function.apply`, which would silently lose its backward on values, and for `torch.autocast`, whose state decides
what a call means.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from sys import _getframe
from types import FrameType
from typing import Any

import torch
from torch import nn

from weft.errors import TraceError
from weft.lazy.calls import BY_IDENTITY, finish, new_entry, walk, walk_keywords
from weft.lazy.constants import Constant
from weft.lazy.stacks import Stacked
from weft.lazy.tape import Tape, active
from weft.lazy.value import STEP, Value
from weft.lazy.views import check_current

CELL = "_weft_cell"
"""The attribute of modules and classes that `weft.cell` marked."""

_call = nn.Module.__call__


def _recorded_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    tape = active.tape
    if tape is None:
        return _call(self, *args, **kwargs)
    table = tape.modules.get(self)
    if table is not None and not kwargs:
        frame = _getframe(1)
        count = len(args)
        if count == 1:
            first = args[0]
            entry = table.get((first._kind if first.__class__ is Value else first.__class__, id(frame.f_code), frame.f_lasti))
            if entry is not None and self.training is entry[2]:
                if first.__class__ is Value:
                    if first._ref >= tape.floor and first._tape is tape:
                        ref = tape.next
                        tape.next = ref + STEP
                        tape.type.append(entry[0])
                        tape.arguments.append(first._ref)
                        return tape.make(tape, ref, entry[1])
                elif first._kind is entry[3]:
                    ref = tape.next
                    tape.next = ref + STEP
                    tape.type.append(entry[0])
                    tape.data[entry[0]].append(first.number)
                    return tape.make(tape, ref, entry[1])
        elif count == 2:
            first, second = args
            if first.__class__ is Value and second.__class__ is Value:
                entry = table.get((first._kind, second._kind, id(frame.f_code), frame.f_lasti))
                if entry is not None and self.training is entry[2] and first._ref >= tape.floor and second._ref >= tape.floor:
                    ref = tape.next
                    tape.next = ref + STEP
                    tape.type.append(entry[0])
                    tape.arguments += (first._ref, second._ref)
                    return tape.make(tape, ref, entry[1])
    return called_module(tape, self, args, kwargs, _getframe(1))


def called_module(tape: Tape, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    """Record the call as one, or let the module run and record what it does."""
    if module not in tape.modules and not _is_one_call(tape, module):
        return _call(module, *args, **kwargs)
    if _carries_hooks(module) and not is_marked(module):
        return _call(module, *args, **kwargs)
    if isinstance(module, BY_ROW) and len(args) == 1 and not kwargs and isinstance(args[0], Stacked) and args[0].ndim > 1:
        return args[0]._each(module)
    return record_owned(tape, module, args, kwargs, frame, module)


def record_owned(
    tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType, module: nn.Module | None
) -> Any:
    """Record a call of a module or a cell: one call, whatever happens inside."""
    key: list[Any] = [BY_IDENTITY, id(func), module is not None and module.training]
    refs: list[int] = []
    feeds: list[Any] = []
    walk(tape, args, key, refs, feeds)
    if kwargs:
        walk_keywords(tape, kwargs, key, refs, feeds)
    if tape.watchful:
        check_current(tape, refs)
    place = (id(frame.f_code), frame.f_lasti) if tape.sites else (0, 0)
    entry = tape.calls.get((*key, *place))
    if entry is None:
        name = type(func).__name__ if module is not None else getattr(func, "__qualname__", type(func).__name__)
        owners = (_Nobody(), func) if module is not None else (func,)
        entry = new_entry(tape, func, args, kwargs, key, place, name, owners, is_cell=True)
    if module is not None and entry.single is not None and not kwargs and not tape.watchful:
        _remember(tape, module, args, entry, frame)
    return finish(tape, entry, refs, feeds)


class _Nobody(nn.Module):
    """Stands first among the owners: hooks of the first owner count as fired by its caller, which is not so here."""


def _remember(tape: Tape, module: nn.Module, args: tuple[Any, ...], entry: Any, frame: FrameType) -> None:
    table = tape.modules.setdefault(module, {})
    place = (id(frame.f_code), frame.f_lasti)
    found = (entry.number, entry.single, module.training)
    if all(item.__class__ is Value for item in args):
        table[*(item._kind for item in args), *place] = found
    elif len(args) == 1 and args[0].__class__ is Constant:
        table[Constant, *place] = (*found, args[0]._kind)


def is_marked(module: nn.Module) -> bool:
    return getattr(module, CELL, False) is True


def _is_one_call(tape: Tape, module: nn.Module) -> bool:
    if is_marked(module):
        return True
    if isinstance(module, torch._dynamo.OptimizedModule):
        raise TraceError(
            f"a compiled module ({type(module._orig_mod).__name__}) insists on real tensors; put the call into a weft.cell, or "
            "use the module that was compiled"
        )
    return tape.whole_modules and _is_layer(module)


def _is_layer(module: nn.Module) -> bool:
    """A module of torch.nn, all of whose parts are, that holds nothing that hooks could see."""
    return all(
        type(part).__module__.startswith(_LAYERS) and not isinstance(part, _CONTAINERS) and not _carries_hooks(part)
        for part in module.modules()
        if part is not module or not isinstance(part, nn.Sequential)
    )


_LAYERS = ("torch.nn.modules.", "torch.ao.nn.")
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.modules.lazy.LazyModuleMixin)
BY_ROW = (nn.Linear, nn.Dropout, nn.Embedding, nn.Tanh, nn.Sigmoid, nn.ReLU, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.ELU, nn.Softplus)
"""Layers that treat the rows of a stack alike."""


def _carries_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)


_apply = torch.autograd.Function.__dict__["apply"]


def _checked_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    if active.tape is not None and any(isinstance(item, Value) for item in (*args, *kwargs.values())):
        raise TraceError(
            f"autograd.Function {cls.__name__} on a Value would lose its backward; put the call into a weft.cell, which runs on "
            "real tensors"
        )
    return _apply.__get__(None, cls)(*args, **kwargs)


_enter, _exit = torch.autocast.__enter__, torch.autocast.__exit__


def _entered(self: Any) -> Any:
    found = _enter(self)  # type: ignore[no-untyped-call]
    if active.tape is not None:
        active.tape.set_context()
    return found


def _exited(self: Any, *error: Any) -> Any:
    found = _exit(self, *error)  # type: ignore[no-untyped-call]
    if active.tape is not None:
        active.tape.set_context()
    return found


_lock = threading.Lock()
_recordings = 0


@contextmanager
def intercepted() -> Iterator[None]:
    """While some recording goes on anywhere, module calls ask whether their thread records."""
    global _recordings
    with _lock:
        _recordings += 1
        if _recordings == 1:
            _patch(_recorded_call, classmethod(_checked_apply), _entered, _exited)
    try:
        yield
    finally:
        with _lock:
            _recordings -= 1
            if not _recordings:
                _patch(_call, _apply, _enter, _exit)


def _patch(call: Any, apply: Any, enter: Any, leave: Any) -> None:
    nn.Module.__call__ = call  # type: ignore[method-assign]
    torch.autograd.Function.apply = apply  # type: ignore[method-assign]
    torch.autocast.__enter__ = enter  # type: ignore[method-assign]
    torch.autocast.__exit__ = leave  # type: ignore[method-assign]
