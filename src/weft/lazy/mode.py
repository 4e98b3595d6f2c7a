"""Every torch function that the user's code calls while recording comes through here, with values or without."""

from __future__ import annotations

from collections.abc import Callable
from sys import _getframe
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, handle_torch_function

from weft.errors import TraceError
from weft.lazy.calls import _with_tensors, record
from weft.lazy.changes import run_writing
from weft.lazy.constants import constant
from weft.lazy.inplace import DRAWING
from weft.lazy.keeping import model_tensor, refuse_reading
from weft.lazy.ops import RENORMALISES
from weft.lazy.quick import short
from weft.lazy.stackrules import reduced
from weft.lazy.stacks import stack
from weft.lazy.tape import Tape, active
from weft.lazy.value import ARITHMETIC, COMPARISONS, MISS, REFUSED, STEP, UNARY, Value

HANDLE = handle_torch_function.__code__


class Recording(TorchFunctionMode):
    """Pushed once for a recording; the fibers of its examples never push anything."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tape = self.tape
        frame = _getframe(1)
        if not kwargs:
            count = len(args)
            if count == 1:
                first = args[0]
                if first.__class__ is Value:
                    entry = tape.fast.get((func, first._kind, id(frame.f_code), frame.f_lasti))
                    if entry is not None:
                        ref = tape.next
                        tape.next = ref + STEP
                        tape.type.append(entry[0])
                        tape.arguments.append(first._ref)
                        return tape.make(tape, ref, entry[1])
        if tape.paused:
            return func(*args, **(kwargs or {}))
        if not kwargs and _is_data(tape, args) and _only_computes(func):
            return func(*args)
        if frame.f_code is HANDLE and frame.f_back is not None:
            frame = frame.f_back.f_back or frame.f_back
        if kwargs or len(args) != 1 or func not in SPECIAL:
            head, given = (func, args) if not kwargs else ((func, *kwargs), (*args, *kwargs.values()))
            found = short(tape, head, given, frame)
            if found is not MISS:
                return found
        return called(tape, func, args, kwargs or {}, frame)


def _is_data(tape: Tape, args: tuple[Any, ...]) -> bool:
    """Whether there are tensors and numbers alone, none of them of the model: what is computed of them is data, too."""
    places = tape.state._places
    for item in args:
        cls = item.__class__
        if cls is Tensor:
            if id(item) in places:
                return False
        elif cls is not int and cls is not float and item is not None and cls is not bool:
            return False
    return bool(args) and not tape.records_data


def _only_computes(func: Any) -> bool:
    """Whether a function of tensors gives tensors, always the same, and does nothing else."""
    found = _COMPUTES.get(func)
    if found is None:
        name = _name(func)
        special = func in SPECIAL or func in UNRECORDED or func in FACTORIES or func in LIKE_DATA or func in ARRAYS
        found = _COMPUTES[func] = not (special or _writes(name) or name in RANDOM or name.endswith(DRAWING))
    return found


_COMPUTES: dict[Any, bool] = {}


def called(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    """A torch function is called: record it, or run it now where everything in it is known."""
    special = SPECIAL.get(func)
    if special is not None:
        return special(tape, func, args, kwargs, frame)
    return ordinary(tape, func, args, kwargs, frame)


def ordinary(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    """A function without a rule of its own."""
    if has_values(args) or (kwargs and has_values(kwargs.values())):
        return _called_with_values(tape, func, args, kwargs, frame)
    if tape.keeper:
        _check_kept(tape, func, args, kwargs)
        if func in VIEWS and model_tensor(tape, args) is not None:
            return record(tape, VIEWS[func], args, kwargs, frame)
    if func in UNRECORDED:
        return func(*args, **kwargs)
    if kwargs.get("out") is not None or _writes(_name(func)):
        return run_writing(tape, func, args, kwargs)
    if func in ARRAYS:
        return _array(tape, func, args, kwargs)
    if _tells(_name(func)):
        return func(*args, **kwargs)
    if func in LIKE_DATA and _is_of_floats(func, args, kwargs):
        return record(tape, func, args, kwargs, frame)
    if func in FACTORIES or _name(func) in RANDOM or (_name(func) != "__get__" and _touches_model(tape, args, kwargs)):
        return record(tape, FACTORIES.get(func, func), args, kwargs, frame)
    if tape.records_data and _is_operation(_name(func)) and _has_tensors((*args, *kwargs.values())):
        return record(tape, func, args, kwargs, frame)
    return func(*args, **kwargs)


def _check_kept(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Numbers that are drawn now, or read out of the model, would be kept."""
    name, given = _name(func), (*args, *kwargs.values())
    name = getattr(func.__self__, "__name__", name) if name == "__get__" else name  # properties have none
    if name.endswith(DRAWING) or ("out" in kwargs and name in RANDOM):
        raise TraceError(
            f"{tape.keeper}: {name} draws its numbers into a real tensor, and they would be kept for ever; use torch.rand, "
            "torch.randn or torch.normal, which are recorded"
        )
    if func in READS or kwargs.get("out") is not None:
        refuse_reading(tape, name, given)
    elif _writes(name):
        refuse_reading(tape, name, given[1:])


def _array(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An array of numpy, which may share its memory with the tensor that it is made of."""
    found = func(*args, **kwargs)
    tape.changes.show_array(args[0], found)
    return found


def _called_with_values(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    name = _name(func)
    if kwargs.get("out") is not None:
        raise TraceError(f"{name} with out=: a recorded result cannot be written into a given tensor; use what {name} returns")
    if _writes(name):
        if not args:  # torch.nn.init calls with keywords alone
            (_, first), *rest = kwargs.items()
            args, kwargs = (first,), dict(rest)
        if not isinstance(args[0], Value):
            raise TraceError(
                f"{name}: a Value cannot be written into a real tensor, which would stay unchanged; make the tensor inside the "
                "batched function (torch.zeros, x.clone() of a Value, torch.zeros_like(data) + data), or collect the values "
                "in a list and use torch.stack"
            )
        return tape.record_inplace(func, args, kwargs, frame)
    if name in REFUSED:
        raise TraceError(f"torch function {name} on a Value: {REFUSED[name]}")
    if func in NEEDS_VALUE:
        refuse_reading(tape, name, (*args, *kwargs.values()))
        return _with_tensors(func, args, kwargs)
    found = reduced(tape, func, args, kwargs, frame)
    if found is not NotImplemented:
        return found
    return record(tape, func, args, kwargs, frame, func if len(args) == 1 and not kwargs else None)


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A torch function on values while no mode of ours is on the stack."""
    tape = active.tape
    if tape is None or tape.paused:
        return _with_tensors(func, args, kwargs)
    return called(tape, func, args, kwargs, _getframe(2))


def has_values(items: Any) -> bool:
    """Whether there are values among these, or in lists of them."""
    for item in items:
        if isinstance(item, Value):
            return True
        if item.__class__ is tuple or item.__class__ is list:
            if has_values(item):
                return True
    return False


def _has_tensors(items: Any) -> bool:
    return any(isinstance(item, Tensor) or (item.__class__ in (tuple, list) and _has_tensors(item)) for item in items)


def _is_operation(name: str) -> bool:
    """Whether it is a function from tensors to tensors, by its name."""
    if name.startswith("__"):
        return name in OPERATORS
    return not (name.startswith("_") or _tells(name) or _writes(name) or name in REFUSED or name in OTHERS)


def _is_of_floats(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    dtype = kwargs.get("dtype") or getattr(args[0] if args else None, "dtype", None)
    return dtype is not None and dtype.is_floating_point


def _tells(name: str) -> bool:
    """Whether it tells something about a tensor, in Python's own words."""
    return name in TELLING or name.startswith("is_")


def _touches_model(tape: Tape, args: Any, kwargs: Any) -> bool:
    return model_tensor(tape, (*args, *kwargs.values())) is not None


def _name(func: Any) -> str:
    """What a function is called; `torch.ops.aten.add_.Tensor` is `add_`."""
    name: str = getattr(func, "__name__", "")
    return name.partition(".")[0]


def _writes(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name in IN_PLACE


IN_PLACE = frozenset(
    "__setitem__ __iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__ __ilshift__ "
    "__irshift__ __set__".split()
)
OPERATORS = frozenset(
    f"__{name}__" for name in (*COMPARISONS, *ARITHMETIC, *(f"r{name}" for name in ARITHMETIC), *UNARY, "getitem")
)
TELLING = frozenset(
    "size dim ndimension numel nelement stride storage_offset element_size get_device tolist item numpy data_ptr".split()
)
OTHERS = frozenset("cpu cuda to register_hook result_type can_cast as_tensor from_numpy backward".split())
"""What makes or moves a tensor."""
RANDOM = frozenset(
    "rand randn randint rand_like randn_like randint_like randperm normal bernoulli multinomial poisson dropout alpha_dropout "
    "feature_dropout feature_alpha_dropout dropout1d dropout2d dropout3d gumbel_softmax rrelu native_dropout binomial".split()
)
FACTORIES: dict[Any, Any] = {
    torch.zeros: torch.zeros,
    torch.ones: torch.ones,
    torch.full: torch.full,
    torch.empty: torch.zeros,
}
"""Tensors made of nothing: recorded, so that they can be written into; memory that is not set holds zeros."""

LIKE_DATA: frozenset[Any] = frozenset(
    (
        *(getattr(Tensor, f"new_{name}") for name in ("zeros", "ones", "full", "empty")),
        *(getattr(torch, f"{name}_like") for name in ("zeros", "ones", "full", "empty")),
    )
)
"""The same after the model of a tensor. Of data that is not a Value (where a recording is kept, or in an object of the user's
own) only numbers with a fraction are recorded: what is made of whole numbers and truth values is data, to be read."""

ARRAYS: frozenset[Any] = frozenset((torch.Tensor.numpy, torch.Tensor.__array__))
VIEWS: dict[Any, Any] = {
    getattr(torch.Tensor, name).__get__: torch.Tensor.detach if name == "data" else getattr(torch.Tensor, name).__get__
    for name in "data T mT H mH real imag".split()
}
"""Attributes that are tensors with the same memory, and what is recorded of them where the recording is kept."""
NEEDS_VALUE = frozenset(
    (torch.equal, torch.allclose, torch.is_nonzero, torch.Tensor.equal, torch.Tensor.allclose, torch.Tensor.is_nonzero)
)
READS: frozenset[Any] = frozenset(
    (
        *ARRAYS,
        *NEEDS_VALUE,
        torch.Tensor.item,
        torch.Tensor.tolist,
        torch.Tensor.untyped_storage,
        torch.Tensor.storage,
        torch.Tensor.__dlpack__,
        torch.Tensor.grad.__get__,  # type: ignore[union-attr]  # it is a descriptor
    )
)
"""What gives the numbers of a tensor, or its memory, where fake tensors do not tell that it does."""


def _tensor(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    """`torch.tensor`: of a number a constant; of values their stack, without gradient, as of tensors."""
    if len(args) == 1 and (not kwargs or kwargs.keys() == {"dtype"}):
        made = constant(tape, args[0], kwargs.get("dtype") if kwargs else None)
        if made is not None:
            return made
    if args and has_values(args):
        found = _joined(args[0]).detach()
        return found if kwargs.get("dtype") is None else found.to(kwargs["dtype"])
    if tape.keeper:
        refuse_reading(tape, "torch.tensor", (*args, *kwargs.values()))
    return func(*args, **kwargs)


def _joined(nest: Any) -> Any:
    if isinstance(nest, Value):
        return nest.clone()
    parts: Any = [_joined(part) if isinstance(part, Value | list | tuple) else torch.tensor(part) for part in nest]
    return torch.stack(parts)


def _set_grad(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    func(*args, **kwargs)
    tape.set_context()


def _unchecked(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    """What torch.distributions asks of its parameters; of values it is not known yet."""
    return True if has_values(args) else func(*args, **kwargs)


def _no_gradients(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    if has_values(args) or has_values(kwargs.values()):
        raise TraceError(f"torch.autograd.{_name(func)} on a Value: {REFUSED['backward']}, or put the call into a weft.cell")
    return func(*args, **kwargs)


def _embedding(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    place = 3 if func is F.embedding else 4
    if (kwargs.get("max_norm") if len(args) <= place else args[place]) is not None:
        raise TraceError(f"{_name(func)} with max_norm= {RENORMALISES}")
    return ordinary(tape, func, args, kwargs, frame)


Special = Callable[[Tape, Any, tuple[Any, ...], dict[str, Any], FrameType], Any]
SPECIAL: dict[Any, Special] = {
    torch.tensor: _tensor,
    torch._C._set_grad_enabled: _set_grad,
    torch.stack: stack,
    F.embedding: _embedding,
    F.embedding_bag: _embedding,
    torch._is_all_true: _unchecked,
    torch.autograd.grad: _no_gradients,
    torch.autograd.backward: _no_gradients,
}
UNRECORDED: frozenset[Any] = frozenset((torch.Tensor.requires_grad_, torch.Tensor.register_hook, torch.Tensor.detach_))
