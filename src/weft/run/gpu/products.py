"""Products of rows with a weight, `rows @ weight.T`, and of rows that are taken from places, `rows[places] @ weight.T`.

The library wants to know anew, for each number of rows, how to multiply them best: up to about 10,000 rows of 300 numbers that
takes the host longer than it takes the device to do it. And it multiplies rows that lie side by side, so that others have to be
copied first. Here a program multiplies a tile of rows with a tile of columns:

    small     64 x  64      few rows: more tiles, so that more processors have some
    middle   128 x 128
    large    128 x 256      many rows: each number is read less often

Tiles are as large as they can be while half of the processors have one. Numbers have 16 bits, or 32 where TF32 is allowed; more
exact products are the library's, and so are large ones. How many rows there are says who multiplies, and by which tiles: so
equal calls have equal bits.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from weft.run.gpu.launch import Kernel, Quick, usable
from weft.run.gpu.tiles import processors, shared_bytes

SOURCE = """import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "many", "inner_parts", "column_parts"])
def product(rows, many, inner_parts, column_parts, out, a, p, w,
            TAKEN: tl.constexpr, BY: tl.constexpr, COLUMNS_BY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
            INNER: tl.constexpr):
    inner = inner_parts * BY
    columns = column_parts * COLUMNS_BY
    across = tl.cdiv(columns, COLUMNS)
    row = (tl.program_id(0) // across) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, INNER)
    live, fits = row < rows, (column < columns)[None, :]
    place = row.to(tl.int64)
    if TAKEN:
        place = tl.load(p + row, mask=live, other=0).to(tl.int64)
    there = (live & (place < many))[:, None]
    left = a + place[:, None] * inner + k[None, :]
    right = w + column.to(tl.int64)[None, :] * inner + k[:, None]
    found = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, inner, INNER):
        real = k < inner - start
        one = tl.load(left + start, mask=there & real[None, :], other=0)
        other = tl.load(right + start, mask=fits & real[:, None], other=0)
        found = tl.dot(one, other, found, input_precision="tf32")
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out + at, found.to(out.dtype.element_ty), mask=live[:, None] & fits)
"""

INNER = 128
"""Bytes of each row that are multiplied at a time."""


@dataclass(frozen=True)
class Tile:
    """What a program multiplies: rows and columns; and its warps, and how many parts of them are on their way at a time."""

    rows: int
    columns: int
    warps: int
    stages: int

    @property
    def shared(self) -> int:
        """Bytes that it shares between its warps."""
        return (self.rows + self.columns) * INNER * self.stages


TILES = Tile(64, 64, 4, 4), Tile(128, 128, 8, 3), Tile(128, 256, 8, 3)
"""The smallest first."""

MOST = 2_300_000_000
"""Numbers multiplied; for more, the library is faster on the device, and the host has time (measured on an H200)."""


def multiplies(dtype: torch.dtype, inner: int, columns: int) -> bool:
    """Whether there are such products, with a weight of some columns and so many numbers in a row of each."""
    fast = dtype in (torch.float16, torch.bfloat16)
    fast |= dtype is torch.float32 and torch.get_float32_matmul_precision() != "highest"
    return fast and inner * dtype.itemsize % 16 == 0 and inner > 0 and columns > 0


def most_rows(inner: int, columns: int) -> int:
    """From how many rows on the library multiplies."""
    return MOST // (inner * columns)


def ranges(inner: int, columns: int, device: torch.device) -> list[tuple[int, int, Tile]]:
    """From how many rows on, up to how many, which tiles are used."""
    found = [(0, TILES[0])]
    for tile in TILES[1:]:
        least = -(-processors(device) // 2 // -(-columns // tile.columns))
        if tile.shared <= shared_bytes(device):
            found.append(((least - 1) * tile.rows + 1, tile))
    most = most_rows(inner, columns)
    ends = [min([most, *[least for least, _ in found[at + 1 :]]]) for at in range(len(found))]
    return [(least, end, tile) for (least, tile), end in zip(found, ends, strict=True) if least < end]


@functools.cache
def multiplier(dtype: torch.dtype, tile: Tile, taken: bool, inner: int, columns: int) -> Quick:
    """Multiplies: `go(rows, rows there are, *parts(inner, columns), out, a, places, weight)`."""
    constants = taken, gcd(inner, 16), gcd(columns, 16), tile.rows, tile.columns, INNER // dtype.itemsize
    grid = f"-(-n0 // {tile.rows}) * -(-n3 * {constants[2]} // {tile.columns})"
    return Quick(_kernel(dtype, tile, taken), 4, grid, constants)


@functools.cache
def _kernel(dtype: torch.dtype, tile: Tile, taken: bool) -> Kernel:
    """Kernels are compiled for the kinds of their arguments, so there is one for each."""
    return Kernel(SOURCE, "product", tile.warps, tile.stages)


def parts(inner: int, columns: int) -> tuple[int, int]:
    """Sizes as kernels are told: how many parts, of which it is known at which multiples they start."""
    return inner // gcd(inner, 16), columns // gcd(columns, 16)


def product(rows: Tensor, turned: Tensor, out: Tensor | None = None) -> Tensor:
    """What this stands for is `torch.mm(rows, turned, out=out)`, where `turned` is a weight turned."""
    weight = turned.t()
    (columns, inner), alike = weight.shape, rows.dtype is turned.dtype and rows.device == turned.device
    fits = alike and usable(rows.device) and rows.is_contiguous() and weight.is_contiguous()
    fits = fits and (out is None or (out.is_contiguous() and out.dtype is rows.dtype))
    if not fits or not multiplies(rows.dtype, inner, columns) or not 0 < rows.shape[0] < most_rows(inner, columns):
        return torch.mm(rows, turned) if out is None else torch.mm(rows, turned, out=out)
    if out is None:
        out = torch.empty((rows.shape[0], columns), dtype=rows.dtype, device=rows.device)
    return multiplied(rows, None, weight, out)


def multiplied(a: Tensor, places: Tensor | None, weight: Tensor, out: Tensor) -> Tensor:
    """What this stands for is `a @ weight.T`, or `a.index_select(0, places) @ weight.T`, where rows not there are zeros."""
    rows, (columns, inner) = out.shape[0], weight.shape
    (tile,) = (tile for least, end, tile in ranges(inner, columns, a.device) if least <= rows < end)
    ready = multiplier(a.dtype, tile, places is not None, inner, columns)
    ready.go(rows, a.shape[0], *parts(inner, columns), out, a, a if places is None else places, weight)
    return out
