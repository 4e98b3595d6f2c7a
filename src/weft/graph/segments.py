"""Sums over segments: the rows of each vertex's edges, added in order."""

from __future__ import annotations

import torch
from torch import Tensor

_BAGGED = frozenset({torch.float32, torch.float64})
_counting: dict[tuple[torch.device, int], Tensor] = {}


def bag_sum(rows: Tensor, index: Tensor, bounds: Tensor) -> Tensor:
    """`out[i] = sum(rows[index[bounds[i]:bounds[i+1]]])`, zeros for an empty segment."""
    segments = bounds.shape[0] - 1
    if rows.dtype in _BAGGED and index.shape[0] and segments and rows.numel():
        flat = rows.reshape(rows.shape[0], -1)
        out = torch.embedding_bag(flat, index, bounds, False, 0, False, None, True)[0]
        return out.reshape(segments, *rows.shape[1:])
    lengths = bounds.diff()
    seg = torch.repeat_interleave(torch.arange(segments, device=rows.device), lengths.long())
    return rows.new_zeros((segments, *rows.shape[1:])).index_add(0, seg, rows.index_select(0, index))


def segment_sum(rows: Tensor, seg: Tensor, segments: int, bounds: Tensor) -> Tensor:
    """`out[i] = sum(rows[bounds[i]:bounds[i+1]])`; `seg` says the same row by row."""
    if rows.dtype in _BAGGED:
        return bag_sum(rows, count_to(rows.shape[0], rows.device), bounds)
    return rows.new_zeros((segments, *rows.shape[1:])).index_add(0, seg, rows)


def count_to(n: int, device: torch.device) -> Tensor:
    """0, 1, ..., n - 1; made once for each device, and on a GPU for each stream, on which it is made before it is read."""
    key = device, torch._C._cuda_getCurrentRawStream(device.index or 0) if device.type == "cuda" else 0
    kept = _counting.get(key)
    if kept is None or kept.shape[0] < n:
        if device.type == "cuda" and torch._C._cuda_isCurrentStreamCapturing():
            return _while_captured(n, device)
        kept = _counting[key] = torch.arange(max(1024, 2 * n), dtype=torch.int32, device=device)
    return kept[:n]


def _while_captured(n: int, device: torch.device) -> Tensor:
    """What is there, on whichever stream: what is only captured is not made, and not to be kept."""
    known = [kept for (where, _), kept in _counting.items() if where == device and kept.shape[0] >= n]
    return known[0][:n] if known else torch.arange(n, dtype=torch.int32, device=device)
