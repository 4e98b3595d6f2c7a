"""Gradients that do not come: what depends on them alone is nothing, and a sum with nothing is its other part."""

from __future__ import annotations

import torch

from weft.graph.tape import Tape, Value, replace

aten = torch.ops.aten


def leave_out_absent(tape: Tape, nothing: set[int]) -> None:
    """Rewrite sums of which one part is among the values (by id) that are nothing, in place."""
    same: dict[int, Value] = {}

    def current(value: Value) -> Value:
        return same.get(id(value), value)

    for value in tape.values:
        value.args, value.kwargs = replace(value.args, current), replace(value.kwargs, current)
        if value.target is aten.add.Tensor and len(value.args) == 2 and not value.kwargs:
            first, second = value.args
            for part, other in ((first, second), (second, first)):
                if isinstance(part, Value) and isinstance(other, Value) and id(other) in nothing and id(part) not in nothing:
                    if part.shape == value.shape and part.dtype == value.dtype:
                        same[id(value)] = part
    tape.outputs = {name: None if value is None else current(value) for name, value in tape.outputs.items()}
