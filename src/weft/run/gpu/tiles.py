"""Tiles: what one program of a sweep does at a time, for steps of different widths.

There are as many programs as processors, and each reads, past its own cache, the rows of its tile and the weights of its
columns. So a step is fastest by the smallest tiles of which there are no more than processors:

                rows x columns of each unit             of units of 256, 132 processors do at once
    narrow        16 x 8,   K split over four warps        64 rows
    middling      16 x 16,  K split over four warps       128
    broad         64 x 16                                 512
    wide          64 x 32                                1024
    widest       128 x 32,  eight warps                  2048, and wider steps one part after the other

(Measured on an H200: `docs/gpu.md`.) Products that must be exact to float32 have one kind of tiles.
"""

from __future__ import annotations

import torch

from weft.run.gpu.launch import interpreted
from weft.run.gpu.variables import Tile

EXACT = Tile(inner=32, precision="ieee")
TILES = {
    "narrow": Tile(16, 8, 32, "tf32", ways=4),
    "middling": Tile(16, 16, 32, "tf32", ways=4),
    "broad": Tile(64, 16, 32, "tf32", stages=4),
    "wide": Tile(64, 32, 32, "tf32", stages=4),
    "widest": Tile(128, 32, 32, "tf32", stages=4, warps=8),
}

PROCESSORS, SHARED = 132, 232_448
"""Of an H200: processors, and bytes that a program shares between its warps."""

_known: dict[torch.device, tuple[int, int]] = {}


def tile_for(dtypes: set[torch.dtype], width: str) -> Tile:
    """The tile for steps of a width."""
    exact = torch.get_float32_matmul_precision() == "highest" and torch.float32 in dtypes
    return EXACT if exact or torch.float64 in dtypes else TILES[width]


def stages(tile: Tile, units: int, device: torch.device) -> int:
    """How many parts of the inner dimension of a product with some units are on their way at a time: as memory allows."""
    one = 4 * tile.inner * tile.ways * (tile.rows + units * tile.columns)
    return max(2, min(tile.stages, _about(device)[1] // one))


def rows_at_once(tile: Tile, columns: int, device: torch.device) -> int:
    """Rows of a step of which each processor does one tile; `columns` are the tiles that lie side by side."""
    return max(_about(device)[0] // columns, 1) * tile.rows


def programs(device: torch.device, columns: int) -> int:
    """As many programs as run at once, and a multiple of the columns' tiles so that each keeps its columns."""
    if interpreted():
        return 1
    most = _about(device)[0]
    return most // columns * columns if columns <= most else most


def _about(device: torch.device) -> tuple[int, int]:
    """A device's processors, and the bytes that a program may share between its warps."""
    if device not in _known:
        _known[device] = PROCESSORS, SHARED
        if device.type == "cuda":
            known = torch.cuda.get_device_properties(device)
            _known[device] = known.multi_processor_count, getattr(known, "shared_memory_per_block_optin", SHARED)
    return _known[device]
