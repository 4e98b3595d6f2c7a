"""Matrices turned, `weight.t().contiguous()`: products read their right side along its first dimension.

Triton loads a float32 weight number by number where the numbers that a product adds up do not lie side by side. In a forward
pass they do, in a backward pass they do not: a turned copy, once for a whole sweep, is read four numbers at a time.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from weft.run.gpu.launch import Quick
from weft.run.gpu.together import Job, Together

SIDE = 64

SOURCE = f"""

@triton.jit
def turn(program, rows, columns, given, out):
    across = tl.cdiv(columns, {SIDE})
    row = (program // across) * {SIDE} + tl.arange(0, {SIDE})
    column = (program % across) * {SIDE} + tl.arange(0, {SIDE})
    there = (row < rows)[:, None] & (column < columns)[None, :]
    found = tl.load(given + row[:, None] * columns + column[None, :], mask=there, other=0)
    tl.store(out + column[:, None] * rows + row[None, :], tl.trans(found), mask=tl.trans(there))
"""


@functools.cache
def turner(dtype: torch.dtype) -> Quick:
    """Turns matrices of a dtype: `go(rows, columns, matrix, out)`."""
    return Quick(Together(Job(SOURCE, "turn", 2, 2)), 2, f"-(-n0 // {SIDE}) * -(-n1 // {SIDE})")


def turned(matrix: Tensor) -> Tensor:
    """What this stands for is `matrix.t().contiguous()`."""
    rows, columns = matrix.shape
    out = torch.empty((columns, rows), dtype=matrix.dtype, device=matrix.device)
    turner(matrix.dtype).go(rows, columns, matrix, out)
    return out


def to_be_turned(matrix: Tensor) -> bool:
    """Whether a product by TF32 would read a weight number by number."""
    fast = matrix.dtype is torch.float32 and torch.get_float32_matmul_precision() != "highest"
    return fast and matrix.is_contiguous() and min(matrix.shape) > 1
