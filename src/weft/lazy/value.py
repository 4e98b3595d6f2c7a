"""`weft.Value`: what operations return while they are recorded. It stands for a tensor that has not been computed yet.

A value knows its kind (shape and dtype) and which output of which call it is. Operators and methods look up, by the kinds of
the operands and the place in the user's code, what was found out at the first call of that kind, and append a few integers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from sys import _getframe
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from weft.errors import TraceError
from weft.graph.recording import OUTPUT_BITS
from weft.lazy.kinds import Kind
from weft.lazy.nests import LEAVES

if TYPE_CHECKING:
    from weft.lazy.tape import Tape

STEP = 1 << OUTPUT_BITS
"""From the reference of a call's first output to that of the next call."""

LOW = STEP - 1


class NoLength(TraceError, TypeError):
    """A single number was taken for a sequence, as torch.LongTensor([v]) does."""


class Value:
    """The result of a recorded operation: not a `torch.Tensor`, but it does what one does.

    Shape, dtype and device are known at once. `bool(v)`, `float(v)`, `int(v)`, `v.item()` and `v.tolist()` need the numbers:
    what is pending runs first. `weft.value(v)` gives the tensor itself.

    >>> import torch, weft
    >>> with weft.batching():
    ...     v = torch.ones(3) * 2
    ...     print(type(v).__name__, v.shape, v.dtype)
    Value torch.Size([3]) torch.float32
    >>> weft.value(v)
    tensor([2., 2., 2.])
    """

    __slots__ = ("__weakref__", "_kind", "_known", "_ref", "_tape")

    _known: Any
    """What subclasses and rows of stacks know; not set in most values."""

    def __init__(self, tape: Tape, ref: int, kind: Kind) -> None:
        self._tape = tape
        self._ref = ref
        self._kind = kind

    # What is known without computing

    @property
    def shape(self) -> torch.Size:
        return self._kind.shape

    @property
    def dtype(self) -> torch.dtype:
        return self._kind.dtype

    @property
    def ndim(self) -> int:
        return len(self._kind.shape)

    @property
    def device(self) -> torch.device:
        return torch.device(self._tape.device)

    @property
    def requires_grad(self) -> bool:
        return self._tape.requires_grad(self)

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    is_sparse = is_quantized = is_meta = is_nested = is_mkldnn = is_mps = is_xpu = is_vulkan = False
    layout = torch.strided

    @property
    def is_cpu(self) -> bool:
        return self.device.type == "cpu"

    @property
    def itemsize(self) -> int:
        return self._kind.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.numel() * self._kind.dtype.itemsize

    def __getattr__(self, name: str) -> Any:
        """What belongs to the autograd graph: that of the tensor, once there is one."""
        if name not in GRAPH:
            raise AttributeError(f"'Value' object has no attribute {name!r}")
        return getattr(self._tape.tensor(self), name) if self._tape.is_over() else GRAPH[name]

    def dim(self) -> int:
        return len(self._kind.shape)

    def size(self, dim: int | None = None) -> Any:
        return self._kind.shape if dim is None else self._kind.shape[dim]

    def numel(self) -> int:
        return self._kind.count

    def is_floating_point(self) -> bool:
        return self._kind.dtype.is_floating_point

    def is_complex(self) -> bool:
        return self._kind.dtype.is_complex

    def __len__(self) -> int:
        if not self._kind.shape:
            raise NoLength("len() of a 0-d tensor; a tensor of several Values is made with torch.stack")
        return self._kind.shape[0]

    def __repr__(self) -> str:
        kind = self._kind
        return f"Value(shape={list(kind.shape)}, dtype={str(kind.dtype).removeprefix('torch.')})"

    __hash__ = object.__hash__

    # What needs the numbers

    def item(self) -> Any:
        if self._kind.count != 1:
            raise RuntimeError(f"a Tensor with {self._kind.count} elements cannot be converted to Scalar")
        found = self._tape.numbers(self)
        while isinstance(found, list):
            found = found[0]
        return found

    def tolist(self) -> Any:
        return self._tape.numbers(self)

    def __bool__(self) -> bool:
        if self._kind.count != 1:
            raise RuntimeError(
                f"Boolean value of Tensor with {'more than one value' if self._kind.count else 'no values'} is ambiguous"
            )
        return bool(self.item())

    def __float__(self) -> float:
        return float(self._only())

    def __int__(self) -> int:
        return int(self._only())

    def __complex__(self) -> complex:
        return complex(self._only())

    def _only(self) -> Any:
        """The one number there is, for Python's own conversions."""
        if self._kind.count != 1:
            raise ValueError("only one element tensors can be converted to Python scalars")
        return self.item()

    def __index__(self) -> int:
        if self._kind.dtype.is_floating_point or self._kind.dtype.is_complex:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if not self._kind.shape else repr(self)

    __array_ufunc__ = None
    """`numpy_number * value` is the value's affair, as it is a tensor's."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        found = self.numpy()
        return found if dtype is None else found.astype(dtype)

    def numpy(self, *, force: bool = False) -> Any:
        tape = self._tape
        tensor = tape.tensor(self)
        with torch._C.DisableTorchFunction():
            found = tensor.numpy(force=force)
        if self._ref < UNKNOWN and tape.ended is None:  # the caller's own memory
            tape.changes.show_array(tensor, found)
        return found

    def __contains__(self, item: Any) -> bool:
        return bool((self == item).any())

    def _plain(self) -> Any:
        """This value as a plain one, or as the tensor that it is."""
        return self

    # What is recorded

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from weft.lazy.mode import dispatch

        return dispatch(func, args, kwargs or {})

    def __getitem__(self, index: Any) -> Any:
        if self._ref < UNKNOWN and not self._tape.is_over():
            part = PARTS[0](self, index)
            if part is not None:
                return part
        if isinstance(index, Value) and not index._kind.shape and index._kind.dtype in INTEGERS and self._kind.shape:
            return self._tape.record(picked, (self, index), {}, _getframe(1))
        return self._tape.record(torch.Tensor.__getitem__, (self, _as_tensors(index, self._tape.place)), {}, _getframe(1))

    def __setitem__(self, index: Any, given: Any) -> None:
        self._tape.record_inplace(
            torch.Tensor.__setitem__, (self, _as_tensors(index, self._tape.place), given), {}, _getframe(1)
        )

    def __iter__(self) -> Iterator[Any]:
        if not self._kind.shape:
            raise TypeError("iteration over a 0-d tensor")
        if self._ref < UNKNOWN and not self._tape.is_over():
            return iter(PARTS[1](self))
        if self._kind.shape[0] > LOW and not self._tape.is_over():
            return iter([self[at] for at in range(self._kind.shape[0])])
        return iter(self._tape.record(torch.Tensor.unbind, (self,), {}, _getframe(1)))

    @property
    def T(self) -> Any:
        return self.t() if self.ndim == 2 else self.permute(*range(self.ndim - 1, -1, -1))

    @property
    def mT(self) -> Any:
        return self.transpose(-2, -1)

    @property
    def H(self) -> Any:
        return self.T.conj()

    @property
    def mH(self) -> Any:
        return self.transpose(-2, -1).conj()

    @property
    def data(self) -> Any:
        return self.detach()

    @data.setter
    def data(self, given: Any) -> None:
        raise TraceError(
            "v.data = ... on a Value: it has no memory of its own; write into it without gradients, with v.copy_(...)"
        )

    @property
    def real(self) -> Any:
        return torch.real(self)  # type: ignore[arg-type]  # it is recorded

    @property
    def imag(self) -> Any:
        return torch.imag(self)  # type: ignore[arg-type]  # it is recorded


INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def _as_tensors(index: Any, place: torch.device) -> Any:
    """Arrays of numpy and lists of numbers are tensors where they are indices, so that other numbers are no other call."""
    if isinstance(index, np.ndarray):
        return torch.from_numpy(index)
    if index.__class__ is list and index and {*map(type, index)} == {int}:
        return torch.from_numpy(np.array(index)).to(place)
    return tuple(_as_tensors(part, place) for part in index) if index.__class__ is tuple else index


def picked(tensor: Tensor, index: Tensor) -> Tensor:
    """The row at an index that is a tensor."""
    at = torch.where(index < 0, index + tensor.shape[0], index)
    return tensor.index_select(0, at.reshape(1)).squeeze(0)


def row_of_model(tensor: Tensor, index: Tensor) -> Tensor:
    """The same of a tensor of the model, whose gradients come together as those of an embedding do."""
    at = torch.where(index < 0, index + tensor.shape[0], index)
    return torch.nn.functional.embedding(at, tensor.reshape(tensor.shape[0], -1)).reshape(tensor.shape[1:])


GRAPH = {"names": None, "grad": None, "grad_fn": None, "is_leaf": False, "retains_grad": False, "output_nr": 0, "_version": 0}
"""Attributes that speak of the autograd graph, and what they are while recording."""

UNKNOWN = -1
"""References below this are of tensors that the call was given."""

PARTS: list[Callable[..., Any]] = []
"""How to get one part and all rows of a tensor that is known; `lazy/given.py`, which needs this file, puts it here."""

LARGE = {float: 1e38, int: 1 << 62}
"""Numbers below these can be fed."""

MISS = object()
"""The answer of the short way where it does not know the call."""

SHORT: list[Callable[..., Any]] = [lambda *_: MISS]
"""The short way to record a call; `lazy/quick.py`, which needs this file, puts it here."""


def _binary(name: str, func: Any) -> Callable[[Value, Any], Any]:
    def operator(self: Value, other: Any) -> Any:
        tape = self._tape
        frame = _getframe(1)
        cls = other.__class__
        if cls is Value:
            if other._tape is tape:
                entry = tape.fast.get((name, self._kind, other._kind, id(frame.f_code), frame.f_lasti))
                if entry is not None and self.__class__ is Value:
                    ref = tape.next
                    tape.next = ref + STEP
                    tape.type.append(entry[0])
                    tape.arguments += (self._ref, other._ref)
                    return tape.make(tape, ref, entry[1])
        elif cls is int or cls is float:
            entry, feeds = tape.fast.get((name, self._kind, other, cls, id(frame.f_code), frame.f_lasti)), []
            if entry is None and abs(other) < LARGE[cls]:
                entry, feeds = tape.fast.get((name, self._kind, cls, id(frame.f_code), frame.f_lasti)), [other]
            if entry is not None and self.__class__ is Value:
                return tape.make(tape, tape.emitted(entry[0], [self._ref], feeds), entry[1])
        return tape.record(func, (self, other), {}, frame, name)

    operator.__name__ = name
    return operator


def _unary(name: str, func: Any) -> Callable[..., Any]:
    def method(self: Value, *args: Any, **kwargs: Any) -> Any:
        tape = self._tape
        frame = _getframe(1)
        if not args and not kwargs:
            entry = tape.fast.get((name, self._kind, id(frame.f_code), frame.f_lasti))
            if entry is not None and self.__class__ is Value:
                ref = tape.next
                tape.next = ref + STEP
                tape.type.append(entry[0])
                tape.arguments.append(self._ref)
                return tape.make(tape, ref, entry[1])
            return tape.record(func, (self,), {}, frame, name)
        if not kwargs and self.__class__ is Value:
            found = SHORT[0](tape, func, (self, *args), frame)
            if found is not MISS:
                return found
        return tape.record(func, (self, *args), kwargs, frame)

    method.is_unary = True  # type: ignore[attr-defined]
    method.__name__ = name
    method.__doc__ = f"As `torch.Tensor.{name}`, recorded."
    return method


def _inplace(name: str, func: Any) -> Callable[..., Any]:
    def method(self: Value, *args: Any, **kwargs: Any) -> Any:
        return self._tape.record_inplace(func, (self, *args), kwargs, _getframe(1))

    method.__name__ = name
    return method


def _refused(name: str, why: str) -> Callable[..., Any]:
    def method(self: Value, *args: Any, **kwargs: Any) -> Any:
        if not self._tape.is_over():
            _refuse(name, why)
        tensor = self._tape.tensor(self)
        return copy.copy(tensor) if name == "__copy__" else getattr(tensor, name)(*args, **kwargs)

    method.__name__ = name
    return method


def _refuse(name: str, why: str) -> NoReturn:
    raise TraceError(f"Tensor.{name} on a Value: {why}")


_BACKWARD = "gradients are taken of what the batched call returns, not inside it; return it and call backward on the result"
_HOOK = "hooks on tensors fire on real tensors only; take the tensor with weft.value(v) first"
_STORAGE = "a Value has no memory of its own; take the tensor with weft.value(v) first"
REFUSED = {
    "backward": _BACKWARD,
    "retain_grad": _BACKWARD,
    "requires_grad_": "a Value cannot become a leaf; use v.detach() or torch.no_grad(), or make the tensor outside",
    "__copy__": "copying it would leave the recording; use v.clone()",
    "__deepcopy__": "copying it would leave the recording; use v.clone()",
    "__reduce_ex__": "there is nothing to pickle yet; pickle what the batched call returns, or weft.value(v)",
    "register_hook": _HOOK,
    "register_post_accumulate_grad_hook": _HOOK,
    **dict.fromkeys("data_ptr storage untyped_storage set_ resize_ resize_as_ share_memory_ pin_memory".split(), _STORAGE),
    **dict.fromkeys(("__dlpack__", "__dlpack_device__"), _STORAGE),
    **dict.fromkeys("apply_ map_ map2_".split(), "it calls Python for every element; use tensor operations, or a weft.cell"),
}
COMPARISONS = "eq ne lt le gt ge".split()
UNARY = "neg abs invert pos".split()
ARITHMETIC = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()


def _install() -> None:
    """Give Value every operator and method that a tensor has."""
    reflected = [f"r{name}" for name in ARITHMETIC]
    for name in (*COMPARISONS, *ARITHMETIC, *reflected):
        dunder = f"__{name}__"
        setattr(Value, dunder, _binary(dunder, getattr(Tensor, dunder)))
    for name in UNARY:
        setattr(Value, f"__{name}__", _unary(f"__{name}__", getattr(Tensor, f"__{name}__")))
    for name in ARITHMETIC:
        dunder = f"__i{name}__"
        if hasattr(Tensor, dunder) and name not in ("truediv", "floordiv", "matmul"):
            setattr(Value, dunder, _inplace(dunder, getattr(Tensor, dunder)))
    Value.__itruediv__ = _inplace("__itruediv__", Tensor.div_)  # type: ignore[attr-defined]
    for name in ("__copy__", "__deepcopy__", "__dlpack__", "__dlpack_device__"):
        setattr(Value, name, _refused(name, REFUSED[name]))
    for name in dir(Tensor):
        func = getattr(Tensor, name)
        if name in REFUSED:
            setattr(Value, name, _refused(name, REFUSED[name]))
        elif name.startswith("_") or not callable(func) or hasattr(Value, name):
            continue
        elif name.endswith("_"):
            setattr(Value, name, _inplace(name, func))
        else:
            setattr(Value, name, _unary(name, func))


_install()
LEAVES.add(Value)
