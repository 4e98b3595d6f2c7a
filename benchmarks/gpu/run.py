"""Measure weft on a GPU beside hand-batched PyTorch and cuDNN: `python -m benchmarks.gpu.run --data DIR`.

Times are microseconds of one training step: cached graphs are merged, planned anew (where batches differ in structure), copied
to the device, and run forward and backward. `wall` is the time of steps that follow each other on changing batches, `host` what
the host is busy with (the median of rounds, the quietest round, and parts of it), `device` the time of all kernels. Steps run
on the core that is fastest at that moment. TF32 products.
Before Tree-LSTMs are timed, their results are compared with float64 on a CPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import weft
import weft.nn
from benchmarks import data
from benchmarks.gpu import graphs, looks, others, replays, timing, trees
from weft.arguments import why_no_folder

REPORTS = Path(__file__).parents[1] / "reports"
CHECKED = 2e-3
"""Relative error of TF32 products over many levels that is still right."""


def measured(
    steps: dict[str, Callable[[Any], None]], batches: Sequence[Any], parameters: Sequence[torch.Tensor] = ()
) -> dict[str, float]:
    """All figures of one case, of the host more where parameters are given. The first step is weft's."""
    found = {f"{name} wall": round(time, 1) for name, time in timing.walls(steps, batches).items()}
    (ours, step), *rest = steps.items()
    if parameters:
        every, quietest = timing.host(step, batches, parameters, rounds=15)
        found |= {f"{ours} host": round(every, 1), f"{ours} host, quietest": round(quietest, 1)}
        parts = timing.host_parts(step, batches)
        found |= {f"{ours} host, {part}": round(time, 1) for part, time in parts.items()}
    else:
        found[f"{ours} host"] = round(timing.host(step, batches)[0], 1)
    kernels, count, kinds = timing.device(step, batches)
    found |= {f"{ours} device": round(kernels, 1), f"{ours} kernels": count}
    found[f"{ours} sweeps"] = round(kinds.get("sweep", 0.0), 1)
    found[f"{ours} MB"] = round(timing.memory(step, batches) / 1e6, 1)
    if rest:
        best = min(rest, key=lambda one: found[f"{one[0]} wall"])
        found["times faster"] = round(found[f"{best[0]} wall"] / found[f"{ours} wall"], 2)
        found["hand MB"] = round(timing.memory(best[1], batches) / 1e6, 1)
    return found


def check_trees(batch: trees.Batch, d: int) -> float:
    """The largest relative error of outputs and gradients against float64 on a CPU."""
    model = weft.nn.NaryTreeLSTM(trees.D_IN, d)
    graph = weft.Graph.batch(batch.graphs)
    exact = weft.nn.NaryTreeLSTM(trees.D_IN, d).double()
    exact.load_state_dict({name: tensor.double() for name, tensor in model.state_dict().items()})
    expected = exact(graph, batch.x.cpu().double())
    expected.backward(batch.gradient.cpu().double())
    model.cuda()
    out = model(graph, batch.x)
    out.backward(batch.gradient)
    pairs = [(out, expected), *((p.grad, q.grad) for p, q in zip(model.parameters(), exact.parameters(), strict=True))]
    return max(
        float((a.detach().cpu().double() - b.detach()).norm() / b.detach().norm())
        for a, b in pairs
        if a is not None and b is not None
    )


def tree_cases(folder: str | None, sizes: Sequence[tuple[int, int]]) -> dict[str, dict[str, float]]:
    read, graphs = trees.load(folder, 4096)
    found = {}
    for d, count in sizes:
        batches = []
        for seed in range(8 if count < 1024 else 3):
            pick = np.random.default_rng(seed).permutation(len(read))[:count]
            batches.append(trees.make_batch([read[i] for i in pick], [graphs[i] for i in pick], d, seed))
        error = check_trees(batches[0], d)
        if not error < CHECKED:
            raise SystemExit(f"tree_lstm, hidden {d}, {count} trees: relative error {error}; nothing is reported")
        model = weft.nn.NaryTreeLSTM(trees.D_IN, d).cuda()
        hand = trees.Hand(model, d)
        steps = {"weft": trees.weft_step(model), "growing": trees.hand_step(model, hand.growing)}
        if count <= 64:
            steps["preallocated"] = trees.hand_step(model, hand.preallocated)
        figures = {"error": error, **measured(steps, batches, list(model.parameters()))}
        if count <= 256 and d == 256:
            with tempfile.TemporaryDirectory() as there:
                figures |= timing.launches(steps["weft"], batches[0], Path(there) / "trace.json")
        found[f"Tree-LSTM on SST, hidden {d}, {count} trees"] = figures
    return found


def sequence_cases(d: int, counts: Sequence[int]) -> dict[str, dict[str, float]]:
    found = {}
    for count in counts:
        lengths = [np.random.default_rng(seed).integers(5, 60, count).tolist() for seed in range(4)]
        batches = [others.make_sequences(each, d, seed) for seed, each in enumerate(lengths)]
        steps = {
            "weft": others.lstm_step(weft.nn.LSTM(d, d).cuda()),
            "cuDNN packed": others.cudnn_step(torch.nn.LSTM(d, d).cuda()),
        }
        found[f"LSTM, hidden {d}, {count} sequences of 5 to 59"] = measured(steps, batches)
    return found


def full_tree_cases(sizes: Sequence[tuple[int, int]]) -> dict[str, dict[str, float]]:
    found = {}
    for d, count in sizes:
        batches = [others.make_full_trees(count, 256, d, seed) for seed in range(3)]
        model = weft.nn.TreeFC(d).cuda()
        steps = {"weft": others.tree_fc_step(model), "reshapes": others.tree_fc_by_hand(model)}
        found[f"Tree-FC, hidden {d}, {count} full trees of 256 leaves"] = measured(steps, batches)
    return found


def graph_cases(folder: str | None, counts: Sequence[int], d: int = 256) -> dict[str, dict[str, float]]:
    found = {}
    for count in counts:
        batches = graphs.sick_batches(folder, count, d, 6)
        model = weft.nn.ChildSumTreeLSTM(graphs.D_IN, d).cuda()
        steps = {"weft": graphs.weft_step(model), "growing": graphs.hand_step(model, graphs.child_sum)}
        found[f"child-sum Tree-LSTM on SICK, hidden {d}, {count} trees"] = measured(steps, batches)
        gru = weft.nn.TreeGRU(graphs.D_IN, d).cuda()
        steps = {"weft": graphs.weft_step(gru), "growing": graphs.hand_step(gru, graphs.tree_gru)}
        found[f"Tree-GRU on SICK, hidden {d}, {count} trees"] = measured(steps, batches)
        cell = weft.nn.GridCell(graphs.D_IN, d).cuda()
        steps = {"weft": graphs.weft_step(cell, anew=False), "growing": graphs.hand_step(cell, graphs.grid)}
        found[f"10 x 10 grids, hidden {d}, {count} grids"] = measured(steps, graphs.grid_batches(count, d, 3))
    return found


PARTS = ("trees", "sequences", "full", "graphs", "replays", "looks", "epoch")


def part_cases(part: str, folder: str | None) -> dict[str, dict[str, float]]:
    """The cases of one part of the report."""
    if part == "quick":
        return tree_cases(folder, [(256, 16), (256, 256)])
    if part == "trees":
        return tree_cases(folder, [*((256, n) for n in (1, 16, 64, 256, 1024)), (512, 256)])
    if part == "sequences":
        return sequence_cases(512, (1, 16, 64, 256, 1024))
    if part == "full":
        return full_tree_cases([(512, 1), (512, 16), (512, 64), (1024, 1), (1024, 16), (1024, 64)])
    if part == "graphs":
        return graph_cases(folder, (1, 16, 64, 256))
    if part == "replays":
        return replays.cases(folder, (1, 16, 64))
    if part == "looks":
        return looks.cases((1, 32, 256, 1024))
    read, words = data.sst(data.folder(folder), "train")
    return {"epoch of SST, hidden 150, batch 256": {"trees per second": round(others.sst_epoch(read, words))}}


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.run", description=__doc__)
    parser.add_argument("--data", help="folder with sst/ (default: WEFT_DATA)")
    parser.add_argument("--quick", action="store_true", help="two sizes of one workload")
    parser.add_argument("--only", nargs="*", choices=PARTS, help="some of the parts")
    parser.add_argument("--out", type=Path, default=REPORTS, help="folder of the report")
    chosen = parser.parse_args(given)
    if problem := why_no_folder(chosen.out):
        parser.error(f"--out: {problem}")
    chosen.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    about = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "what": " ".join((__doc__ or "").split()),
    }
    path = chosen.out / time.strftime("gpu-%Y-%m-%d-%H%M%S.json")
    cases: dict[str, dict[str, float]] = {}
    for part in chosen.only or (["quick"] if chosen.quick else PARTS):
        found = part_cases(part, chosen.data)
        for name, figures in found.items():
            print(name, *(f"{key} {value:g}" for key, value in figures.items()), sep="\n    ")
        cases |= found
        path.write_text(json.dumps({"about": about, "cases": cases}, indent=1) + "\n", encoding="utf-8")
    print("report:", path.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
