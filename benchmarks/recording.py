"""What recording costs, and what it buys: `python -m benchmarks.recording`.

First microseconds per recorded call of each kind; then, for the Tree-LSTM of examples/tree_lstm.py, the trade-off of
just-in-time batching: analysis (recording and planning) against the number of batches, for each granularity and policy.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from examples import tree_lstm
from torch import Tensor, nn

import weft

CALLS = 20000
ROUNDS = 8
"""How often a batch is planned; the first two times learn, the shortest of the others counts."""


class Pair(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(a) * b


def microseconds() -> dict[str, float]:
    """The cost of one recorded call of each kind, the shortest of five rounds."""
    linear, embed, pair = nn.Linear(4, 4), nn.Embedding(5, 4), weft.cell(Pair())
    kinds: dict[str, Callable[[Any, Any], Any]] = {
        "marked cell, two arguments": lambda h, g: pair(h, g),
        "layer of torch.nn": lambda h, g: linear(h),
        "operator, h * g": lambda h, g: h * g,
        "method, h.tanh()": lambda h, g: h.tanh(),
        "function, torch.tanh(h)": lambda h, g: torch.tanh(h),
        "function, F.relu(h)": lambda h, g: F.relu(h),
        "embedded constant, embed(torch.tensor(3))": lambda h, g: embed(torch.tensor(3)),
    }
    found: dict[str, float] = {}

    def fn(x: Tensor) -> Tensor:
        h, g = linear(x), linear(x)
        for name, call in kinds.items():
            rounds = []
            for _ in range(5):
                started = time.perf_counter()
                for _ in range(CALLS // 5):
                    call(h, g)
                rounds.append((time.perf_counter() - started) / (CALLS // 5))
            found[name] = min(rounds) * 1e6
        return h

    weft.batched(fn)(torch.ones(1, 4))
    return found


def trade_off(count: int) -> list[tuple[str, str, float, float, int, int]]:
    """(granularity, policy, milliseconds to record, to plan, calls, batches) for one batch of trees, the shortest of some."""
    trees, words = tree_lstm.trees(count)
    model = tree_lstm.TreeLSTM(words, 60, 30, marked=False)
    rows = []
    for granularity in ("operator", "cell", "auto"):
        for policy in ("depth", "agenda", "condense"):
            taken = []
            for turn in range(ROUNDS):  # in another order each time, so that no plan can be kept
                turned = [*trees[turn:], *trees[:turn]]
                taken.append(weft.plan(model, turned, granularity=granularity, policy=policy).stats())
            record, plan = (min(numbers[name] for numbers in taken[2:]) * 1e3 for name in ("record_s", "plan_s"))
            rows.append((granularity, policy, record, plan, int(taken[-1]["nodes"]), int(taken[-1]["batches"])))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with sst/ (default: WEFT_DATA, else trees that come with weft)")
    parser.add_argument("--trees", type=int, default=64)
    options = parser.parse_args()
    if options.data:
        os.environ["WEFT_DATA"] = options.data
    torch.set_num_threads(1)
    print("| recorded call | µs |\n|---|---|")
    for name, cost in microseconds().items():
        print(f"| {name} | {cost:.2f} |")
    print(f"\n{options.trees} trees, unmarked:\n")
    print("| granularity | policy | record, ms | plan, ms | calls | batches |\n|---|---|---|---|---|---|")
    for granularity, policy, record, plan, calls, batches in trade_off(options.trees):
        print(f"| {granularity} | {policy} | {record:.0f} | {plan:.1f} | {calls} | {batches} |")


if __name__ == "__main__":
    main()
