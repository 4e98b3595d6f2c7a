"""Rows to places, `out[places[i]] = rows[i]`, each place once; from places, `out[i] = a[p[i]] + b[q[i]]`; one row many times,
`out[i] = row`; and sums."""

from __future__ import annotations

from math import gcd, prod

import torch
from torch import Tensor

from weft.run.gpu.launch import Quick
from weft.run.gpu.together import Job, Together

BLOCK = 1024
"""Numbers that a program copies."""
COLUMNS = 256
"""Of these, side by side."""

TILE = """

@triton.jit
def tile(program, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    across = tl.cdiv(width, COLUMNS)
    row = (program // across) * ROWS + tl.arange(0, ROWS)
    column = (program % across) * COLUMNS + tl.arange(0, COLUMNS)
    return row, column[None, :], (column < width)[None, :]
"""

PUT = f"""{TILE}

@triton.jit
def put(program, rows, first, parts, out, p, a, q, b,
        TWO: tl.constexpr, BY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    width = parts * BY
    row, column, real = tile(program, width, ROWS, COLUMNS)
    one = row < first
    place = tl.load(p + row, mask=one, other=0).to(tl.int64)
    found = tl.load(a + row.to(tl.int64)[:, None] * width + column, mask=one[:, None] & real, other=0)
    if TWO:
        row, other = row - first, (row < rows) & ~one
        place = tl.where(one, place, tl.load(q + row, mask=other, other=0).to(tl.int64))
        more = tl.load(b + row.to(tl.int64)[:, None] * width + column, mask=other[:, None] & real, other=0)
        found = tl.where(one[:, None], found, more)
        one = one | other
    tl.store(out + place[:, None] * width + column, found, mask=one[:, None] & real)
"""

Tiles = tuple[int, int, int]
"""How wide the equal parts of a row are, from whose beginnings on it can be read in large words; and the rows and columns that
a program copies."""


def tiles(width: int) -> Tiles:
    columns = min(COLUMNS, 1 << (width - 1).bit_length())
    return gcd(width, 16), BLOCK // columns, columns


_putters: dict[tuple[torch.dtype, bool, Tiles], Quick] = {}


def putter(dtype: torch.dtype, two: bool, width: int) -> Quick:
    """What launches `put` for rows of a dtype, of one part or of two."""
    by, rows, columns = tiles(width)
    found = _putters.get((dtype, two, (by, rows, columns)))
    if found is None:
        grid = f"-(-n0 // {rows}) * -(-n2 * {by} // {columns})"
        found = Quick(Together(Job(PUT, "put", 3, 5, 4)), 3, grid, (two, by, rows, columns))
        _putters[dtype, two, (by, rows, columns)] = found
    return found


def put_rows(out: Tensor, p: Tensor, a: Tensor, q: Tensor | None = None, b: Tensor | None = None) -> None:
    """What this stands for is `out.index_copy_(0, p.long(), a)`, and then the same with q and b."""
    two, width = b is not None, prod(a.shape[1:])
    first = rows = a.shape[0]
    if q is None or b is None:
        q, b = p, a
    else:
        rows += b.shape[0]
    if rows and width:
        putter(a.dtype, two, width).go(rows, first, width // tiles(width)[0], out, p, a.contiguous(), q, b.contiguous())


TAKE = f"""{TILE}

@triton.jit
def take(program, rows, parts, many, more, out, a, p, b, q,
         TWO: tl.constexpr, BY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    width = parts * BY
    row, column, real = tile(program, width, ROWS, COLUMNS)
    live = row < rows
    first = tl.load(p + row, mask=live, other=0).to(tl.int64)
    found = tl.load(a + first[:, None] * width + column, mask=(live & (first < many))[:, None] & real, other=0)
    if TWO:
        second = tl.load(q + row, mask=live, other=0).to(tl.int64)
        found += tl.load(b + second[:, None] * width + column, mask=(live & (second < more))[:, None] & real, other=0)
    tl.store(out + row.to(tl.int64)[:, None] * width + column, found, mask=live[:, None] & real)
"""

_takers: dict[tuple[torch.dtype, bool, Tiles], Quick] = {}


def taker(dtype: torch.dtype, two: bool, width: int) -> Quick:
    """What launches `take` for rows of a dtype, of one part or of two."""
    by, rows, columns = tiles(width)
    found = _takers.get((dtype, two, (by, rows, columns)))
    if found is None:
        grid = f"-(-n0 // {rows}) * -(-n1 * {by} // {columns})"
        found = Quick(Together(Job(TAKE, "take", 4, 5, 4)), 4, grid, (two, by, rows, columns))
        _takers[dtype, two, (by, rows, columns)] = found
    return found


def take_rows(a: Tensor, p: Tensor, b: Tensor | None = None, q: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """What this stands for is `a.index_select(0, p)`, plus `b.index_select(0, q)`; rows that are not there are zeros."""
    a, two, width = a.contiguous(), b is not None, prod(a.shape[1:])
    if out is None:
        out = torch.empty((p.shape[0], *a.shape[1:]), dtype=a.dtype, device=a.device)
    if out.numel():
        b, q = (a, p) if b is None or q is None else (b.contiguous(), q)
        taker(a.dtype, two, width).go(p.shape[0], width // tiles(width)[0], a.shape[0], b.shape[0], out, a, p, b, q)
    return out


ADD = f"""

@triton.jit
def add(program, numbers, a, b, out):
    at = (program * {BLOCK} + tl.arange(0, {BLOCK})).to(tl.int64)
    live = at < numbers
    tl.store(out + at, tl.load(a + at, mask=live) + tl.load(b + at, mask=live), mask=live)
"""

_adders: dict[torch.dtype, Quick] = {}


def adder(dtype: torch.dtype) -> Quick:
    """What launches `add`, as torch does `a + b`: for those who launch without torch."""
    found = _adders.get(dtype)
    if found is None:
        found = _adders[dtype] = Quick(Together(Job(ADD, "add", 1, 3)), 1, f"-(-n0 // {BLOCK})")
    return found


REPEAT = f"""{TILE}

@triton.jit
def repeat(program, rows, parts, a, out, BY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    width = parts * BY
    row, column, real = tile(program, width, ROWS, COLUMNS)
    found = tl.load(a + column, mask=real, other=0)
    tl.store(out + row.to(tl.int64)[:, None] * width + column, found, mask=(row < rows)[:, None] & real)
"""

_repeaters: dict[tuple[torch.dtype, Tiles], Quick] = {}


def repeater(dtype: torch.dtype, width: int) -> Quick:
    """What launches `repeat`, as torch does `out.copy_(a.expand(rows, width))`: for those who launch without torch."""
    by, rows, columns = tiles(width)
    found = _repeaters.get((dtype, (by, rows, columns)))
    if found is None:
        grid = f"-(-n0 // {rows}) * -(-n1 * {by} // {columns})"
        found = Quick(Together(Job(REPEAT, "repeat", 2, 2, 3)), 2, grid, (by, rows, columns))
        _repeaters[dtype, (by, rows, columns)] = found
    return found


def step_rows(arena: Tensor, index: Tensor, start: int, lo: int, hi: int, slots: int) -> Tensor:
    """What one step reads of an arena: its slots' rows, as they are where they lie side by side from `start` on."""
    if start >= 0:
        return arena.narrow(0, start, (hi - lo) * slots)
    return arena.index_select(0, index.narrow(0, lo * slots, (hi - lo) * slots))
