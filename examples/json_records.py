"""Classify nested JSON records: the same ten lines for molecules, patients, games and recipes.

    python examples/json_records.py --data DIR      (or WEFT_DATA; DIR holds nested_json/)

Prints a table: accuracy on a third of the records that was not trained on, mean and spread over 5 random splits with equal
shares of the classes, beside that of always answering with the largest class: its share in the held-out third, and in all
records. How strong the regularisation is, is chosen in each split by its training part alone: the strength with the lower loss
on a quarter of it, after training on the rest.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import statistics
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import weft.blocks as wb

NAMES = ("mutagenesis", "hepatitis", "chess", "recipes")
STRENGTHS = (0.3, 3.0)
EPOCHS = 30


def train(records: list[Any], labels: Tensor, classes: int, strength: float) -> nn.Module:
    net = wb.compile(wb.Json(records, 16) >> nn.Linear(16, classes), cache=id)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=strength / len(records))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, EPOCHS)
    for _ in range(EPOCHS):
        for at in torch.randperm(len(records)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(net([records[i] for i in at]), labels[at]).backward()
            optimizer.step()
        schedule.step()
    return net.eval()


def load(folder: Path, name: str) -> tuple[list[Any], Tensor]:
    """Records and classes from 0."""
    if name == "recipes":
        with lzma.open(folder / "recipes.jsonl.xz", "rt", encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
        answers = [record.pop("cuisine") for record in records]
        known = sorted(set(answers))
        return records, torch.tensor([known.index(answer) for answer in answers])
    with lzma.open(folder / f"{name}.json.xz", "rt", encoding="utf-8") as file:
        data = json.load(file)
    return data["x"], torch.tensor(data["y"]) - 1


def split(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Two parts at random, the first with this share of each class."""
    generator = torch.Generator().manual_seed(seed)
    members = [(labels == each).nonzero().flatten() for each in range(int(labels.max()) + 1)]
    mixed = [group[torch.randperm(len(group), generator=generator)] for group in members]
    parts = [group.tensor_split([round(share * len(group))]) for group in mixed]
    return torch.cat([first for first, _ in parts]), torch.cat([second for _, second in parts])


def answers(net: nn.Module, records: list[Any], at: Tensor) -> Tensor:
    with torch.no_grad():
        return net([records[i] for i in at])  # type: ignore[no-any-return]


def chosen_strength(records: list[Any], labels: Tensor, classes: int, seed: int) -> float:
    """By the loss on a quarter of these records, after training on the others."""
    fitted, held = split(labels, 0.75, seed)
    losses = {}
    for strength in STRENGTHS:
        net = train([records[i] for i in fitted], labels[fitted], classes, strength)
        losses[strength] = float(F.cross_entropy(answers(net, records, held), labels[held]))
    return min(losses, key=lambda strength: losses[strength])


def split_accuracy(records: list[Any], labels: Tensor, seed: int) -> tuple[float, float, float]:
    """In per cent of the third that is held out: right answers, the largest class; and the strength that was chosen."""
    torch.manual_seed(seed)
    seen, unseen = split(labels, 2 / 3, seed)
    classes = int(labels.max()) + 1
    inner = [records[i] for i in seen]
    strength = chosen_strength(inner, labels[seen], classes, seed)
    net = train(inner, labels[seen], classes, strength)
    right = answers(net, records, unseen).argmax(1) == labels[unseen]
    return 100 * float(right.float().mean()), 100 * int(labels[unseen].bincount().max()) / len(unseen), strength


def table_row(name: str, records: list[Any], labels: Tensor, seeds: int) -> str:
    largest = 100 * int(labels.bincount().max()) / len(labels)
    rows = [split_accuracy(records, labels, seed) for seed in range(seeds)]
    scores, held_out = [row[0] for row in rows], statistics.mean(row[1] for row in rows)
    mean, spread = statistics.mean(scores), statistics.pstdev(scores)
    strengths = " ".join(f"{row[2]:g}" for row in rows)
    facts = f"| {name} | {len(records)} | {int(labels.max()) + 1} | {mean:.1f} ± {spread:.1f} % "
    return f"{facts}| {held_out:.1f} % | {mean - held_out:+.1f} | {largest:.1f} % | {mean - largest:+.1f} | {strengths} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, help=f"data sets; without any: {' '.join(NAMES)}")
    parser.add_argument("--data", default=os.environ.get("WEFT_DATA"), help="folder that holds nested_json/")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--show", action="store_true", help="print what was found in the data sets, and the networks")
    chosen = parser.parse_args()
    if not chosen.data:
        parser.error("no data: give --data DIR or set WEFT_DATA")
    torch.set_num_threads(1)
    folder = Path(chosen.data) / "nested_json"
    if chosen.show:
        for name in chosen.names:
            schema = wb.Json.schema_of(load(folder, name)[0])
            print(schema, wb.Json(schema, 16), sep="\n\n")
        return
    print("| data | records | classes | accuracy | largest class held out | above | largest class of all | above | strengths |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in chosen.names:
        print(table_row(name, *load(folder, name), chosen.seeds), flush=True)


if __name__ == "__main__":
    main()
