"""Peepholes on a tape: fewer operations, same numbers.

- a chain of reshapes is one reshape, or nothing where the shape comes back;
- `t(t(x))` is `x`; expanding to the same shape is nothing;
- a matrix product with rows of zeros is computed once, not for every row: vertices without children pay for no recurrence;
- a product that has rows as columns is turned (`weft.graph.turned`);
- adding zeros is nothing;
- equal operations are done once (never those that draw random numbers).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from weft.graph import ops
from weft.graph.joins import join_slice_gradients
from weft.graph.segments import segment_sum
from weft.graph.strided import strided, strided_scatter
from weft.graph.tape import Tape, Value, operands, prune, replace
from weft.graph.turned import turned_product

aten = torch.ops.aten
_SAME_AS: dict[Any, Any] = {
    aten.as_strided.default: strided,
    aten.as_strided_scatter.default: strided_scatter,
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
}
"""Operations that are better seen as others: a copy of strides with known sizes, a cut as a view."""
_ZEROS = frozenset({aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default})


def simplify(tape: Tape) -> None:
    """Apply all peepholes, in place."""
    _absent_gradients(tape)
    _rewrite(tape)
    prune(tape)
    join_slice_gradients(tape)
    _separate_row_gradients(tape)
    prune(tape)


def _absent_gradients(tape: Tape) -> None:
    """A gradient that is nothing but zeros means that the input was not used: there is none, as in PyTorch."""
    for name, value in tape.outputs.items():
        if value is not None and isinstance(name, tuple) and name[0] == "grad" and value.target in _ZEROS:
            tape.outputs[name] = None


def _rewrite(tape: Tape) -> None:
    """One pass in order: each operation sees simplified operands."""
    for value in tape.values:
        value.target = _SAME_AS.get(value.target, value.target)
    instead: dict[int, Value] = {}
    known: dict[Hashable, Value] = {}
    zero: set[int] = set()
    kept: list[Value] = []
    for value in tape.values:
        value.args = replace(value.args, lambda v: instead.get(id(v), v))
        value.kwargs = replace(value.kwargs, lambda v: instead.get(id(v), v))
        kept += _cheaper_product(value, zero)
        kept += turned_product(value)
        better = _simpler(value, zero)
        if better is value:
            is_alone = value.constant is not None or ops.is_random(value.target)
            better = value if is_alone else known.setdefault(_key(value), value)
        if better is not value:
            instead[id(value)] = better
            continue
        if _is_zero(value, zero):
            zero.add(id(value))
        kept.append(value)
    tape.values = kept
    tape.outputs = {name: None if v is None else instead.get(id(v), v) for name, v in tape.outputs.items()}


def _key(value: Value) -> Hashable:
    def hashable(item: Any) -> Hashable:
        if isinstance(item, Value):
            return ("value", id(item))
        if isinstance(item, tuple | list):
            return tuple(hashable(part) for part in item)
        if isinstance(item, dict):
            return tuple((name, hashable(part)) for name, part in item.items())
        return (type(item).__name__, repr(item))

    return (value.target, hashable(value.args), hashable(value.kwargs))


def _simpler(value: Value, zero: set[int]) -> Any:
    target = value.target
    if target in ops.RESHAPES:
        return _one_reshape(value)
    if target is aten.expand.default and value.shape == value.args[0].shape:
        return value.args[0]
    if target is aten.t.default and value.args[0].target is aten.t.default:
        return value.args[0].args[0]
    if target is aten.add.Tensor and not value.kwargs:
        first, second = value.args
        for one, other in ((first, second), (second, first)):
            if isinstance(one, Value) and id(one) in zero and isinstance(other, Value):
                if other.shape == value.shape and other.dtype == value.dtype:
                    return other
    if target is aten.index_add.default and value.args[1] == 0 and id(value.args[0]) in zero and not value.kwargs:
        if value.args[2].target is None and len(value.args) == 4 and value.rows is not None:
            value.target, value.args = segment_sum, (value.args[3], value.args[2], value.rows)
            return value
    if target is aten.cat.default and len(value.args[0]) == 1:
        return value.args[0][0]
    if target in (aten.clone.default, aten._to_copy.default) and not value.kwargs and value.args[0].dtype == value.dtype:
        return value.args[0]
    return value


def _one_reshape(value: Value) -> Any:
    base = value.args[0]
    while base.target is aten.reshape.default:
        base = base.args[0]
    if base.shape == value.shape:
        return base
    value.target, value.args, value.kwargs = aten.reshape.default, (base, list(value.shape or ())), {}
    return value


def _cheaper_product(value: Value, zero: set[int]) -> list[Value]:
    """A product with rows of zeros is the same for every row: zeros, or NaN where the other factor is not finite.

    The value becomes a view of what one row gives; the operations that compute this are returned.
    """
    if value.target is not aten.mm.default or value.dtype is None or not value.dtype.is_floating_point:
        return []
    rows, columns = value.shape or ()
    first, second = value.args
    if id(first) in zero and first.rows is not None and second.rows is None:
        turned = Value(f"{value.name}_turned", aten.t.default, (second,), {}, (second.shape or ())[::-1], value.dtype)
        size = next(iter(second.shape or ()))
        none = Value(f"{value.name}_none", aten.new_zeros.default, (second, [size]), {}, (size,), value.dtype)
        once = Value(f"{value.name}_once", aten.mv.default, (turned, none), {}, (columns,), value.dtype)
        value.target, value.args = aten.expand.default, (once, [rows, columns])
        return [turned, none, once]
    if id(second) in zero and second.rows is not None and first.target is aten.t.default and first.args[0].rows is not None:
        total = Value(f"{value.name}_sum", aten.sum.dim_IntList, (first.args[0], [0], True), {}, (1, rows), value.dtype)
        none = Value(f"{value.name}_none", aten.mul.Tensor, (total, 0.0), {}, (1, rows), value.dtype)
        column = Value(f"{value.name}_column", aten.reshape.default, (none, [rows, 1]), {}, (rows, 1), value.dtype)
        value.target, value.args = aten.expand.default, (column, [rows, columns])
        return [total, none, column]
    return []


def _is_zero(value: Value, zero: set[int]) -> bool:
    if value.target in _ZEROS:
        return True
    if ops.is_view(value.target) and value.target not in ops.TUPLE_VIEWS:
        return all(id(operand) in zero for operand in operands(value))
    if ops.is_getitem(value.target):
        source = value.args[0]
        return source.target in ops.TUPLE_VIEWS and id(source.args[0]) in zero
    if value.target is aten.cat.default:
        return all(id(operand) in zero for operand in operands(value))
    return False


def _separate_row_gradients(tape: Tape) -> None:
    """Backward operations that return row and parameter gradients together become two, one for each, so that the rows' part can
    run level by level and the parameters' part once."""
    values: list[Value] = []
    twins: dict[int, Value] = {}
    for value in tape.values:
        mask_at = ops.MASKED_BACKWARDS.get(value.target) if value.target is not None else None
        if mask_at is not None:
            mask = list(value.args[mask_at])
            rest = [False, *mask[1:]]
            if mask[0] and any(rest):
                twin = Value(f"{value.name}_sums", value.target, _with(value.args, mask_at, rest))
                value.args = _with(value.args, mask_at, [True] + [False] * len(rest[1:]))
                twins[id(value)] = twin
                values.append(twin)
        elif ops.is_getitem(value.target) and id(value.args[0]) in twins and value.args[1] > 0:
            value.args = (twins[id(value.args[0])], value.args[1])
        values.append(value)
    tape.values = values


def _with(args: tuple[Any, ...], at: int, item: Any) -> tuple[Any, ...]:
    return (*args[:at], item, *args[at + 1 :])
