"""Rows to places, `out[places[i]] = rows[i]`, each place once; from places, `out[i] = a[p[i]] + b[q[i]]`; and sums."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.run.gpu.launch import Kernel, Quick

BLOCK = 1024

PUT = f"""import triton
import triton.language as tl


@triton.jit(do_not_specialize=["numbers", "first", "width"])
def put(numbers, first, width, out, p, a, q, b, TWO: tl.constexpr):
    at = (tl.program_id(0) * {BLOCK} + tl.arange(0, {BLOCK})).to(tl.int64)
    live, one = at < numbers, at < first
    if TWO:
        at = tl.where(one, at, at - first)
    row, column = at // width, at % width
    place = tl.load(p + row, mask=live & one, other=0).to(tl.int64)
    found = tl.load(a + at, mask=live & one, other=0)
    if TWO:
        place = tl.where(one, place, tl.load(q + row, mask=live & (at >= 0) & ~one, other=0).to(tl.int64))
        found = tl.where(one, found, tl.load(b + at, mask=live & ~one, other=0))
    tl.store(out + place * width + column, found, mask=live)
"""

_putters: dict[tuple[torch.dtype, bool], Quick] = {}


def putter(dtype: torch.dtype, two: bool) -> Quick:
    """What launches `put` for rows of a dtype, of one part or of two."""
    found = _putters.get((dtype, two))
    if found is None:
        found = _putters[dtype, two] = Quick(Kernel(PUT, "put"), 3, f"-(-n0 // {BLOCK})", (two,))
    return found


def put_rows(out: Tensor, p: Tensor, a: Tensor, q: Tensor | None = None, b: Tensor | None = None) -> None:
    """What this stands for is `out.index_copy_(0, p.long(), a)`, and then the same with q and b."""
    two = b is not None
    first = numbers = a.numel()
    if q is None or b is None:
        q, b = p, a
    else:
        numbers += b.numel()
    if numbers:
        putter(a.dtype, two).go(
            numbers, first, numbers // (p.shape[0] + two * q.shape[0]), out, p, a.contiguous(), q, b.contiguous()
        )


TAKE = f"""import triton
import triton.language as tl


@triton.jit(do_not_specialize=["numbers", "width", "many", "more"])
def take(numbers, width, many, more, out, a, p, b, q, TWO: tl.constexpr):
    at = (tl.program_id(0) * {BLOCK} + tl.arange(0, {BLOCK})).to(tl.int64)
    live = at < numbers
    row, column = at // width, at % width
    first = tl.load(p + row, mask=live, other=0).to(tl.int64)
    found = tl.load(a + first * width + column, mask=live & (first < many), other=0)
    if TWO:
        second = tl.load(q + row, mask=live, other=0).to(tl.int64)
        found += tl.load(b + second * width + column, mask=live & (second < more), other=0)
    tl.store(out + at, found, mask=live)
"""

_takers: dict[tuple[torch.dtype, bool], Quick] = {}


def taker(dtype: torch.dtype, two: bool) -> Quick:
    """What launches `take` for rows of a dtype, of one part or of two."""
    found = _takers.get((dtype, two))
    if found is None:
        found = _takers[dtype, two] = Quick(Kernel(TAKE, "take"), 4, f"-(-n0 // {BLOCK})", (two,))
    return found


def take_rows(a: Tensor, p: Tensor, b: Tensor | None = None, q: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """What this stands for is `a.index_select(0, p)`, plus `b.index_select(0, q)`; rows that are not there are zeros."""
    a, two = a.contiguous(), b is not None
    if out is None:
        out = torch.empty((p.shape[0], *a.shape[1:]), dtype=a.dtype, device=a.device)
    numbers = out.numel()
    if numbers:
        b, q = (a, p) if b is None or q is None else (b.contiguous(), q)
        taker(a.dtype, two).go(numbers, numbers // p.shape[0], a.shape[0], b.shape[0], out, a, p, b, q)
    return out


ADD = f"""import triton
import triton.language as tl


@triton.jit(do_not_specialize=["numbers"])
def add(numbers, a, b, out):
    at = (tl.program_id(0) * {BLOCK} + tl.arange(0, {BLOCK})).to(tl.int64)
    live = at < numbers
    tl.store(out + at, tl.load(a + at, mask=live) + tl.load(b + at, mask=live), mask=live)
"""

_adders: dict[torch.dtype, Quick] = {}


def adder(dtype: torch.dtype) -> Quick:
    """What launches `add`, as torch does `a + b`: for those who launch without torch."""
    found = _adders.get(dtype)
    if found is None:
        found = _adders[dtype] = Quick(Kernel(ADD, "add"), 1, f"-(-n0 // {BLOCK})")
    return found


def step_rows(arena: Tensor, index: Tensor, start: int, lo: int, hi: int, slots: int) -> Tensor:
    """What one step reads of an arena: its slots' rows, as they are where they lie side by side from `start` on."""
    if start >= 0:
        return arena.narrow(0, start, (hi - lo) * slots)
    return arena.index_select(0, index.narrow(0, lo * slots, (hi - lo) * slots))
