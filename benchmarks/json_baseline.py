"""How much of the chess results a hand-made feature foretells: softmax regression on the difference of the two ratings alone.

    python -m benchmarks.json_baseline --data DIR      (or WEFT_DATA; DIR holds nested_json/)

The splits are those of `examples/json_records.py`. Prints the mean accuracy over the first 5 and over 50 of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from examples.json_records import load, split
from torch import Tensor


def rating_differences(records: list[Any]) -> Tensor:
    found = torch.tensor([record["whiteElo"] - record["BlackElo"] for record in records], dtype=torch.float64)
    return (found - found.mean()) / found.std()


def accuracy(feature: Tensor, labels: Tensor, seed: int) -> float:
    """Right answers in per cent of the held-out third, after fitting to the other two."""
    seen, unseen = split(labels, 2 / 3, seed)
    weights = torch.zeros(2, int(labels.max()) + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def scores(at: Tensor) -> Tensor:
        return feature[at, None] * weights[0] + weights[1]

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = F.cross_entropy(scores(seen), labels[seen])
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimizer.step(loss)  # type: ignore[arg-type]
    return 100 * float((scores(unseen).argmax(1) == labels[unseen]).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("WEFT_DATA"), help="folder that holds nested_json/")
    chosen = parser.parse_args()
    if not chosen.data:
        parser.error("no data: give --data DIR or set WEFT_DATA")
    torch.set_num_threads(1)
    records, labels = load(Path(chosen.data) / "nested_json", "chess")
    found = [accuracy(rating_differences(records), labels, seed) for seed in range(50)]
    for count in (5, 50):
        print(f"difference of ratings alone, {count} splits: {statistics.mean(found[:count]):.1f} %")


if __name__ == "__main__":
    main()
