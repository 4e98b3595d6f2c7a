"""Counts in a device's memory by which programs of a kernel find out about each other."""

from __future__ import annotations

import torch
from torch import Tensor

BARRIER = 4
"""The first of them are the barrier's, in sweeps; 16 bytes of them."""
COLUMNS = 1020
"""The others belong to sums over rows, one to some columns each."""

_counters: dict[tuple[torch.device, int], Tensor] = {}


def counter(device: torch.device, stream: int) -> Tensor:
    """Zeros between launches; others for each stream, for kernels of two streams may run at once."""
    found = _counters.get((device, stream))
    if found is None:
        made = torch.zeros(BARRIER + COLUMNS, dtype=torch.int32, device=device)
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return made  # which is zero only where somebody's capture is replayed
        found = _counters.setdefault((device, stream), made)  # another thread may have made some by now, and use them
    return found
