"""Gradients of cut tensors: a sum of padded parts is one `cat`.

The derivative of a slice writes the gradient into zeros of the full size; with several slices these are added up. Where the
slices tile the tensor, the sum is their concatenation: no zeros, no additions.
"""

from __future__ import annotations

from collections import Counter

import torch

from weft.graph.ops import slice_bound
from weft.graph.tape import Rows, Tape, Value, operands

aten = torch.ops.aten


def join_slice_gradients(tape: Tape) -> None:
    """Rewrite sums of slice and select gradients that tile a dimension, in place."""
    uses = Counter(id(operand) for value in tape.values for operand in operands(value))
    uses.update(id(value) for value in tape.outputs.values() if value is not None)
    for value in tape.values:
        if value.target is aten.add.Tensor and not value.kwargs:
            parts = _parts(value, uses)
            if parts is not None:
                _rewrite(value, parts)
        elif value.target is aten.slice_backward.default:
            parts = _parts(value, uses)
            if parts is not None and len(parts) == 1:
                _rewrite(value, parts)


Part = tuple[int, int, int, Value]
"""Dimension, start, stop, and the gradient of that slice; a selection has stop == start."""


def _parts(value: Value, uses: Counter[int]) -> list[Part] | None:
    """The slices that a sum consists of, if it consists of nothing else."""
    found: list[Part] = []
    pending = [value]
    while pending:
        one = pending.pop()
        if one.target is aten.add.Tensor and not one.kwargs and (one is value or uses[id(one)] == 1):
            if not all(isinstance(arg, Value) for arg in one.args):
                return None
            pending.extend(one.args)
        elif one.target in (aten.slice_backward.default, aten.select_backward.default):
            part = _part(one)
            if part is None or one.shape != value.shape:
                return None
            found.append(part)
        else:
            return None
    return found


def _part(value: Value) -> Part | None:
    dim = value.args[2]
    size = (value.shape or ())[dim]
    if isinstance(size, Rows):
        return None
    if value.target is aten.select_backward.default:
        index = value.args[3] % size
        return dim, index, index, value.args[0]
    start, stop, step = value.args[3:6]
    if step != 1:
        return None
    return dim, slice_bound(start, size), slice_bound(stop, size), value.args[0]


def _rewrite(value: Value, parts: list[Part]) -> None:
    parts = sorted(parts, key=lambda part: part[1])
    dim = parts[0][0]
    size = (value.shape or ())[dim]
    if any(part[0] != dim for part in parts):
        return
    if all(part[1] == part[2] for part in parts):
        if len(parts) == size and [part[1] for part in parts] == list(range(len(parts))):
            value.target, value.args = aten.stack.default, ([part[3] for part in parts], dim)
        return
    edges = [0, *(part[2] for part in parts)]
    if edges[-1] == size and all(part[1] == edge for part, edge in zip(parts, edges, strict=False)):
        value.target, value.args = aten.cat.default, ([part[3] for part in parts], dim)
