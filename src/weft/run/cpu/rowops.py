"""Operations of a walk that are neither pointwise nor products with a matrix.

Some stay within a row: softmax, maxima, comparisons. Others go over all rows: sums, and products of rows with rows, as
gradients of biases and of weights are; a piece that contains one takes all rows through each operation at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from weft.graph import ops
from weft.graph.tape import Value
from weft.run import formulas
from weft.run.cpu.formulas import WORDS, pointwise
from weft.run.rowview import place_of, row_width

if TYPE_CHECKING:
    from weft.run.cpu.walktext import WalkText

aten = torch.ops.aten


LONGEST = 256
"""Numbers of a row from which on torch is faster within it."""


class NoWalk(Exception):
    """The piece contains something that is no part of a walk."""


def over_all_rows(value: Value) -> bool:
    """Whether an operation adds up different rows."""
    if value.rows is not None or value.target not in (aten.sum.dim_IntList, aten.mm.default):
        return False
    return any(isinstance(arg, Value) and arg.rows is not None for arg in value.args)


def row_operation(value: Value) -> Callable[[WalkText, Value], None] | None:
    """What writes an operation, if it is one of these."""
    if over_all_rows(value):
        return _sum if value.target is aten.sum.dim_IntList else _product
    if ops.is_getitem(value.target) and value.args[0].target is aten.max.dim:
        return _maximum
    if value.dtype is torch.bool and formulas.has_formula(value, WORDS):
        return _comparison
    return _WITHIN.get(value.target)


def _kind(value: Value) -> str:
    if value.rows is None:
        raise NoWalk
    return value.rows.kind


def _whole_row(value: Value, dim: object) -> None:
    """What is done along a dimension must be done along all of a row."""
    size = None if not isinstance(dim, int) or value.shape is None else value.shape[dim]
    if not isinstance(size, int) or not 0 < size <= LONGEST or size != row_width(value):
        raise NoWalk


def _in_row(name: str) -> Callable[[WalkText, Value], None]:
    def write(text: WalkText, value: Value) -> None:
        given = value.args[0]
        _whole_row(given, value.args[1] if len(value.args) > 1 else None)
        kind = _kind(given)
        rows, apart, width = text.rows_at(given, kind)
        text.lines.append(f"by->{name}({text.place(value)}, {rows}, {kind}, {width}, {apart});")

    return write


def _in_row_back(name: str) -> Callable[[WalkText, Value], None]:
    def write(text: WalkText, value: Value) -> None:
        grad, result, dim, _ = value.args
        _whole_row(result, dim)
        kind = _kind(result)
        grads, apart, width = text.rows_at(grad, kind)
        results, apart_results, _ = text.rows_at(result, kind)
        text.lines.append(f"by->{name}({text.place(value)}, {grads}, {apart}, {results}, {apart_results}, {kind}, {width});")

    return write


def _both_results(text: WalkText, value: Value) -> None:
    """A maximum and its place are computed when each is asked for."""
    _whole_row(value.args[0], value.args[1])


def _maximum(text: WalkText, value: Value) -> None:
    given = value.args[0].args[0]
    kind = _kind(given)
    rows, apart, width = text.rows_at(given, kind)
    name = "row_argmax" if value.args[1] else "row_max"
    text.lines.append(f"by->{name}({text.place(value)}, {rows}, {kind}, {width}, {apart});")


def _comparison(text: WalkText, value: Value) -> None:
    kind, width = _kind(value), row_width(value) or 0

    def read(operand: Value) -> str:
        place = place_of(operand)
        if place is None or place.width not in (1, width) or operand.dtype != text.dtype:
            raise NoWalk
        if operand.rows is None:
            start, apart = f"{text.address(place.base)} + {place.offset}", 0
        else:
            start, apart, _ = text.rows_at(operand, kind)
        return f"({start})[i * {apart}{'' if place.width == 1 else ' + j'}]"

    formula = pointwise(value, read)
    text.lines.append(f"EACH(i, {kind}) EACH(j, {width}) {text.place(value)}[i * {width} + j] = {formula};")


def _sum(text: WalkText, value: Value) -> None:
    given, dims = value.args[:2]
    if list(dims) != [0] or value.kwargs:
        raise NoWalk
    kind = _kind(given)
    rows, apart, width = text.rows_at(given, kind)
    text.lines.append(f"by->sum_rows({text.place(value)}, {rows}, {kind}, {width}, {apart});")


def _product(text: WalkText, value: Value) -> None:
    turned, right = value.args
    if turned.target is not aten.t.default:
        raise NoWalk
    kind = _kind(right)
    left, apart_left, height = text.rows_at(turned.args[0], kind)
    rows, apart, width = text.rows_at(right, kind)
    sizes = f"{kind}, {height}, {width}, {apart_left}, {apart}"
    text.lines.append(f"by->multiply_rows(product, {text.place(value)}, {left}, {rows}, {sizes});")


_WITHIN: dict[Any, Callable[[WalkText, Value], None]] = {
    aten._softmax.default: _in_row("row_softmax"),
    aten._log_softmax.default: _in_row("row_log_softmax"),
    aten._softmax_backward_data.default: _in_row_back("row_softmax_back"),
    aten._log_softmax_backward_data.default: _in_row_back("row_log_softmax_back"),
    aten.argmax.default: _in_row("row_argmax"),
    aten.max.dim: _both_results,
}
