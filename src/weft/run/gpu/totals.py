"""Sums over all rows, `rows.sum(0, keepdim=True)`: gradients of biases.

PyTorch's own reduction along the first dimension takes twice the memory of what it adds up beside it. Here a program adds up
some columns of some rows from top to bottom, and where there are many rows another launch adds up what these found, always in
the same order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from weft.graph.tape import Value
from weft.run.gpu.formulas import TYPES
from weft.run.gpu.launch import Kernel, Quick, allocator
from weft.run.rowview import row_width
from weft.run.views import is_free

ROWS, COLUMNS = 1024, 16
"""How much a program loads at a time."""

SOURCE = f"""import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n", "width", "parts"])
def total(n, width, parts, rows, out):
    each = tl.cdiv(n, parts)
    across = tl.cdiv(width, {COLUMNS})
    part = tl.program_id(0) // across
    column = (tl.program_id(0) % across) * {COLUMNS} + tl.arange(0, {COLUMNS})
    real = column < width
    found = tl.zeros(({COLUMNS},), KIND)
    first = part * each
    last = tl.minimum(first + each, n)
    while first < last:
        row = (first + tl.arange(0, {ROWS})).to(tl.int64)
        there = (row < last)[:, None] & real[None, :]
        found += tl.sum(tl.load(rows + row[:, None] * width + column[None, :], mask=there, other=0).to(KIND), 0)
        first += {ROWS}
    tl.store(out + part.to(tl.int64) * width + column, found, mask=real)
"""

T = TypeVar("T")


def adds_up_rows(value: Value) -> bool:
    """Whether an operation is such a sum, of memory as it is."""
    if value.target is not torch.ops.aten.sum.dim_IntList or value.kwargs or tuple(value.args[1]) != (0,):
        return False
    rows = value.args[0]
    plain = rows.dtype in TYPES and rows.rows is not None and not is_free(rows) and len(rows.shape or ()) == 2
    return plain and value.shape == (1, row_width(rows))


@functools.cache
def adder(given: torch.dtype, made: torch.dtype) -> Quick:
    """Adds up some parts of rows of one dtype to a row of another each: `go(n, width, parts, rows, sums)`."""
    kind = "tl.float64" if given is torch.float64 else "tl.float32"
    kernel = Kernel(SOURCE.replace("KIND", kind), "total", warps=8)
    return Quick(kernel, 3, f"n2 * -(-n1 // {COLUMNS})")


def column_sums(rows: Tensor) -> Tensor:
    """What this stands for is `rows.sum(0, keepdim=True)`."""
    fresh = allocator(rows.device)
    return add_up(rows.contiguous(), fresh, lambda quick, numbers, tensors: quick.go(*numbers, *tensors))


def add_up(rows: Any, fresh: Callable[..., T], launch: Callable[[Quick, Any, Any], None]) -> T:
    """The sums of all rows, by one launch or, of many rows, by two; in memory from `fresh`."""
    (many, width), dtype = rows.shape, rows.dtype
    if many >= 2 * ROWS:
        wide, parts = torch.promote_types(dtype, torch.float32), -(-many // ROWS)
        some = fresh((parts, width), (width, 1), wide)
        launch(adder(dtype, wide), (many, width, parts), (rows, some))
        many, rows = parts, some
    out = fresh((1, width), (width, 1), dtype)
    launch(adder(rows.dtype, dtype), (many, width, 1), (rows, out))
    return out
