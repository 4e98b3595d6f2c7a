"""Products of taken rows with a weight, by each kind of tile and by the library: `python -m benchmarks.gpu.products`.

Times are microseconds. Of the device: of many products in one CUDA graph. Of the host: of calls that wait for nothing, with
another number of rows each time, as the batches of a training have, both by Python. TF32 products.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from benchmarks.gpu.timing import one_thread_on_a_quiet_core
from weft.run.gpu import products

CUDA = torch.device("cuda")
ROWS = (300, 1250, 5000, 20000)
TIMES = 20


def on_device(work: Callable[[], object]) -> float:
    """Microseconds of one of many that follow each other."""
    work()
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(TIMES):
            work()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    start.record(torch.cuda.current_stream())
    for _ in range(5):
        graph.replay()
    end.record(torch.cuda.current_stream())
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3 / TIMES / 5


def on_host(work: Callable[[int], object], rows: int) -> float:
    """Microseconds of one call; no two have the same number of rows."""
    found = []
    work(rows)
    with one_thread_on_a_quiet_core():
        for fewer in range(1, 50):
            torch.cuda.synchronize()
            start = time.perf_counter()
            work(rows - fewer)
            found.append((time.perf_counter() - start) * 1e6)
    return statistics.median(found)


class Case:
    """Some rows, taken from twice as many, and a weight."""

    def __init__(self, rows: int, inner: int, columns: int) -> None:
        self.rows, self.inner, self.columns = rows, inner, columns
        self.a, self.weight = torch.randn(2 * rows, inner, device=CUDA), torch.randn(columns, inner, device=CUDA)
        self.places = torch.randperm(2 * rows, device=CUDA)[:rows].sort().values.int()
        self.out = torch.empty(rows, columns, device=CUDA)

    def by_tile(self, tile: products.Tile) -> float:
        numbers = self.rows, 2 * self.rows, *products.parts(self.inner, self.columns)
        go = products.multiplier(self.a.dtype, tile, True, self.inner, self.columns).go
        return on_device(lambda: go(*numbers, self.out, self.a, self.places, self.weight))

    def by_library(self) -> float:
        return on_device(lambda: torch.mm(self.a.index_select(0, self.places), self.weight.t(), out=self.out))

    def times(self) -> dict[str, float]:
        found = {f"tile {tile.rows} x {tile.columns}": self.by_tile(tile) for tile in products.TILES}
        found["copy and library"] = self.by_library()
        a, turned, out = self.a, self.weight.t(), self.out
        found["host: library, without the copy"] = on_host(lambda n: torch.mm(a[:n], turned, out=out[:n]), self.rows)
        found["host: who is chosen"] = on_host(lambda n: products.product(a[:n], turned, out[:n]), self.rows)
        return found


def table(inner: int, columns: int) -> None:
    found = [Case(rows, inner, columns).times() for rows in ROWS]
    print(f"{inner} numbers by {columns} columns, rows", *ROWS, sep=" | ")
    for name in found[0]:
        print(name, *[f"{times[name]:.1f}" for times in found], sep=" | ")


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.products", description=__doc__)
    parser.add_argument("--inner", type=int, default=300)
    parser.add_argument("--columns", type=int, default=768)
    chosen = parser.parse_args(given)
    torch.set_float32_matmul_precision("high")
    table(chosen.inner, chosen.columns)


if __name__ == "__main__":
    main()
