"""The table of Looks et al., "Deep Learning with Dynamic Computation Graphs" (ICLR 2017): inference on random binary trees of
128 leaves with states of 1024 numbers, trees of one shape and all different, beside running one tree at a time.

The cell is `weft.nn.GatedTree`: gated, with one vector as its state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

import weft
import weft.nn
from benchmarks.gpu import timing
from benchmarks.gpu.trees import keep_no_plans

CUDA = torch.device("cuda")
LEAVES, D = 128, 1024
PUBLISHED = {32: 69, 256: 121, 1024: 102}
"""Speed-up over one by one that the paper gives, by batch (GTX 1080); shown beside trees that are all different."""


def random_tree(seed: int) -> list[list[int]]:
    """Children of a binary tree: neighbours are joined at random until one is left."""
    random = np.random.default_rng(seed)
    children: list[list[int]] = [[] for _ in range(LEAVES)]
    ends = list(range(LEAVES))
    while len(ends) > 1:
        at = int(random.integers(len(ends) - 1))
        children.append(ends[at : at + 2])
        ends[at : at + 2] = [len(children) - 1]
    return children


def one_tree(model: weft.nn.GatedTree, children: list[list[int]], x: Tensor) -> Tensor:
    """One vertex at a time."""
    gates = next(module for module in model.modules() if isinstance(module, nn.Linear))
    states: list[Tensor] = []
    for vertex, kids in enumerate(children):
        if not kids:
            states.append(x[vertex])
            continue
        left, right = states[kids[0]], states[kids[1]]
        a, b, u = gates(torch.cat([left, right])).chunk(3)
        states.append((a.sigmoid() * left + b.sigmoid() * right + u).tanh())
    return states[-1]


def cases(counts: Sequence[int]) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    model = weft.nn.GatedTree(D).to(CUDA).eval()
    shapes = [random_tree(seed) for seed in range(max(counts))]
    graphs = [weft.Graph(shape, types=[int(bool(kids)) for kids in shape]) for shape in shapes]
    n = 2 * LEAVES - 1
    found: dict[str, dict[str, float]] = {}
    with torch.no_grad():
        x = torch.randn(max(counts) * n, D, device=CUDA)
        roots = torch.arange(1, max(counts) + 1, device=CUDA) * n - 1
        single = timing.walls({"one": lambda at: one_tree(model, shapes[at], x)}, [0, 1], 3)["one"]
        for same in (True, False):
            if not same:  # plans of one structure are made once
                keep_no_plans(model)
            for count in counts:
                chosen = graphs[:1] * count if same else graphs[:count]
                rows = x[: count * n]

                def step(batch: list[weft.Graph], rows: Tensor = rows, count: int = count) -> None:
                    model(weft.Graph.batch(batch), rows).index_select(0, roots[:count])

                figures = {"weft wall": round(timing.walls({"weft": step}, [chosen, chosen], 5)["weft"], 1)}
                figures["one by one wall"] = round(single * count, 1)
                figures["times faster"] = round(single * count / figures["weft wall"], 1)
                if count in PUBLISHED and not same:
                    figures["published"] = PUBLISHED[count]
                kind = "one shape" if same else "all different"
                found[f"Looks et al. 2017, inference, {count} trees of {LEAVES} leaves, {kind}"] = figures
    return found
