"""Checks that return nothing: PyTorch's factorisations say in a result of its own where they failed, and look at it afterwards.

On a tape such a check belongs to the result that it is about: whoever reads the result, reads it checked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.graph import ops
from weft.graph.tape import Tape, Value, replace

aten = torch.ops.aten


def _checked(result: Tensor, info: Tensor, asked: str, row_dim: int | None, **_: Any) -> Tensor:
    """The result, if all went well; else the error of the first row that failed, worded as for that row alone."""
    if info.any():
        one = info if row_dim is None else next(row for row in info.unbind(row_dim) if row.any())
        aten._linalg_check_errors(one, asked, is_matrix=one.dim() == 0)
    return result


checked = ops.Operation(_checked)


def with_checks(tape: Tape) -> None:
    """Rewrite a tape in place so that its checks are needed by what they check."""
    first: dict[int, Value] = {}
    """The first result of every operation that has several."""
    instead: dict[int, Value] = {}
    kept: list[Value] = []
    for value in tape.values:
        value.args, value.kwargs = replace((value.args, value.kwargs), lambda v: instead.get(id(v), v))
        if ops.is_getitem(value.target) and value.args[1] == 0:
            first[id(value.args[0])] = value
        if value.target is aten._linalg_check_errors.default:
            info, asked = value.args[:2]
            result = first[id(info.args[0])]
            value = Value(value.name, checked, (result, info, asked, info.row_dim), {}, result.shape, result.dtype)
            instead[id(result)] = value
        kept.append(value)
    tape.values = kept
    tape.outputs = {name: None if v is None else instead.get(id(v), v) for name, v in tape.outputs.items()}
