"""Rows of a table by numbers that the caller brings: `torch.embedding` for those who launch without torch.

A number that is no row stops the device with an assertion, as it does in torch's own kernel; nothing is read beside the table.
"""

from __future__ import annotations

import torch

from weft.run.gpu.launch import Kernel, Quick
from weft.run.gpu.rowcopy import TILE, Tiles, tiles

SOURCE = f"""import triton
import triton.language as tl
{TILE}

@triton.jit(do_not_specialize=["count", "parts", "rows"])
def look_up(count, parts, rows, table, numbers, out, BY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    width = parts * BY
    row, column, real = tile(tl.program_id(0), width, ROWS, COLUMNS)
    live = row < count
    number = tl.load(numbers + row, mask=live, other=0).to(tl.int64)
    there = (number >= 0) & (number < rows)
    tl.device_assert(there | (row >= count), "index out of range in self")
    real = (live & there)[:, None] & real
    found = tl.load(table + number[:, None] * width + column, mask=real, other=0)
    tl.store(out + row.to(tl.int64)[:, None] * width + column, found, mask=real)
"""

_kernels: dict[tuple[torch.dtype, torch.dtype, Tiles], Quick] = {}


def looker(dtype: torch.dtype, numbers: torch.dtype, width: int) -> Quick:
    """What launches it: go(how many numbers, parts of a row, rows of the table, table, numbers, out)."""
    by, rows, columns = tiles(width)
    found = _kernels.get((dtype, numbers, (by, rows, columns)))
    if found is None:
        grid = f"-(-n0 // {rows}) * -(-n1 * {by} // {columns})"
        found = Quick(Kernel(SOURCE, "look_up", asserts=True), 3, grid, (by, rows, columns))
        _kernels[dtype, numbers, (by, rows, columns)] = found
    return found
