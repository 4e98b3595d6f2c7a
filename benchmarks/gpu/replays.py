"""Training on batches that come again: `graph=True` beside the same steps without, Tree-LSTM on SST trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

import weft
import weft.nn
from benchmarks.gpu import timing, trees

BATCHES = 4


def training_step(model: weft.nn.NaryTreeLSTM, **options: object) -> Callable[[trees.Batch], None]:
    """Merging cached graphs, finding their plan, forward and backward."""
    parameters = list(model.parameters())

    def step(batch: trees.Batch) -> None:
        trees.without_gradients(parameters)
        model(weft.Graph.batch(batch.graphs), batch.x, **options).backward(batch.gradient)

    return step


def same(model: weft.nn.NaryTreeLSTM, batch: trees.Batch, steps: Sequence[Callable[[trees.Batch], None]]) -> bool:
    """Whether all kinds of steps give the same gradients, bit for bit."""
    found = []
    for step in steps:
        for _ in range(4):
            step(batch)
        found.append([parameter.grad for parameter in model.parameters()])
    return all(a is not None and b is not None and torch.equal(a, b) for a, b in zip(*found, strict=True))


def cases(folder: str | None, counts: Sequence[int], d: int = 256) -> dict[str, dict[str, float]]:
    read, graphs = trees.load(folder, 4096)
    found = {}
    for count in counts:
        picks = [np.random.default_rng(seed).permutation(len(read))[:count] for seed in range(BATCHES)]
        batches = [
            trees.make_batch([read[i] for i in pick], [graphs[i] for i in pick], d, seed) for seed, pick in enumerate(picks)
        ]
        model = weft.nn.NaryTreeLSTM(trees.D_IN, d).cuda()
        steps = {"replayed": training_step(model, graph=True), "launched": training_step(model)}
        name = f"Tree-LSTM on SST, hidden {d}, {count} trees, batches that come again"
        if not same(model, batches[0], [*steps.values()]):
            raise SystemExit(f"{name}: replays give other gradients; nothing is reported")
        figures = {f"{kind} wall": round(time, 1) for kind, time in timing.walls(steps, batches).items()}
        for kind, step in steps.items():
            figures[f"{kind} host"] = round(timing.host(step, batches)[0], 1)
            figures[f"{kind} device"] = round(timing.device(step, batches)[0], 1)
        found[name] = figures
    return found
