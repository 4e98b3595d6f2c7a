"""Reductions over sequences of any length, each one operation; and what is noted on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.api.children import Children
from weft.blocks.block import Block
from weft.blocks.emit import Emitter, Value
from weft.blocks.inference import set_type
from weft.blocks.kinds import Kind, spec_of
from weft.blocks.leaves import zeros_of
from weft.blocks.sequences import items_of
from weft.blocks.types import PyObjectType, SequenceType, TensorType, TupleType, VoidType
from weft.errors import TypeMismatch
from weft.graph.calls import KEY


class _Reduction(Block):
    """All items of a sequence of tensors at once. One item is itself, no item gives zeros."""

    _input_classes = (SequenceType, TupleType)
    _output_classes = (TensorType,)
    _only_floating = False
    _reduced: str
    """The method of `Children` that does it."""
    _weight = 0
    """What it adds to the depth besides the levels of a tree over the items."""

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=name)

    def _update(self) -> None:
        if self.input_type is None:
            return
        item = items_of(self, self.input_type, objects=False)
        if not isinstance(item, TensorType) or item.ragged:
            raise self._mismatch(f"input type: expected a sequence of tensors, got {self.input_type!r}")
        if self._only_floating and not item.dtype.is_floating_point:
            raise self._mismatch(f"input type: expected floating point numbers, got {self.input_type!r}")
        set_type(self, "output", item)

    def _kind(self) -> Kind:
        spec, reduced = spec_of(self._known("output")), self._reduced

        def body(rows: Any) -> Sequence[Tensor]:
            return [getattr(Children(rows, (KEY,)), reduced)().to(spec.dtype)]

        def in_floats(rows: Any) -> Sequence[Tensor]:
            """The extremes of integers: the engine's share gradients among ties, which needs fractions."""
            items = Children(rows, (KEY,)).map(lambda one: one[KEY].double())
            return [getattr(items, reduced)().to(spec.dtype)]

        def in_halves(rows: Any) -> Sequence[Tensor]:
            """The same where doubles are too short: the upper halves first, then the lower ones of those that have it."""
            items = Children(rows, (KEY,))
            upper = getattr(items.map(lambda one: (one[KEY] >> 32).double()), reduced)()
            beaten = -1.0 if reduced == "max" else 2.0**32

            def lower_half(one: Any) -> Tensor:
                lower = (one[KEY] & 0xFFFFFFFF).double()
                return torch.where((one[KEY] >> 32).double() == upper, lower, beaten)

            lower = getattr(items.map(lower_half), reduced)()
            return [(upper.long() << 32) + lower.long()]

        if reduced in ("max", "min") and not spec.dtype.is_floating_point:
            body = in_halves if spec.dtype == torch.int64 else in_floats

        name, where = type(self).__name__, self._path()
        return Kind(name, body, outputs=(spec,), many=spec, weight=self._weight, where=where, pairwise=True)

    def _emit(self, e: Emitter, x: Value) -> Value:
        output = self._known("output")
        items = e.let(e.listed(x, self._known("input")))
        key = ("reduction", type(self).__name__, output)
        if self._weight:
            return e.call(key, self._kind, many=items)[0]
        out = e.variables(output)
        with e.under(f"if len({items}) > 1:"):
            found = e.call(key, self._kind, many=items)[0]
            e.assign(out, found, output)
        with e.under(f"elif {items}:"):
            e.assign(out, e.unpack(e.let(f"{items}[0]"), output), output)
        with e.under("else:"):
            e.assign(out, zeros_of(e, output), output)
        return out


class Sum(_Reduction):
    """The sum of a sequence of tensors.

    >>> import weft.blocks as wb
    >>> (wb.Map(wb.Vector(2)) >> wb.Sum()).eval_one([[1, 2], [3, 4]])
    tensor([4., 6.])
    """

    _reduced = "sum"


class Mean(_Reduction):
    """The mean of a sequence of tensors; zeros where there is none.

    >>> import weft.blocks as wb
    >>> (wb.Map(wb.Scalar()) >> wb.Mean()).eval_one([1, 2])
    tensor(1.5000)
    """

    _only_floating = True
    _reduced = "mean"
    _weight = 1


class Max(_Reduction):
    """The largest, number by number. Items that tie share the gradient.

    >>> import weft.blocks as wb
    >>> (wb.Map(wb.Vector(2)) >> wb.Max()).eval_one([[1, 4], [3, 2]])
    tensor([3., 4.])
    """

    _reduced = "max"


class Min(_Reduction):
    """The smallest, number by number. Items that tie share the gradient.

    >>> import weft.blocks as wb
    >>> (wb.Map(wb.Vector(2)) >> wb.Min()).eval_one([[1, 4], [3, 2]])
    tensor([1., 2.])
    """

    _reduced = "min"


class Metric(Block):
    """Notes a tensor under a name: `root.metrics[name]` has a row for each time. With `(tensor, label)`, the label too.

    >>> import torch, weft.blocks as wb
    >>> net = wb.Scalar() >> wb.AllOf(wb.Metric("seen"), wb.Function(torch.neg)) >> wb.GetItem(1)
    >>> net.eval_one(2), net.metrics["seen"]
    (tensor(-2.), tensor([2.]))
    """

    _input_classes = (TensorType, TupleType)
    _output_classes = (VoidType,)

    def __init__(self, metric_name: str, *, name: str | None = None) -> None:
        super().__init__(name=name)
        if not isinstance(metric_name, str):
            raise TypeMismatch(f"Metric: metric_name: expected a string, got {metric_name!r}")
        self._metric = metric_name
        set_type(self, "output", VoidType())

    def _update(self) -> None:
        given = self.input_type
        noted = given[0] if isinstance(given, TupleType) and len(given) else given
        if isinstance(noted, TensorType) and noted.ragged:
            raise self._mismatch(f"input type: expected a tensor of one shape for all examples, got {given!r}")
        if isinstance(given, TupleType):
            if len(given) != 2 or not isinstance(given[0], TensorType) or not isinstance(given[1], PyObjectType):
                raise self._mismatch(f"input type: expected a tensor, or a tensor and a label, got {given!r}")

    def _emit(self, e: Emitter, x: Value) -> Value:
        given = self._known("input")
        labelled = isinstance(given, TupleType)
        tensor, type = (x[0], given[0]) if isinstance(given, TupleType) else (x, given)
        number = e.metric(self._metric, type, labelled, self)
        e.line(f"M{number}({e.reference(tensor)})")
        if labelled:
            e.line(f"L{number}({x[1]})")
        return None
