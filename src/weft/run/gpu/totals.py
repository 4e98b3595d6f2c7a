"""Sums over all rows, `rows.sum(0, keepdim=True)`: gradients of biases.

PyTorch's own reduction along the first dimension takes twice the memory of what it adds up beside it. Here a program adds up
some columns of some rows from top to bottom. Where there are many rows, each program leaves its sums in memory, and the last of
those with the same columns adds up what all of them found, always in the same order: it finds out that it is the last by
counting, and sets the count back to zero.

Numbers are loaded one by one. In large words they would be dealt out to threads in another way, and so added up in another
order, where memory starts between multiples of 16 bytes: the same rows would not give the same bits everywhere.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from weft.graph.tape import Value
from weft.run.gpu import counts
from weft.run.gpu.formulas import TYPES
from weft.run.gpu.launch import Quick, allocator, current_stream
from weft.run.gpu.together import Job, Together
from weft.run.rowview import row_width
from weft.run.views import is_free

ROWS, COLUMNS = 1024, 16
"""What a program adds up."""
AT_ONCE, PARTS_AT_ONCE = 256, 32
"""How many rows it loads at a time, and of how many parts the sums."""

SOURCE = f"""

@triton.jit
def added_KIND(rows, first, last, width, column, AT_ONCE: tl.constexpr, PAST: tl.constexpr):
    found = tl.zeros(({COLUMNS},), tl.KIND)
    for at in range(first, last, AT_ONCE):
        row = (at + tl.arange(0, AT_ONCE)).to(tl.int64)
        there = (row < last)[:, None] & (column < width)[None, :]
        some = tl.load(rows + row[:, None] * width + column[None, :], mask=there, other=0, cache_modifier=PAST)
        found += tl.sum(some.to(tl.KIND), 0)
    return found


@triton.jit
def total_KIND(program, n, width, parts, rows, some, out, count):
    each = tl.cdiv(n, parts)
    across = tl.cdiv(width, {COLUMNS})
    part = program // across
    column = (program % across) * {COLUMNS} + tl.arange(0, {COLUMNS})
    first = part * each
    found = added_KIND(rows, first, tl.minimum(first + each, n), width, column, {AT_ONCE}, "")
    if parts == 1:
        tl.store(out + column, found, mask=column < width)
    else:
        tl.store(some + part.to(tl.int64) * width + column, found, mask=column < width)
        tl.debug_barrier()
        mine = count + program % across
        if tl.atomic_add(mine, 1, sem="acq_rel", scope="gpu") == parts - 1:
            tl.debug_barrier()
            found = added_KIND(some, 0, parts, width, column, {PARTS_AT_ONCE}, ".cg")
            tl.store(out + column, found, mask=column < width)
            tl.store(mine, 0)
"""


def adds_up_rows(value: Value) -> bool:
    """Whether an operation is such a sum, of memory as it is."""
    if value.target is not torch.ops.aten.sum.dim_IntList or value.kwargs or tuple(value.args[1]) != (0,):
        return False
    rows = value.args[0]
    plain = rows.dtype in TYPES and rows.rows is not None and not is_free(rows) and len(rows.shape or ()) == 2
    return plain and value.shape == (1, row_width(rows))


@functools.cache
def adder(dtype: torch.dtype) -> Quick:
    """Adds up rows in some parts: `go(n, width, parts, rows, sums of parts, sums, counts)`."""
    kind = str(wide(dtype)).removeprefix("torch.")
    job = Job(SOURCE.replace("KIND", kind), f"total_{kind}", 3, 4)
    return Quick(Together(job), 3, f"n2 * -(-n1 // {COLUMNS})")


def wide(dtype: torch.dtype) -> torch.dtype:
    """As what numbers are added up."""
    return torch.promote_types(dtype, torch.float32)


def parts(rows: Any, width: int) -> Any:
    """Of how many parts the sums are added up; wide rows keep all processors busy as one."""
    return 1 if width > counts.COLUMNS * COLUMNS else rows // ROWS + 1


def column_sums(rows: Tensor) -> Tensor:
    """What this stands for is `rows.sum(0, keepdim=True)`."""
    fresh, (many, width) = allocator(rows.device), rows.shape
    number = parts(many, width)
    some = fresh((number if number > 1 else 0, width), (width, 1), wide(rows.dtype))
    out = fresh((1, width), (width, 1), rows.dtype)
    count = counts.counter(rows.device, current_stream(rows.device)).narrow(0, counts.BARRIER, counts.COLUMNS)
    adder(rows.dtype).go(many, width, number, rows.contiguous(), some, out, count)
    return out
