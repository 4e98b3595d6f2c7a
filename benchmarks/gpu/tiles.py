"""One step of a Tree-LSTM by each kind of tile, and by the library: `python -m benchmarks.gpu.tiles --hidden 512`.

All steps of a batch are of one width: trees in which each inner vertex has a leaf and the inner vertex before it. Times are
microseconds of the device for one step, forward and backward; of the library, of all its kernels together. TF32 products.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile

import weft
import weft.nn
from weft.run.gpu import tiles
from weft.run.gpu.cost import Rates

CUDA = torch.device("cuda")
D_IN = 64
STEPS = 16
ROWS = (32, 64, 128, 256, 512, 1024, 2048)
TIMES = 5


def tree() -> weft.Graph:
    children = [[] if v % 2 or not v else [v - 2, v - 1] for v in range(2 * STEPS + 1)]
    return weft.Graph(children, types=[int(bool(kids)) for kids in children])


def training_step(model: weft.nn.NaryTreeLSTM, rows: int, hidden: int) -> Callable[[], None]:
    graph = weft.Graph.batch([tree()] * rows)
    x, gradient = (torch.randn(graph.num_vertices, width, device=CUDA) for width in (D_IN, hidden))

    def step() -> None:
        model.zero_grad()
        model(graph, x).backward(gradient)

    step()
    step()
    return step


def kernels(step: Callable[[], None]) -> list[tuple[str, float]]:
    """Name and microseconds of each kernel of some steps, in order."""
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], acc_events=True) as trace:
        for _ in range(TIMES):
            step()
        torch.cuda.synchronize()
    events = [event for event in trace.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return [(event.name, event.device_time) for event in sorted(events, key=lambda event: event.time_range.start)]


def by_tile(name: str, hidden: int, rows: Sequence[int]) -> list[str]:
    """All steps by one kind of tile; the first sweep of each training step is the forward one."""
    every, found = dict.fromkeys(tiles.TILES, tiles.TILES[name]), []
    with mock.patch.object(tiles, "TILES", every), mock.patch.object(Rates, "rows", lambda *_: 10**9):
        model = weft.nn.NaryTreeLSTM(D_IN, hidden).to(CUDA)
        for many in rows:
            times = [time for kernel, time in kernels(training_step(model, many, hidden)) if kernel == "sweep"]
            forward, backward = (statistics.median(times[at::2]) / STEPS for at in (0, 1))
            found.append(f"{forward:.1f} + {backward:.1f}")
    return found


def by_library(hidden: int, rows: Sequence[int]) -> list[str]:
    """All steps apart; what runs less often than steps is not part of them."""
    found = []
    with mock.patch.object(Rates, "rows", lambda *_: 1):
        model = weft.nn.NaryTreeLSTM(D_IN, hidden).to(CUDA)
        for many in rows:
            seen = kernels(training_step(model, many, hidden))
            names = [kernel for kernel, _ in seen]
            total = sum(time for kernel, time in seen if names.count(kernel) >= STEPS * TIMES)
            found.append(f"{total / STEPS / TIMES:.1f}")
    return found


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.tiles", description=__doc__)
    parser.add_argument("--hidden", type=int, default=512)
    chosen = parser.parse_args(given)
    torch.set_float32_matmul_precision("high")
    print("rows of a step", *ROWS, sep=" | ")
    for name in tiles.TILES:
        print(name, *by_tile(name, chosen.hidden, ROWS), sep=" | ", flush=True)
    print("library", *by_library(chosen.hidden, ROWS), sep=" | ")


if __name__ == "__main__":
    main()
