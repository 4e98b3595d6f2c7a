"""Blocks at the leaves: tensors of the model, Python functions, zeros, nothing; and one for what may be missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.blocks.block import Block
from weft.blocks.checks import check_callable
from weft.blocks.emit import Emitter, Value, Writing
from weft.blocks.inference import set_type
from weft.blocks.kinds import Constant, Kind, spec_of
from weft.blocks.types import (
    BroadcastSequenceType,
    PyObjectType,
    ResultType,
    SequenceType,
    TensorType,
    TupleType,
    VoidType,
    convert_to_type,
)
from weft.errors import TypeMismatch
from weft.graph.rows import TensorSpec


class FromTensor(Block):
    """A tensor that is the same for every example: a parameter, a buffer or any other; it gets its gradient.

    A plain tensor becomes a buffer of the block, which `.to` moves; a parameter stays a parameter.

    >>> import torch, weft.blocks as wb
    >>> wb.FromTensor(torch.tensor([1.0, 2.0])).eval_one(None)
    tensor([1., 2.])
    """

    _input_classes = (VoidType,)

    def __init__(self, tensor: Tensor | np.ndarray[Any, Any] | np.generic, *, name: str | None = None) -> None:
        super().__init__(name=name)
        if isinstance(tensor, np.ndarray | np.generic):
            tensor = torch.from_numpy(np.asarray(tensor))
        if not isinstance(tensor, Tensor):
            raise TypeMismatch(f"{self.name}: {tensor!r} is not a tensor or an array")
        if isinstance(tensor, nn.Parameter):
            self.tensor = tensor
        else:
            self.register_buffer("tensor", tensor)
        set_type(self, "input", VoidType())
        set_type(self, "output", TensorType(tuple(tensor.shape), tensor.dtype))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "tensor" and (known := self.output_type) is not None:
            got = TensorType(tuple(value.shape), value.dtype) if isinstance(value, Tensor) else value
            if got != known:
                raise self._mismatch(f"tensor: expected {known!r}, got {got!r}")
            self._changes += 1
        super().__setattr__(name, value)

    def _emit(self, e: Emitter, x: Value) -> Value:
        output = spec_of(self._known("output"))
        held = self._parameters if "tensor" in self._parameters else self._buffers
        # The fed zero gives the call a row of its own; the tensor itself has none. To add it would turn -0.0 into 0.0.
        is_bool = output.dtype == torch.bool
        body = lambda row: [held["tensor"] | row if is_bool else held["tensor"] - row]  # noqa: E731
        feed = TensorSpec((), output.dtype)
        kind = Kind("FromTensor", body, feeds=(feed,), outputs=(output,), owners=(held,), weight=0, where=self._path())
        return e.call(("tensor", id(self)), lambda: kind, feeds=["False" if is_bool else "0"])[0]


class InputTransform(Block):
    """Any Python function of a Python object.

    >>> import weft.blocks as wb
    >>> (wb.InputTransform(str.split) >> wb.Length()).eval_one("two words")
    tensor(2.)
    """

    _input_classes = _output_classes = (PyObjectType,)

    def __init__(self, py_fn: Callable[[Any], Any], *, name: str | None = None) -> None:
        super().__init__(name=name)
        check_callable(self.name, "py_fn", py_fn)
        self.py_fn = py_fn
        set_type(self, "input", PyObjectType())
        set_type(self, "output", PyObjectType())

    def _emit(self, e: Emitter, x: Value) -> Value:
        return e.let(f"{e.object(self.py_fn)}({x})", x.place)


class Zeros(Block):
    """Zeros of a type: tensors of zeros, empty sequences, tuples of these.

    >>> import weft.blocks as wb
    >>> wb.Zeros(([2], "int64")).eval_one(None)
    (tensor([0., 0.]), tensor(0))
    """

    _input_classes = (VoidType,)

    def __init__(self, output_type: Any, *, name: str | None = None) -> None:
        super().__init__(name=name)
        type = convert_to_type(output_type)
        check_has_zeros(self, type)
        set_type(self, "input", VoidType())
        set_type(self, "output", type)

    def _emit(self, e: Emitter, x: Value) -> Value:
        return zeros_of(e, self._known("output"))


def check_has_zeros(block: Block, type: ResultType) -> None:
    pending = [type]
    while pending:
        each = pending.pop()
        if isinstance(each, PyObjectType | BroadcastSequenceType) or (isinstance(each, TensorType) and each.ragged):
            raise block._mismatch(f"there are no zeros of {type!r}")
        if isinstance(each, TupleType):
            pending.extend(each)
        elif isinstance(each, SequenceType):
            pending.append(each.element_type)


def zeros_of(e: Emitter, type: ResultType, fill: float = 0) -> Value:
    if isinstance(type, TupleType):
        return tuple(zeros_of(e, item, fill) for item in type)
    if isinstance(type, TensorType):
        spec = TensorSpec((), type.dtype)
        shape = type.shape
        decode = None if not shape else (lambda row: row.expand(shape).clone())
        return Constant(e.let(_number(fill, type.dtype)), type, spec, decode, None if not shape else ("fill", type))
    return e.let("[]") if isinstance(type, SequenceType) else None


def _number(fill: float, dtype: torch.dtype) -> str:
    """A number as code, of the kind that tensors of this dtype are made of."""
    if dtype == torch.bool:
        return repr(bool(fill))
    if not dtype.is_floating_point and not dtype.is_complex:
        return repr(int(fill))
    return f"float({str(float(fill))!r})" if not math.isfinite(fill) else repr(float(fill))


class Void(Block):
    """Takes anything and gives nothing.

    >>> import weft.blocks as wb
    >>> wb.Void().set_input_type(wb.PyObjectType()).eval_one("anything")
    """

    _output_classes = (VoidType,)

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=name)
        set_type(self, "output", VoidType())

    def _emit(self, e: Emitter, x: Value) -> Value:
        return None


class Identity(Block):
    """Gives what it takes.

    >>> import weft.blocks as wb
    >>> (wb.Scalar() >> wb.Identity()).eval_one(2)
    tensor(2.)
    """

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=name)

    def _update(self) -> None:
        for here, there in (("input", "output"), ("output", "input")):
            if self._types[here] is not None:
                set_type(self, there, self._types[here])

    def _emit(self, e: Emitter, x: Value) -> Value:
        return x


class Optional(Block):
    """`some_case` of a Python object, or `none_case` where that is None; by default zeros of the same type.

    >>> import weft.blocks as wb
    >>> block = wb.Optional(wb.Scalar())
    >>> block.eval_one(3), block.eval_one(None)
    (tensor(3.), tensor(0.))
    """

    _input_classes = (PyObjectType,)

    def __init__(self, some_case: Any, none_case: Any = None, *, name: str | None = None) -> None:
        super().__init__([some_case, *([] if none_case is None else [none_case])], name=name)
        set_type(self, "input", PyObjectType())
        set_type(self.subblocks[0], "input", PyObjectType())
        if none_case is not None:
            set_type(self.subblocks[1], "input", VoidType())

    def _update(self) -> None:
        for one in (self, *self.subblocks):
            if one.output_type is not None:
                for other in (self, *self.subblocks):
                    set_type(other, "output", one.output_type)
                if len(self.subblocks) == 1:
                    check_has_zeros(self, one.output_type)

    def _passed_on(self) -> Iterable[Block]:
        return self.subblocks[:1]

    def _emit(self, e: Emitter, x: Value) -> Writing:
        type = self._known("output")
        out = e.variables(type)
        with e.under(f"if {x} is None:"):
            e.line("pass")
            none = (yield self.subblocks[1], None) if len(self.subblocks) > 1 else zeros_of(e, type)
            e.assign(out, none, type)
        with e.under("else:"):
            e.line("pass")
            e.assign(out, (yield self.subblocks[0], x), type)
        return out

    def _labels(self) -> Any:
        yield from zip(("some_case", "none_case"), self.subblocks, strict=False)
