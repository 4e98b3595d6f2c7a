"""Reading a view as a place in a row: where the part of one row that a value names lies in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from weft.graph import ops
from weft.graph.tape import Value, operands
from weft.run.views import bases, is_free

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Place:
    """`width` consecutive numbers from `offset` on, in each row of `base` (or in `base` itself, if it has no rows)."""

    base: Value
    offset: int
    width: int


def row_width(value: Value) -> int | None:
    """Numbers in one row; None where rows are not simply the first dimension."""
    shape = value.shape
    if shape is None or (value.rows is not None and (value.row_dim != 0 or value.rows.times != 1)):
        return None
    return math.prod(size for size in shape if isinstance(size, int))


def place_of(value: Value) -> Place | None:
    """Follow views down to memory; None where a row's numbers are not consecutive.

    A view that is the same for every row, such as a row of a parameter, is memory of its own where it cannot be followed.
    """
    offset, width = 0, row_width(value)
    if width is None:
        return None
    shared: Place | None = None
    while is_free(value):
        if value.rows is None and shared is None:
            shared = Place(value, offset, width)
        step = _step(value)
        if step is None:
            return shared
        value, more, alone = step
        # Every part of a repeated number is that number: how far into the repetition a view starts does not matter.
        offset, width = (more, 1) if alone else (offset + more, width)
    return None if row_width(value) is None else Place(value, offset, width)


def reads_in_place(reader: Value, value: Value) -> bool:
    """Whether a pointwise operation reads of a value only parts as wide as what it computes: no single number for a row."""
    read = [operand for operand in operands(reader) if any(base is value for base in bases(operand))]
    places = [place_of(operand) for operand in read]
    return all(place is not None and place.width > 1 for place in places)


def _step(value: Value) -> tuple[Value, int, bool] | None:
    """The viewed value, how far into its row the view starts, and whether it repeats a single number."""
    target = value.target
    if ops.is_getitem(target):
        cut = value.args[0]
        if cut.target not in (aten.split.Tensor, aten.split_with_sizes.default):
            return None
        source, sizes = cut.args[0], cut.args[1]
        if row_width(source) is None or not cuts_rows(source, _dim(cut, 2)):
            return None
        before = sum(sizes[: value.args[1]]) if isinstance(sizes, list | tuple) else sizes * value.args[1]
        return source, before * _inner(source, _dim(cut, 2)), False
    source = value.args[0]
    if not isinstance(source, Value):
        return None
    width, of_source = row_width(value), row_width(source)
    if width is None or of_source is None:
        return None
    if target is aten.reshape.default and width == of_source and (value.rows is None) == (source.rows is None):
        return source, 0, False
    if target is aten.expand.default and (of_source == 1 or width == of_source):
        return source, 0, of_source == 1  # rows may begin here: the same numbers for every row
    if (value.rows is None) != (source.rows is None):
        return None
    if target not in (aten.select.int, aten.slice.Tensor) or source.rows is None or not cuts_rows(source, _dim(value, 1)):
        return None
    dim = _dim(value, 1)
    size = (source.shape or ())[dim]
    assert isinstance(size, int)
    if target is aten.select.int:
        return source, (value.args[2] % size) * _inner(source, dim), False
    if len(value.args) > 4 and value.args[4] != 1:
        return None
    start = value.args[2] if len(value.args) > 2 and value.args[2] is not None else 0
    return source, ops.slice_bound(start, size) * _inner(source, dim), False


def _dim(value: Value, at: int) -> int:
    return int(value.args[at]) if len(value.args) > at else 0


def cuts_rows(value: Value, dim: int) -> bool:
    """Whether cutting along a dimension leaves each row's numbers consecutive: there is nothing to repeat before it."""
    return dim >= 1 and all(size == 1 for size in (value.shape or ())[1:dim])


def _inner(value: Value, dim: int) -> int:
    """How far apart neighbours along a dimension of a row are."""
    return math.prod(size for size in (value.shape or ())[dim + 1 :] if isinstance(size, int))
