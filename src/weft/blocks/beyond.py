"""Sequences as one tensor or as a tuple, and attention over them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.api.children import Children
from weft.blocks.block import Block
from weft.blocks.checks import is_integer
from weft.blocks.constants import is_integral, range_of
from weft.blocks.emit import Emitter, Value, Writing
from weft.blocks.inference import set_type
from weft.blocks.kinds import Kind, spec_of
from weft.blocks.leaves import check_has_zeros, zeros_of
from weft.blocks.sequences import items_of, not_iterable
from weft.blocks.show import shortened
from weft.blocks.types import PyObjectType, ResultType, SequenceType, TensorType, TupleType
from weft.errors import ShapeError, TypeMismatch
from weft.graph.calls import KEY
from weft.graph.rows import TensorSpec


class Stack(Block):
    """A sequence of tensors as one tensor with a first dimension of that length. Readers are batched by length.

    >>> import weft.blocks as wb
    >>> (wb.Map(wb.Scalar()) >> wb.Stack() >> wb.Function(lambda xs: xs.sort().values[0])).eval_one([3, 1, 2])
    tensor(1.)
    """

    _input_classes = (SequenceType, TupleType)
    _output_classes = (TensorType,)

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=name)

    def _update(self) -> None:
        if self.input_type is not None:
            item = items_of(self, self.input_type, objects=False)
            if not isinstance(item, TensorType) or item.ragged:
                raise self._mismatch(f"input type: expected a sequence of tensors, got {self.input_type!r}")
            set_type(self, "output", TensorType([None, *item.shape], item.dtype))

    def _emit(self, e: Emitter, x: Value) -> Value:
        items = e.let(e.listed(x, self._known("input")))
        out = e.variables(self._known("output"))
        with e.under(f"if {items}:"):
            (made,) = e.ragged_call(self._length_kind, [f"*{items}"], [f"len({items})"], 1)
            e.line(f"{out} = ({made}, len({items}))")
        with e.under("else:"):
            type = self._known("output")
            assert isinstance(type, TensorType)
            empty = zeros_of(e, TensorType([0, *type.shape[1:]], type.dtype))
            e.line(f"{out} = ({e.reference(empty)}, 0)")
        return out

    def _length_kind(self, length: int) -> tuple[Hashable, Callable[[], Kind]]:
        type = self._known("output")
        assert isinstance(type, TensorType)
        item, whole = TensorSpec(type.shape[1:], type.dtype), TensorSpec((length, *type.shape[1:]), type.dtype)
        make = lambda: Kind("Stack", _stacked, (item,) * length, outputs=(whole,), where=self._path())  # noqa: E731
        return ("stack", item, length), make


def _stacked(*tensors: Tensor) -> Sequence[Tensor]:
    return [torch.stack(tensors)]


class Pad(Block):
    """A sequence as a tuple of `n` items, filled up with `value`; longer ones are an error.

    >>> import weft.blocks as wb
    >>> (wb.Map(wb.Scalar()) >> wb.Pad(3, value=-1) >> wb.Concat()).eval_one([5])
    tensor([ 5., -1., -1.])
    """

    _input_classes = (SequenceType, TupleType)
    _output_classes = (TupleType,)

    def __init__(self, n: int, value: float = 0, *, name: str | None = None) -> None:
        super().__init__(name=name)
        if not is_integer(n) or n < 1:
            raise TypeMismatch(f"{self.name}: n: expected an integer of at least 1, got {n!r}")
        if not isinstance(value, int | float | np.bool_ | np.integer | np.floating):
            raise TypeMismatch(f"{self.name}: value: expected a number, got {value!r}")
        self._n, self._value = int(n), value.item() if isinstance(value, np.generic) else value

    def _update(self) -> None:
        if self.input_type is not None:
            item = items_of(self, self.input_type, objects=False)
            check_has_zeros(self, item)
            self._check_value(item)
            set_type(self, "output", TupleType(*[item] * self._n))

    def _emit(self, e: Emitter, x: Value) -> Value:
        output = self._known("output")
        assert isinstance(output, TupleType)
        items = e.let(f"list({e.listed(x, self._known('input'))})")
        with e.under(f"if len({items}) > {self._n}:"):
            e.line(f"{e.object(_too_long)}({self._n}, len({items}))")
        with e.under(f"if len({items}) < {self._n}:"):
            fill = zeros_of(e, output[0], self._value)
            e.line(f"{items} += [{e.pack(fill, output[0])}] * ({self._n} - len({items}))")
        return e.unpack(items, output)

    def _check_value(self, item: ResultType) -> None:
        for leaf in item.terminal_types():
            assert isinstance(leaf, TensorType)
            if not _fits(self._value, leaf.dtype):
                shown = shortened(self._value, 60)
                raise self._mismatch(f"value: expected a number of the type of the items, {item!r}, got {shown}")

    def _explain(self, error: Exception, value: Any) -> Exception | None:
        return error if isinstance(error, ShapeError) else None


def _fits(value: float, dtype: torch.dtype) -> bool:
    """Whether tensors of a dtype can hold a number."""
    if is_integral(dtype):
        smallest, largest = range_of(dtype)
        return smallest <= value <= largest and value == int(value)
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _too_long(n: int, length: int) -> None:
    raise ShapeError(f"expected at most {n} items, got {length}")


class Softmax(Block):
    """A sequence of scalars as weights that sum to one.

    >>> import weft.blocks as wb
    >>> (wb.Map(wb.Scalar()) >> wb.Softmax()).eval_one([0, 0], tolist=True)
    [0.5, 0.5]
    """

    _input_classes = (SequenceType, TupleType)

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=name)

    def _update(self) -> None:
        if self.input_type is not None:
            item = items_of(self, self.input_type, objects=False)
            check_scalar(self, "input", item, self.input_type)
            set_type(self, "output", SequenceType(item))

    def _emit(self, e: Emitter, x: Value) -> Value:
        given, output = self._known("input"), self._known("output")
        assert isinstance(output, SequenceType)
        spec = spec_of(output.element_type)
        items = e.let(e.listed(x, given))
        out = e.let("[]")
        where = self._path()
        with e.under(f"if {items}:"):
            total = Kind("Softmax.total", _log_sum_exp, outputs=(spec,), many=spec, where=where)
            (norm,) = e.call(("softmax total", spec), lambda: total, many=items)
            share = Kind("Softmax", _share, (spec, spec), outputs=(spec,), where=where)
            item = e.fresh()
            with e.under(f"for {item} in {items}:"):
                (weight,) = e.call(("softmax", spec), lambda: share, [item, norm])
                e.line(f"{out}.append({weight})")
        return out


def _log_sum_exp(rows: Any) -> Sequence[Tensor]:
    items = Children(rows, (KEY,))
    top = items.map(lambda one: one[KEY].detach()).max()
    return [top + items.map(lambda one: (one[KEY] - top).exp()).sum().log()]


def _share(score: Tensor, total: Tensor) -> Sequence[Tensor]:
    return [(score - total).exp()]


def check_scalar(block: Block, side: str, type: ResultType | None, shown: ResultType | None) -> None:
    if not isinstance(type, TensorType) or type.shape or not type.dtype.is_floating_point:
        raise block._mismatch(f"{side} type: expected floating point numbers without dimensions, got {shown!r}")


class Attend(Block):
    """The sum of values weighted by the softmax of scores; zeros for an empty sequence.

    On a sequence, `score` and `value` (by default the item itself) are blocks on one item. On `(query, sequence)`, `score` is
    a block on `(query, item)`.

    >>> import weft.blocks as wb
    >>> score = wb.Function(lambda x: x.sum())
    >>> (wb.Map(wb.Vector(2)) >> wb.Attend(score)).eval_one([[1, 0], [0, 1]])
    tensor([0.5000, 0.5000])
    """

    def __init__(self, score: Any, value: Any = None, *, name: str | None = None) -> None:
        super().__init__([score, *([] if value is None else [value])], name=name)

    def _sequence(self) -> tuple[ResultType | None, ResultType | None]:
        """The types of query and sequence; no query where the input is the sequence."""
        given = self.input_type
        if isinstance(given, TupleType) and len(given) == 2 and _can_be_items(given[1]):
            if given[0] != given[1] or isinstance(given[1], SequenceType):
                return given[0], given[1]
        return None, given

    def _update(self) -> None:
        score, value = self.subblocks[0], next(iter(self.subblocks[1:]), None)
        if score.output_type is not None:
            check_scalar(score, "output", score.output_type, score.output_type)
        query, sequence = self._sequence()
        if sequence is None:
            return
        item = items_of(self, sequence)
        set_type(score, "input", item if query is None else TupleType(query, item))
        if value is not None:
            set_type(value, "input", item)
        kept = item if value is None else value.output_type
        if kept is not None:
            if not isinstance(kept, TensorType) or kept.ragged or not kept.dtype.is_floating_point:
                raise self._mismatch(f"the values: expected tensors of floating point numbers, got {kept!r}")
            set_type(self, "output", kept)

    def _emit(self, e: Emitter, x: Value) -> Writing:
        query, sequence = self._sequence()
        assert sequence is not None
        asked, items = (None, x) if query is None else x
        asked = asked if query is None else e.settled(asked, query)
        output = self._known("output")
        assert isinstance(output, TensorType)
        spec, score = spec_of(output), spec_of(self.subblocks[0]._known("output"))
        assert output.size is not None
        packed = TensorSpec((1 + output.size,), output.dtype)
        pack = Kind("Attend.item", _pack, (score, spec), outputs=(packed,), weight=0, where=self._path())
        rows = e.let("[]")
        with e.loop(items, sequence) as item:
            item = e.settled(item, items_of(self, sequence))
            scored = yield self.subblocks[0], item if query is None else (asked, item)
            valued = (yield self.subblocks[1], item) if len(self.subblocks) > 1 else item
            (row,) = e.call(("attend item", score, spec), lambda: pack, [scored, valued])
            e.line(f"{rows}.append({row})")
        out = e.variables(output)
        with e.under(f"if {rows}:"):
            kind = Kind("Attend", _attending(output.shape), outputs=(spec,), many=packed, where=self._path())
            (found,) = e.call(("attend", score, spec), lambda: kind, many=rows)
            e.assign(out, found, output)
        with e.under("else:"):
            e.assign(out, zeros_of(e, output), output)
        return out

    def _explain(self, error: Exception, value: Any) -> Exception | None:
        query, _ = self._sequence()
        return not_iterable(value if query is None else value[1])

    def _labels(self) -> Any:
        yield from zip(("score", "value"), self.subblocks, strict=False)


def _can_be_items(type: ResultType) -> bool:
    return isinstance(type, SequenceType | PyObjectType | TupleType)


def _pack(score: Tensor, value: Tensor) -> Sequence[Tensor]:
    return [torch.cat([score.reshape(1).to(value.dtype), value.reshape(-1)])]


def _attending(shape: tuple[int, ...]) -> Callable[[Any], Sequence[Tensor]]:
    def body(rows: Any) -> Sequence[Tensor]:
        items = Children(rows, (KEY,))
        found: Tensor = items.softmax_sum(lambda one: one[KEY][0], lambda one: one[KEY][1:])
        return [found.reshape(shape)]

    return body
