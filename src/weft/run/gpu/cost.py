"""When a step of a recurrence is better off with the library's product: a cost model of three numbers for each device.

    by the kernel     operations / kernel rate
    by the library    operations / library rate + what the host needs for the launches of a step

Of wide steps the kernel's tiles are smaller than the library's: it multiplies at about half of the library's rate.
The other two numbers are measured when a device is first used, which takes some milliseconds, and kept in the user's cache
folder.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from weft.cc import cache_folder

KERNEL_SHARE = 0.5
"""Of the library's rate (measured on an H200: 85 to 150 of 180 TFLOP/s, TF32)."""

_known: dict[tuple[torch.device, str], Rates] = {}


@dataclass(frozen=True)
class Rates:
    """Operations per second of the library's products, and seconds of the host for one step."""

    library: float = 1.5e14
    host: float = 1e-4

    def rows(self, operations: float) -> int:
        """Rows of a step from which on the library is faster; `operations` are those of one row."""
        saved = max(operations, 1.0) * (1 / (KERNEL_SHARE * self.library) - 1 / self.library)
        return max(int(self.host / saved), 64)


def rates(device: torch.device) -> Rates:
    """What is known of a device; measured if nothing is."""
    key = (device, torch.get_float32_matmul_precision())
    if key not in _known:
        _known[key] = Rates() if device.type != "cuda" else _kept(device, key[1])
    return _known[key]


def _kept(device: torch.device, precision: str) -> Rates:
    name = "".join(c if c.isalnum() else "-" for c in torch.cuda.get_device_name(device))
    path = cache_folder() / f"rates-{name}-{precision}.json"
    try:
        return Rates(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        found = _measured(device)
        _keep(path, found)
        return found


def _keep(path: Path, found: Rates) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(found)), encoding="utf-8")
    except OSError:  # no folder to write to: the next process measures again
        pass


def _measured(device: torch.device) -> Rates:
    rows, weight = torch.randn(4096, 1024, device=device), torch.randn(1024, 2048, device=device)
    out = torch.empty(4096, 2048, device=device)
    best, host = 1.0, 1.0
    for _ in range(5):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(10):
            torch.mm(rows.narrow(0, 0, 4096), weight, out=out.narrow(0, 0, 4096))
        host = min(host, (time.perf_counter() - start) / 10)
        torch.cuda.synchronize(device)
        best = min(best, (time.perf_counter() - start) / 10)
    return Rates(2 * 4096 * 1024 * 2048 / best, LAUNCHES * host)


LAUNCHES = 3
"""A step is a gather, a product and a kernel, and the views that they need."""
