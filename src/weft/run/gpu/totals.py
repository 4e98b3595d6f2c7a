"""Sums over all rows, `rows.sum(0, keepdim=True)`: gradients of biases.

PyTorch's own reduction along the first dimension takes twice the memory of what it adds up beside it. Here a program adds up
some columns from top to bottom, which is as fast and takes none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.graph.tape import Value
from weft.run.gpu.formulas import TYPES
from weft.run.gpu.launch import Kernel, Quick
from weft.run.rowview import row_width
from weft.run.views import is_free

ROWS, COLUMNS = 1024, 16
"""How much a program loads at a time: many rows, for few programs must keep the memory busy."""

LEAST = 256
"""Columns from which on there are enough programs."""

SOURCE = f"""import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n", "width"])
def total(n, width, rows, out):
    column = tl.program_id(0) * {COLUMNS} + tl.arange(0, {COLUMNS})
    real = column < width
    found = tl.zeros(({COLUMNS},), KIND)
    first = 0
    while first < n:
        row = (first + tl.arange(0, {ROWS})).to(tl.int64)
        there = (row < n)[:, None] & real[None, :]
        found += tl.sum(tl.load(rows + row[:, None] * width + column[None, :], mask=there, other=0).to(KIND), 0)
        first += {ROWS}
    tl.store(out + column, found, mask=real)
"""

_kernels: dict[torch.dtype, Quick] = {}


def adds_up_rows(value: Value) -> bool:
    """Whether an operation is such a sum, of memory as it is."""
    if value.target is not torch.ops.aten.sum.dim_IntList or value.kwargs or tuple(value.args[1]) != (0,):
        return False
    rows, width = value.args[0], row_width(value.args[0]) or 0
    plain = rows.dtype in TYPES and rows.rows is not None and not is_free(rows) and len(rows.shape or ()) == 2
    return plain and width >= LEAST and value.shape == (1, width)


def adder(dtype: torch.dtype) -> Quick:
    """What launches `total` for rows of a dtype."""
    found = _kernels.get(dtype)
    if found is None:
        kind = "tl.float64" if dtype is torch.float64 else "tl.float32"
        kernel = Kernel(SOURCE.replace("KIND", kind), "total", warps=8)
        found = _kernels[dtype] = Quick(kernel, 2, f"-(-n1 // {COLUMNS})")
    return found


def column_sums(rows: Tensor) -> Tensor:
    """What this stands for is `rows.sum(0, keepdim=True)`."""
    out = torch.empty((1, rows.shape[1]), dtype=rows.dtype, device=rows.device)
    adder(rows.dtype).go(rows.shape[0], rows.shape[1], rows.contiguous(), out)
    return out
