"""Operations in the words of kernels: sums, means and maxima over rows, and pointwise operations.

    softmax(x) = e / row_sum(e),  e = exp(x - row_max(x))          log_softmax(x) = (x - row_max(x)) - log(row_sum(e))
    norm(x) = sqrt(row_sum(x * x))                                 x @ w, one column = row_sum(x * w)

Layer normalisation (Ba, Kiros and Hinton, "Layer Normalization", 2016), with g = dy * weight and n = (x - mean) * rstd:

    y = (x - row_mean(x)) * row_rstd(x, eps) * weight + bias      dx = (g - row_mean(g) - n * row_mean(g * n)) * rstd

What reduces anything but whole rows is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from weft.graph import ops
from weft.graph.tape import Rows, Value, operands, replace, walk
from weft.run.rowview import row_width
from weft.run.split import Piece
from weft.run.views import is_free

aten = torch.ops.aten


def row_sum(x: Tensor) -> Tensor:
    """The sum of each row: what the kernel computes, in torch."""
    return x.flatten(1).sum(1, keepdim=True)


def row_max(x: Tensor) -> Tensor:
    """The largest number of each row: what the kernel computes, in torch."""
    return x.flatten(1).amax(1, keepdim=True)


def row_mean(x: Tensor) -> Tensor:
    """The mean of each row: what the kernel computes, in torch."""
    return x.flatten(1).mean(1, keepdim=True)


def row_rstd(x: Tensor, eps: float) -> Tensor:
    """One over the standard deviation of each row: what the kernel computes, in torch."""
    return (x.flatten(1).var(1, correction=0, keepdim=True) + eps).rsqrt()


OVER_ROWS = (row_sum, row_max, row_mean, row_rstd)


def segment_max(rows: Tensor, seg: Tensor, segments: int) -> Tensor:
    """The largest of each vertex's edges, zero over none: what the kernel computes, in torch."""
    places = seg.long().view(-1, *[1] * (rows.dim() - 1)).expand_as(rows)
    return rows.new_zeros((segments, *rows.shape[1:])).scatter_reduce(0, places, rows, "amax", include_self=False)


def segment_min(rows: Tensor, seg: Tensor, segments: int) -> Tensor:
    """The smallest of each vertex's edges, zero over none: what the kernel computes, in torch."""
    return -segment_max(-rows, seg, segments)


class _Rewriter:
    def __init__(self) -> None:
        self.instead: dict[int, Value] = {}
        self.values: list[Value] = []

    def new(self, target: Any, args: tuple[Any, ...], shape: Any, dtype: Any) -> Value:
        value = Value(f"made{len(self.values)}", target, args, {}, shape, dtype)
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
        """What stands for one result of an operation."""
        made = Value(value.name, target, args, {}, value.shape, value.dtype)
        self.instead[id(value)] = made
        self.values.append(made)
        return made

    def over_row(self, target: Any, x: Value) -> Value:
        return self.new(target, (x,), (*((x.shape or ())[:1]), 1), x.dtype)

    def like(self, target: Any, x: Value, *args: Any) -> Value:
        return self.new(target, (x, *args), x.shape, x.dtype)

    # One result for one operation.

    def sum(self, value: Value) -> None:
        self.part(value, row_sum, (self.seen(value.args[0]),))

    def mean(self, value: Value) -> None:
        self.part(value, row_mean, (self.seen(value.args[0]),))

    def largest(self, value: Value) -> None:
        self.part(value, row_max, (self.seen(value.args[0]),))

    def norm(self, value: Value) -> None:
        x = self.seen(value.args[0])
        squares = self.over_row(row_sum, self.like(aten.mul.Tensor, x, x))
        self.part(value, aten.sqrt.default, (squares,))

    def softmax(self, value: Value) -> None:
        x = self.seen(value.args[0])
        e = self.like(aten.exp.default, self.like(aten.sub.Tensor, x, self.over_row(row_max, x)))
        self.part(value, aten.div.Tensor, (e, self.over_row(row_sum, e)))

    def log_softmax(self, value: Value) -> None:
        x = self.seen(value.args[0])
        moved = self.like(aten.sub.Tensor, x, self.over_row(row_max, x))
        total = self.over_row(row_sum, self.like(aten.exp.default, moved))
        self.part(value, aten.sub.Tensor, (moved, self.like(aten.log.default, total)))

    def softmax_backward(self, value: Value) -> None:
        g, y = self.seen(value.args[:2])
        both = self.like(aten.mul.Tensor, g, y)
        self.part(value, aten.mul.Tensor, (y, self.like(aten.sub.Tensor, g, self.over_row(row_sum, both))))

    def log_softmax_backward(self, value: Value) -> None:
        g, y = self.seen(value.args[:2])
        spread = self.like(aten.mul.Tensor, self.like(aten.exp.default, y), self.over_row(row_sum, g))
        self.part(value, aten.sub.Tensor, (g, spread))

    def product(self, value: Value) -> None:
        rows, matrix = self.seen(value.args)
        if row_width(value) == 1:
            self.part(value, row_sum, (self.like(aten.mul.Tensor, rows, matrix),))
        else:
            self.part(value, aten.mul.Tensor, (rows, matrix))

    def over_children(self, value: Value) -> None:
        _, _, seg, rows, how = self.seen(value.args)
        self.part(value, segment_max if how == "amax" else segment_min, (rows, seg))

    def layer_norm(self, norm: Value, parts: dict[int, Value]) -> None:
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

    def layer_norm_backward(self, norm: Value, parts: dict[int, Value]) -> None:
        dy, x, _, mean, rstd, weight, *_ = self.seen(norm.args)
        shape, dtype, one = x.shape, x.dtype, (*((x.shape or ())[:1]), 1)

        def make(target: Any, *args: Any) -> Value:
            return self.new(target, args, one if target is row_mean else shape, dtype)

        g = dy if weight is None else make(aten.mul.Tensor, dy, weight)
        n = make(aten.mul.Tensor, make(aten.sub.Tensor, x, mean), rstd)
        along = make(row_mean, make(aten.mul.Tensor, g, n))
        rest = make(aten.sub.Tensor, make(aten.sub.Tensor, g, make(row_mean, g)), make(aten.mul.Tensor, n, along))
        self.part(parts[0], aten.mul.Tensor, (rest, rstd))


def _reduces_rows(value: Value) -> bool:
    """Whether an operation `(x, dims, ...)` goes over all of each row, and no more."""
    shape = value.args[0].shape or ()
    dims = value.args[1] if len(value.args) > 1 else []
    dims = {dim % len(shape) for dim in ([dims] if isinstance(dims, int) else dims)}
    others = [size for dim, size in enumerate(shape) if dim not in dims]
    return len(shape) > 1 and _plain(value.args[0]) and 0 not in dims and all(size == 1 for size in others[1:])


def _plain(x: Value) -> bool:
    """Whether rows are the first dimension, of numbers that kernels add up."""
    return x.row_dim == 0 and x.rows is not None and x.rows.times == 1 and x.dtype is not None and x.dtype.is_floating_point


def _euclidean(value: Value) -> bool:
    """A norm `(x, order, dims, ...)`."""
    args = value.args
    order = args[1] if len(args) > 1 else 2
    return order == 2 and len(args) > 2 and bool(args[2]) and _reduces_rows(Value("", None, (args[0], args[2])))


def _of_results(value: Value) -> bool:
    """A derivative `(g, y, dim, ...)` of something that goes over all of each row."""
    return _reduces_rows(Value("", None, (value.args[1], value.args[2])))


def _over_children(value: Value) -> bool:
    """The largest or the smallest of each vertex's edges, zeros over none."""
    start, dim, _, rows, how = value.args
    empty = start.target is aten.new_zeros.default and value.kwargs.get("include_self") is False
    return empty and dim == 0 and how in ("amax", "amin") and rows.rows == Rows("e") and value.rows == Rows("n")


def _single(value: Value) -> bool:
    """A product with one column, or of single numbers."""
    rows, matrix = value.args[0], value.args[1]
    return matrix.rows is None and _plain(rows) and 1 in (row_width(rows), row_width(value))


def _of_rows(norm: Value) -> bool:
    """Whether whole rows are normalised, and of a backward operation only the rows' gradient is asked for."""
    backward = norm.target is aten.native_layer_norm_backward.default
    x = norm.args[1 if backward else 0]
    shape, sizes = list(x.shape or ()), list(norm.args[2 if backward else 1])
    whole = len(shape) == 2 and isinstance(shape[0], Rows) and sizes == shape[1:]
    return whole and (not backward or list(norm.args[7]) == [True, False, False])


Rule = tuple[Callable[[Value], bool], Callable[..., None]]

ONE_RESULT: dict[Any, Rule] = {
    aten.sum.dim_IntList: (_reduces_rows, _Rewriter.sum),
    aten.mean.dim: (_reduces_rows, _Rewriter.mean),
    aten.amax.default: (_reduces_rows, _Rewriter.largest),
    aten.linalg_vector_norm.default: (_euclidean, _Rewriter.norm),
    aten._softmax.default: (_reduces_rows, _Rewriter.softmax),
    aten._log_softmax.default: (_reduces_rows, _Rewriter.log_softmax),
    aten._softmax_backward_data.default: (_of_results, _Rewriter.softmax_backward),
    aten._log_softmax_backward_data.default: (_of_results, _Rewriter.log_softmax_backward),
    aten.scatter_reduce.two: (_over_children, _Rewriter.over_children),
    aten.mm.default: (_single, _Rewriter.product),
}
SEVERAL_RESULTS: dict[Any, Rule] = {
    aten.native_layer_norm.default: (_of_rows, _Rewriter.layer_norm),
    aten.native_layer_norm_backward.default: (_of_rows, _Rewriter.layer_norm_backward),
}


def _rule(value: Value, rules: dict[Any, Rule]) -> Callable[..., None] | None:
    suits, apply = rules.get(value.target, (None, None))
    return apply if suits is not None and suits(value) else None


def _only_started_from(piece: Piece) -> set[int]:
    """Zeros from which a maximum over children starts, and that nothing else reads."""
    rewritten = [value for value in piece.values if value.target is aten.scatter_reduce.two and _over_children(value)]
    others = [value for value in piece.values if not any(value is one for one in rewritten)]
    read = {id(operand) for value in (*others, *piece.gives) for operand in operands(value)} | {id(v) for v in piece.gives}
    return {id(value.args[0]) for value in rewritten} - read


def in_simpler_words(piece: Piece, stores: Iterable[Value]) -> tuple[Piece, tuple[Value, ...]]:
    """A piece made of operations that kernels know, as far as possible, and what it stores; the given one is not changed."""
    stores = tuple(stores)
    if not any(_rule(value, ONE_RESULT) or _rule(value, SEVERAL_RESULTS) for value in piece.values):
        return piece, stores
    rewriter = _Rewriter()
    parts: dict[int, dict[int, Value]] = {}
    for value in piece.values:
        if ops.is_getitem(value.target):
            parts.setdefault(id(value.args[0]), {})[value.args[1]] = value
    starts = _only_started_from(piece)
    for value in piece.values:
        if id(value) in starts:
            continue
        one, several = _rule(value, ONE_RESULT), _rule(value, SEVERAL_RESULTS)
        if one is not None:
            one(rewriter, value)
        elif several is not None:
            several(rewriter, value, parts.get(id(value), {}))
        elif id(value) not in rewriter.instead:
            rewriter.copy(value)
    gives, kept = rewriter.seen(piece.gives), rewriter.seen(stores)
    return Piece(piece.stage, rewriter.values, piece.takes, gives), kept
