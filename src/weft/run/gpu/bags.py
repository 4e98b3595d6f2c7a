"""Sums of rows, segment by segment, in order: `bag_sum` and `segment_sum` for those who launch without torch."""

from __future__ import annotations

import torch

from weft.run.gpu.launch import Kernel, Quick

COLUMNS = 128

SOURCE = f"""import triton
import triton.language as tl


@triton.jit(do_not_specialize=["segments", "width"])
def bag(segments, width, rows, index, bounds, out, INDEXED: tl.constexpr):
    across = (width + {COLUMNS - 1}) // {COLUMNS}
    row = (tl.program_id(0) // across).to(tl.int64)
    column = (tl.program_id(0) % across) * {COLUMNS} + tl.arange(0, {COLUMNS})
    real = column < width
    at, end = tl.load(bounds + row), tl.load(bounds + row + 1)
    found = tl.zeros(({COLUMNS},), KIND)
    while at < end:
        place = at.to(tl.int64)
        if INDEXED:
            place = tl.load(index + at).to(tl.int64)
        found += tl.load(rows + place * width + column, mask=real, other=0).to(KIND)
        at += 1
    tl.store(out + row * width + column, found, mask=real)
"""

_kernels: dict[tuple[torch.dtype, bool], Quick] = {}


def bagger(dtype: torch.dtype, indexed: bool) -> Quick:
    """What launches `bag`: go(segments, width, rows, index, bounds, out); without an index all rows follow each other."""
    found = _kernels.get((dtype, indexed))
    if found is None:
        kernel = Kernel(SOURCE.replace("KIND", "tl.float64" if dtype is torch.float64 else "tl.float32"), "bag")
        found = _kernels[dtype, indexed] = Quick(kernel, 2, f"n0 * -(-n1 // {COLUMNS})", (indexed,))
    return found
