"""Constants: Python objects that become tensors."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor as TorchTensor

from weft.blocks.block import Block
from weft.blocks.checks import as_integer
from weft.blocks.emit import Emitter, Value
from weft.blocks.faults import WrongInput
from weft.blocks.inference import set_type
from weft.blocks.kinds import Constant, one_hot, spec_of
from weft.blocks.show import shortened, text_of
from weft.blocks.types import (
    BroadcastSequenceType,
    PyObjectType,
    ResultType,
    SequenceType,
    TensorType,
    TupleType,
    as_dtype,
)
from weft.errors import MissingKey, ShapeError, TypeMismatch, WeftError
from weft.graph.rows import TensorSpec


class _Leaf(Block):
    """From a Python object to something of a known type."""

    _input_classes = (PyObjectType,)

    def _types_are(self, output: ResultType) -> None:
        set_type(self, "input", PyObjectType())
        set_type(self, "output", output)


class Tensor(_Leaf):
    """A Python object (numbers, nested lists, an array or tensor) as a tensor of this shape and dtype.

    >>> import weft.blocks as wb
    >>> wb.Tensor([2]).eval_one([1, 2])
    tensor([1., 2.])
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype | str | None = None, *, name: str | None = None) -> None:
        super().__init__(name=name)
        try:
            type = TensorType(shape, dtype)
        except TypeMismatch as error:
            raise TypeMismatch(f"{self.name}: {error}") from None
        if type.ragged:
            raise TypeMismatch(f"{self.name}: the shape of a constant must be known, got {list(type.shape)}")
        self._types_are(type)

    def _emit(self, e: Emitter, x: Value) -> Constant:
        type = self._known("output")
        assert isinstance(type, TensorType)
        if type.shape or type.dtype.is_complex:
            return Constant(e.let(f"{e.object(ToArray(type))}({x})"), type, spec_of(type))
        ready = f"type({x}) is {'float' if type.dtype.is_floating_point else 'bool'}"
        if is_integral(type.dtype):
            smallest, largest = range_of(type.dtype)
            ready = f"type({x}) is int and {smallest} <= {x} <= {largest}"
        return Constant(e.let(f"{x} if {ready} else {e.object(ToScalar(type.dtype))}({x})"), type, spec_of(type))

    def _explain(self, error: Exception, value: Any) -> Exception | None:
        if isinstance(error, WeftError):
            return error
        type = self._known("output")
        several = isinstance(value, list | tuple) and isinstance(type, TensorType) and not type.shape
        kind = WrongInput if several else TypeMismatch
        trained = isinstance(value, list | tuple) and any(isinstance(x, TorchTensor) and x.requires_grad for x in value)
        hint = "; join tensors that need gradients with torch.stack" if trained else ""
        return kind(f"expected something that converts to {self.output_type!r}, got {brief(value)}{hint}")


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    like = torch.float32 if dtype is torch.bfloat16 else dtype
    return torch.zeros((), dtype=like, device="cpu").numpy().dtype


class ToArray:
    """Converts to an array of one shape; tensors are left as they are, for their gradient."""

    def __init__(self, type: TensorType) -> None:
        self.shape, self.dtype, self.text = type.shape, type.dtype, repr(type)
        self.numpy = _numpy_dtype(type.dtype)

    def __call__(self, x: Any) -> Any:
        check_range(x, self.dtype)
        if x is None:  # which numpy would take as NaN
            raise TypeError("None is no number")
        made = x if isinstance(x, TorchTensor) else np.asarray(x, self.numpy)
        if tuple(made.shape) != self.shape:
            raise ShapeError(f"expected {self.text}, got the shape {list(made.shape)}")
        return made


class ToScalar:
    """Converts to a number of one dtype; tensors are left as they are, for their gradient."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.cast: Callable[[Any], Any] = float if dtype.is_floating_point else _truth if dtype == torch.bool else int

    def __call__(self, x: Any) -> Any:
        if isinstance(x, TorchTensor | np.ndarray):
            if x.ndim:
                raise ShapeError(f"expected a scalar, got the shape {list(x.shape)}")
            check_range(x, self.dtype)
            return x if isinstance(x, TorchTensor) else self.cast(x.item())
        made = self.cast(x)
        if self.cast is int:
            check_range(made, self.dtype)
        return made


def _truth(x: Any) -> bool:
    """Whether a number is not zero; what is no number, such as the string of one, is neither."""
    if not isinstance(x, numbers.Number | np.bool_):
        raise TypeError(f"{x!r} is no number")
    return bool(x)


def is_integral(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def range_of(dtype: torch.dtype) -> tuple[int, int]:
    """The smallest and the largest number of an integer dtype."""
    known = torch.iinfo(dtype)
    return known.min, known.max


def check_range(x: Any, dtype: torch.dtype) -> None:
    """A number, array or tensor must not be cut off where it becomes integers of this dtype."""
    if not is_integral(dtype):
        return
    if isinstance(x, TorchTensor):
        if x.dtype == dtype:
            return
        x = x.detach().cpu().numpy()
    array = np.asarray(x)
    smallest, largest = range_of(dtype)
    if array.size == 0 or array.dtype.kind not in "iufO":
        return
    for found in np.array([array.min(), array.max()], array.dtype).tolist():
        if not smallest <= found <= largest:  # also where it is no number
            raise TypeMismatch(f"expected integers from {smallest} to {largest}, got {found}")


def brief(value: Any) -> str:
    return f"{type(value).__name__} {shortened(value, 60)}"


class Scalar(Tensor):
    """A number as a tensor without dimensions; strings of digits convert too.

    >>> import weft.blocks as wb
    >>> wb.Scalar("int64").eval_one("3")
    tensor(3)
    """

    def __init__(self, dtype: torch.dtype | str | None = None, *, name: str | None = None) -> None:
        super().__init__([], dtype, name=name)


class Vector(Tensor):
    """A list of `size` numbers as a tensor.

    >>> import weft.blocks as wb
    >>> wb.Vector(3).eval_one([1, 2, 3])
    tensor([1., 2., 3.])
    """

    def __init__(self, size: int, dtype: torch.dtype | str | None = None, *, name: str | None = None) -> None:
        super().__init__([size], dtype, name=name)


class OneHotFromList(_Leaf):
    """A unit vector at the position of an element in a list; `strict=False` gives zeros for elements that are not in it.

    >>> import weft.blocks as wb
    >>> wb.OneHotFromList(["a", "b"]).eval_one("b")
    tensor([0., 1.])
    """

    def __init__(
        self,
        elements: Collection[Any],
        dtype: torch.dtype | str | None = None,
        strict: bool = True,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if not isinstance(elements, Collection):
            raise TypeMismatch(f"{self.name}: elements: expected a list, got {brief(elements)}")
        try:
            self._positions = {element: place for place, element in enumerate(elements)}
        except TypeError:
            raise TypeMismatch(f"{self.name}: elements: expected what can be keys of a dict, got {brief(elements)}") from None
        if not self._positions:
            raise ValueError(f"{self.name}: expected at least one element")
        if len(self._positions) != len(elements):
            twice = next(e for place, e in enumerate(elements) if self._positions[e] != place)
            raise ValueError(f"{self.name}: expected different elements, got {twice!r} twice")
        self._strict = strict
        self._types_are(TensorType([len(self._positions)], dtype))

    def _emit(self, e: Emitter, x: Value) -> Constant:
        type = self._known("output")
        assert isinstance(type, TensorType)
        positions = e.object(self._positions)
        quick = f"{positions}[{x}]" if self._strict else f"{positions}.get({x}, -1)"
        found = e.let(f"{quick} if type({x}) is str or type({x}) is int else {e.object(self._position)}({x})")
        decode = one_hot(len(self._positions), type.dtype)
        return Constant(found, type, TensorSpec((), torch.int64), decode, ("one hot", type))

    def _position(self, value: Any) -> int:
        value = value.item() if isinstance(value, TorchTensor) and not value.dim() else value
        try:
            return self._positions[value]
        except (KeyError, TypeError):
            if self._strict:
                raise
        return -1

    def _explain(self, error: Exception, value: Any) -> Exception | None:
        known = list(self._positions)
        shown = ", ".join(map(text_of, known if len(known) <= 6 else known[:2]))
        shown += f", ..., {text_of(known[-1])}" if len(known) > 6 else ""
        return MissingKey(f"expected one of {shown}, got {brief(value)}")


class OneHot(OneHotFromList):
    """A unit vector: for an integer from 0 up to `start`, or from `start` up to `stop`.

    >>> import weft.blocks as wb
    >>> wb.OneHot(3).eval_one(1), wb.OneHot(5, 7).eval_one(5)
    (tensor([0., 1., 0.]), tensor([1., 0.]))
    """

    def __init__(
        self, start: int, stop: int | None = None, dtype: torch.dtype | str | None = None, *, name: str | None = None
    ) -> None:
        for what, number in (("start", start), ("stop", 0 if stop is None else stop)):
            as_integer("OneHot", what, number)
        first, last = (0, start) if stop is None else (start, stop)
        if last <= first:
            raise IndexError(f"OneHot: expected a range that is not empty, got [{first}, {last})")
        super().__init__(range(first, last), dtype, name=name)


class Length(Block):
    """How many items there are, as a number.

    >>> import weft.blocks as wb
    >>> wb.Length("int64").eval_one([5, 6, 7])
    tensor(3)
    """

    _input_classes = (PyObjectType, SequenceType, TupleType)

    def __init__(self, dtype: torch.dtype | str | None = None, *, name: str | None = None) -> None:
        super().__init__(name=name)
        set_type(self, "output", TensorType([], as_dtype(dtype)))

    def _update(self) -> None:
        if isinstance(self.input_type, BroadcastSequenceType):
            raise self._mismatch(f"an endless sequence has no length, got {self.input_type!r}")

    def _emit(self, e: Emitter, x: Value) -> Constant:
        type = self._known("output")
        assert isinstance(type, TensorType)
        return Constant(e.let(f"len({e.listed(x, self._known('input'))})"), type, spec_of(type))

    def _explain(self, error: Exception, value: Any) -> Exception | None:
        if not isinstance(error, TypeError):
            return None
        return TypeMismatch(f"expected something that has a length, got {brief(value)}")
