"""Products with rows as columns: `W @ x` for each row x is, over all rows, `x @ W.T`.

Tracing makes of it a product with the transposed rows whose result is transposed back. Turned, both transpositions vanish and
rows stay the first dimension, which is what everything after expects of them.
"""

from __future__ import annotations

import torch

from weft.graph.tape import Value

aten = torch.ops.aten


def turned_product(value: Value) -> list[Value]:
    """Make a product of a matrix with columns of rows the transpose of a product with rows; what is new is returned.

    A swap of the two dimensions of a matrix, however written, becomes `t`.
    """
    if _swaps(value):
        value.target, value.args = aten.t.default, value.args[:1]
        return []
    if value.target is not aten.mm.default:
        return []
    matrix, columns = value.args
    if matrix.rows is not None or columns.row_dim != 1 or columns.target is not aten.t.default:
        return []
    rows = columns.args[0]
    flipped = Value(f"{value.name}_matrix", aten.t.default, (matrix,), {}, (matrix.shape or ())[::-1], matrix.dtype)
    product = Value(f"{value.name}_rows", aten.mm.default, (rows, flipped), {}, (value.shape or ())[::-1], value.dtype)
    value.target, value.args = aten.t.default, (product,)
    return [flipped, product]


def _swaps(value: Value) -> bool:
    if value.shape is None or len(value.shape) != 2 or value.kwargs:
        return False
    if value.target is aten.permute.default:
        return [dim % 2 for dim in value.args[1]] == [1, 0]
    return value.target is aten.transpose.int and {dim % 2 for dim in value.args[1:]} == {0, 1}
