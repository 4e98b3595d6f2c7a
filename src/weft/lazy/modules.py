"""Calls of modules while recording: a layer of `torch.nn`, or a module marked as a cell, is one call and does not run."""

from __future__ import annotations

from collections.abc import Callable
from sys import _getframe
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from weft.errors import TraceError
from weft.graph.hooks import has_backward_hooks, hooked
from weft.lazy.blame import CELL
from weft.lazy.calls import BY_IDENTITY, feed, finish, is_of_many_sizes, looked_up, new_entry, realised
from weft.lazy.constants import Constant
from weft.lazy.identity import Frozen, closed_over, frozen, identity
from weft.lazy.kinds import kind_of
from weft.lazy.ops import RENORMALISES
from weft.lazy.quick import Quick, quick_call, remember, short
from weft.lazy.recurrent import is_recurrent, recurrent
from weft.lazy.stackrules import is_long
from weft.lazy.state import Entry
from weft.lazy.tape import Tape, active
from weft.lazy.value import MISS, STEP, Value

BATCHES = "_weft_batches"
"""The attribute of classes of modules that run by the engine themselves."""

CALL: Callable[..., Any] = nn.Module._call_impl


def _call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """What a call does where nothing is recorded; of `module.compile()` nobody else knows while something is."""
    compiled = module.__dict__.get("_compiled_call_impl")
    return CALL(module, *args, **kwargs) if compiled is None else compiled(*args, **kwargs)


def recorded_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """In the place of `nn.Module._call_impl`: the user's code called `__call__`, one frame above."""
    tape = active.tape
    if tape is None:
        return _call(self, *args, **kwargs)
    if self in tape.ones and not kwargs:
        frame = _getframe(2)
        count = len(args)
        if count == 1:
            first = args[0]
            cls = first.__class__
            if cls is Value:
                entry = tape.fast.get((self, self.training, first._kind, id(frame.f_code), frame.f_lasti))
                if entry is not None and first._tape is tape:
                    ref = tape.next
                    tape.next = ref + STEP
                    tape.type.append(entry[0])
                    tape.arguments.append(first._ref)
                    return tape.make(tape, ref, entry[1])
            elif cls is Constant:
                entry = tape.fast.get((self, self.training, Constant, first._kind, id(frame.f_code), frame.f_lasti))
                if entry is not None:
                    ref = tape.next
                    tape.next = ref + STEP
                    tape.type.append(entry[0])
                    tape.data[entry[0]].append(first._known)
                    return tape.make(tape, ref, entry[1])
            elif cls is Tensor and not tape.has_shaped:
                return _called_on_data(tape, self, first, frame)
        elif count == 2:
            first, second = args
            if first.__class__ is Value and second.__class__ is Value and first._tape is tape and second._tape is tape:
                found = tape.quick.get((self, self.training, first._kind, second._kind, id(frame.f_code), frame.f_lasti))
                if found is not None:
                    return quick_call(tape, found, (first._ref, second._ref), ())
        found = short(tape, self, (self.training, *args), frame)
        if found is not MISS:
            return found
    return called_module(tape, self, args, kwargs, _getframe(2))


def _called_on_data(tape: Tape, module: nn.Module, tensor: Tensor, frame: FrameType) -> Any:
    """A call with a tensor that is no value; the short way, if the module was called with one of its kind there before."""
    with torch._C.DisableTorchFunction():  # our own mode would see every attribute that is read here
        kind = kind_of(tensor.shape, tensor.dtype)
        entry = tape.fast.get((module, module.training, Tensor, kind, id(frame.f_code), frame.f_lasti))
        if entry is not None and tape.state.place_of(tensor) is None:
            feeds: list[Any] = []
            feed(tape, tensor, [], feeds)
            return tape.make(tape, tape.emitted(entry[0], [], feeds), entry[1])
    return called_module(tape, module, (tensor,), {}, frame)


def called_module(tape: Tape, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    """Record the call as one, or let the module run and record what it does."""
    if module in tape.others:
        return _call(module, *args, **kwargs)
    if getattr(type(module), BATCHES, False):
        return _called_alone(tape, module, args, kwargs)
    if is_recurrent(module, args, kwargs) and not _carries_hooks(module):
        return recurrent(tape, module, args, kwargs, frame)
    if not _is_one_call(tape, module):
        tape.ones.pop(module, None)
        if not isinstance(module, nn.Sequential) and not _is_of_torch(module) and "_compiled_call_impl" not in module.__dict__:
            tape.others[module] = True
        return _call(module, *args, **kwargs)
    tape.ones[module] = True
    if len(args) == 1 and not kwargs and is_long(args[0]) and args[0].ndim > 1 and _is_by_row(module):
        return args[0].mapped(module)
    return record_owned(tape, module, args, kwargs, frame, module)


def _called_alone(tape: Tape, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A network of another front end batches by itself; to the recording what it gives are tensors like any others."""
    if any(isinstance(leaf, Value) for leaf in tree_leaves((args, kwargs))):
        raise TraceError(
            f"{type(module).__name__} batches its own work, and insists on real tensors; pass weft.value(v), which waits for "
            "them, or call it outside of the batched function"
        )
    if tape.keeper:
        raise TraceError(
            f"{tape.keeper}: {type(module).__name__} batches its own work, and what it gives now would be kept; call it "
            f"outside of the batched function, or call without {tape.keeper.strip('=')}"
        )
    with tape.pause():
        return _call(module, *args, **kwargs)


def record_owned(
    tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType, module: nn.Module | None
) -> Any:
    """Record a call of a module or a cell: one call, whatever happens inside."""
    head = func if module is not None else identity(func)
    values = () if head is func else closed_over(func)
    if values:
        args = (values, *args)
    if not kwargs and module is None:
        found = short(tape, head, args, frame)
        if found is not MISS:
            return found
    called = [BY_IDENTITY, id(func) if head is func else head, module is not None and module.training]
    before = len(tape.fed)
    key, refs, feeds, place = looked_up(tape, called, args, kwargs, frame)
    if tape.has_shaped and module is not None and is_of_many_sizes(tape, id(module), refs, feeds, place):
        del tape.fed[before:]
        given, keywords = realised((args, kwargs), tape.copy)
        with tape.pause():
            return _call(module, *given, **keywords)
    entry = tape.calls.get((*key, *place))
    if entry is None:
        if module is not None:
            _check_pure(module)
        name = type(func).__name__ if module is not None else getattr(func, "__qualname__", type(func).__name__)
        func = func if head is func else Frozen(func) if values else frozen(func)
        owners = (_NOBODY, func)
        entry = new_entry(tape, func, args, kwargs, key, place, tape.site(frame), name, owners, is_cell=True)
        _, refs, feeds, _ = looked_up(tape, called[:3], args, kwargs, frame)  # what is pending may have run to find it
    if not kwargs:
        if module is None:
            remember(tape, head, args, frame, entry)
        else:
            _remember(tape, module, args, frame, entry)
    return finish(tape, entry, refs, feeds)


def _remember(tape: Tape, module: nn.Module, args: tuple[Any, ...], frame: FrameType, entry: Entry) -> None:
    if tape.watchful:
        return
    remember(tape, module, (module.training, *args), frame, entry)
    place, tables = (id(frame.f_code), frame.f_lasti), tape.tables
    if len(args) == 1 and entry.single is not None:
        if args[0].__class__ is Value:
            tables.fast[(module, module.training, args[0]._kind, *place)] = (entry.number, entry.single)
        elif args[0].__class__ is Constant:
            tables.fast[(module, module.training, Constant, args[0]._kind, *place)] = (entry.number, entry.single)
        elif args[0].__class__ is Tensor and len(entry.op.feeds) == 1:
            kind = entry.op.feeds[0]
            tables.fast[(module, module.training, Tensor, kind, *place)] = (entry.number, entry.single)
    elif len(args) == 2 and args[0].__class__ is Value and args[1].__class__ is Value and entry.op.outs:
        tables.quick[(module, module.training, args[0]._kind, args[1]._kind, *place)] = Quick(entry, ())


def _check_pure(module: nn.Module) -> None:
    """Refuse layers that write into their own tensors when they are called."""
    for path, part in module.named_modules():
        inside = f" in {type(module).__name__}.{path}" if path else ""
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None:
            raise TraceError(f"{type(part).__name__}{inside} with max_norm= {RENORMALISES}")
        if isinstance(part, _KEEPS_STATISTICS) and part.training and part.track_running_stats:
            raise TraceError(
                f"{type(part).__name__}{inside} in training mode changes its running statistics with every example, which "
                "cannot be batched; call .eval() on it, make it with track_running_stats=False, or use LayerNorm or GroupNorm"
            )


_KEEPS_STATISTICS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


class _Nobody(nn.Module):
    """Stands first among the owners: hooks of the first owner count as fired by its caller, which is not so here."""


_NOBODY = _Nobody()


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
    if isinstance(module, torch.jit.ScriptModule):
        raise TraceError(
            f"a scripted module ({module.original_name}) insists on real tensors; put the call into a weft.cell, or use the "
            "module that was scripted"
        )
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        raise TraceError(
            f"{type(module).__name__} has no parameters yet: their shapes come from its first call; call the model once on one "
            "example before it is batched"
        )
    if has_backward_hooks(module):
        return _is_single(module)
    return tape.whole_modules and _is_layer(module) and not _carries_hooks(module)


def _is_single(module: nn.Module) -> bool:
    """With backward hooks a layer's calls are single ones, which run row by row; code of the user's own is marked first."""
    if _is_of_torch(module):
        return True
    raise TraceError(
        f"{type(module).__name__} carries backward hooks, which see the gradients of single calls; put the module into a "
        "weft.cell, which then runs row by row, or register the hooks on what weft.batched gives"
    )


def _is_layer(module: nn.Module) -> bool:
    """A module of torch.nn, all of whose parts are, that holds nothing that hooks could see."""
    return all(
        _is_of_torch(part) and not isinstance(part, _CONTAINERS) and not _carries_hooks(part)
        for part in module.modules()
        if part is not module or not isinstance(part, nn.Sequential)
    )


def _is_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith(_LAYERS)


_LAYERS = ("torch.nn.modules.", "torch.ao.nn.")
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.modules.lazy.LazyModuleMixin)
BY_ROW = (
    nn.Linear,
    nn.Dropout,
    nn.Embedding,
    nn.Tanh,
    nn.Sigmoid,
    nn.ReLU,
    nn.GELU,
    nn.SiLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.Softplus,
)
"""Layers that treat the rows of a stack alike."""
_BY_ROW = frozenset(layer.forward for layer in BY_ROW)


def _is_by_row(module: nn.Module) -> bool:
    own = "forward" in module.__dict__ or type(module).forward not in _BY_ROW  # what a cell's own code does is not known
    return not own and not getattr(module, "scale_grad_by_freq", False)  # which counts over all rows


def _carries_hooks(module: nn.Module) -> bool:
    return hooked((module,)) is not None
