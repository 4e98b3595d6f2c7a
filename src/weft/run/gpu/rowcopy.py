"""Rows to places: `out[places[i]] = rows[i]`, each place once."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.run.gpu.launch import Kernel

BLOCK = 1024

SOURCE = f"""import triton
import triton.language as tl


@triton.jit(do_not_specialize=["numbers", "width"])
def put(numbers, width, out, places, rows):
    at = (tl.program_id(0) * {BLOCK} + tl.arange(0, {BLOCK})).to(tl.int64)
    live = at < numbers
    row, column = at // width, at % width
    place = tl.load(places + row, mask=live, other=0).to(tl.int64)
    tl.store(out + place * width + column, tl.load(rows + at, mask=live, other=0), mask=live)
"""

_kernels: dict[torch.dtype, Kernel] = {}


def put_rows(out: Tensor, places: Tensor, rows: Tensor) -> None:
    """Write rows to their places; what this stands for is `out.index_copy_(0, places.long(), rows)`."""
    kernel = _kernels.get(rows.dtype)
    if kernel is None:
        kernel = _kernels[rows.dtype] = Kernel(SOURCE, "put")
    numbers = rows.numel()
    if numbers:
        kernel.launch(-(-numbers // BLOCK), out.device, (numbers, numbers // rows.shape[0], out, places, rows.contiguous()))
