"""Layer normalisation in the words of kernels: means over rows, and pointwise operations.

    mean = row_mean(x)    rstd = row_rstd(x, eps)    y = (x - mean) * rstd * weight + bias

    with g = dy * weight and n = (x - mean) * rstd:    dx = (g - row_mean(g) - n * row_mean(g * n)) * rstd

(Ba, Kiros and Hinton, "Layer Normalization", 2016.) A normalisation of anything but whole rows is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from weft.graph import ops
from weft.graph.tape import Rows, Value, replace, walk
from weft.run.split import Piece
from weft.run.views import is_free

aten = torch.ops.aten


def row_mean(x: Tensor) -> Tensor:
    """The mean of each row: what the kernel computes, in torch."""
    return x.flatten(1).mean(1, keepdim=True)


def row_rstd(x: Tensor, eps: float) -> Tensor:
    """One over the standard deviation of each row: what the kernel computes, in torch."""
    return (x.flatten(1).var(1, correction=0, keepdim=True) + eps).rsqrt()


class _Rewriter:
    def __init__(self) -> None:
        self.instead: dict[int, Value] = {}
        self.values: list[Value] = []

    def new(self, target: Any, args: tuple[Any, ...], shape: Any, dtype: Any) -> Value:
        value = Value(f"norm{len(self.values)}", target, args, {}, shape, dtype)
        self.values.append(value)
        return value

    def seen(self, item: Any) -> Any:
        return replace(item, self._now)

    def _now(self, value: Value) -> Value:
        """What stands for a value; a view of something that was replaced is made anew."""
        if id(value) not in self.instead and is_free(value):
            args = self.seen(value.args)
            same = all(a is b for a, b in zip(walk(args), walk(value.args), strict=True))
            self.instead[id(value)] = (
                value if same else Value(value.name, value.target, args, value.kwargs, value.shape, value.dtype, value.constant)
            )
        return self.instead.get(id(value), value)

    def copy(self, value: Value) -> None:
        args, kwargs = self.seen(value.args), self.seen(value.kwargs)
        copied = Value(value.name, value.target, args, kwargs, value.shape, value.dtype, value.constant)
        self.instead[id(value)] = copied
        self.values.append(copied)

    def part(self, value: Value, target: Any, args: tuple[Any, ...]) -> Value:
        """What stands for one result of a normalisation."""
        made = Value(value.name, target, args, {}, value.shape, value.dtype)
        self.instead[id(value)] = made
        self.values.append(made)
        return made

    def forward(self, norm: Value, parts: dict[int, Value]) -> None:
        x, _, weight, bias, eps = self.seen(norm.args)
        one = (*((x.shape or ())[:1]), 1)
        mean = self.part(parts[1], row_mean, (x,)) if 1 in parts else self.new(row_mean, (x,), one, x.dtype)
        rstd = self.part(parts[2], row_rstd, (x, eps)) if 2 in parts else self.new(row_rstd, (x, eps), one, x.dtype)
        if 0 not in parts:
            return
        steps: list[tuple[Any, Any]] = [(aten.sub.Tensor, mean), (aten.mul.Tensor, rstd)]
        steps += [(aten.mul.Tensor, weight)] * (weight is not None) + [(aten.add.Tensor, bias)] * (bias is not None)
        so_far = x
        for target, operand in steps[:-1]:
            so_far = self.new(target, (so_far, operand), x.shape, x.dtype)
        self.part(parts[0], steps[-1][0], (so_far, steps[-1][1]))

    def backward(self, norm: Value, parts: dict[int, Value]) -> None:
        dy, x, _, mean, rstd, weight, *_ = self.seen(norm.args)
        shape, dtype, one = x.shape, x.dtype, (*((x.shape or ())[:1]), 1)

        def make(target: Any, *args: Any) -> Value:
            return self.new(target, args, one if target is row_mean else shape, dtype)

        g = dy if weight is None else make(aten.mul.Tensor, dy, weight)
        n = make(aten.mul.Tensor, make(aten.sub.Tensor, x, mean), rstd)
        along = make(row_mean, make(aten.mul.Tensor, g, n))
        rest = make(aten.sub.Tensor, make(aten.sub.Tensor, g, make(row_mean, g)), make(aten.mul.Tensor, n, along))
        self.part(parts[0], aten.mul.Tensor, (rest, rstd))


def _of_rows(norm: Value) -> bool:
    """Whether whole rows are normalised, and of a backward operation only the rows' gradient is asked for."""
    backward = norm.target is aten.native_layer_norm_backward.default
    x = norm.args[1 if backward else 0]
    shape, sizes = list(x.shape or ()), list(norm.args[2 if backward else 1])
    whole = len(shape) == 2 and isinstance(shape[0], Rows) and sizes == shape[1:]
    return whole and (not backward or list(norm.args[7]) == [True, False, False])


def without_norms(piece: Piece, stores: Iterable[Value]) -> tuple[Piece, tuple[Value, ...]]:
    """A piece whose normalisations are made of simpler operations, and what it stores; the given one is not changed."""
    norms = (aten.native_layer_norm.default, aten.native_layer_norm_backward.default)
    stores = tuple(stores)
    if not any(value.target in norms and _of_rows(value) for value in piece.values):
        return piece, stores
    rewriter = _Rewriter()
    parts: dict[int, dict[int, Value]] = {}
    for value in piece.values:
        if ops.is_getitem(value.target):
            parts.setdefault(id(value.args[0]), {})[value.args[1]] = value
    for value in piece.values:
        if value.target is norms[0] and _of_rows(value):
            rewriter.forward(value, parts.get(id(value), {}))
        elif value.target is norms[1] and _of_rows(value):
            rewriter.backward(value, parts.get(id(value), {}))
        elif id(value) not in rewriter.instead:
            rewriter.copy(value)
    gives, kept = rewriter.seen(piece.gives), rewriter.seen(stores)
    return Piece(piece.stage, rewriter.values, piece.takes, gives), kept
