"""Classify nested JSON records: the same ten lines for molecules, patients, games and recipes.

    python examples/json_records.py --data DIR      (or WEFT_DATA; DIR holds nested_json/)

Prints a table: accuracy on a third of the records that was not trained on, mean and spread over 5 random splits, beside that of
answering with the class that is most frequent in the training part.
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
from weft.blocks.schema import Text

NAMES = ("mutagenesis", "hepatitis", "chess", "recipes")


def train(records: list[Any], labels: Tensor, classes: int) -> nn.Module:
    schema = wb.Json.schema_of(records)
    schema = schema if len(records) >= 1000 else schema.without(Text)  # a few hundred texts are learned by heart
    net = wb.compile(wb.Json(schema, 16, keep_prob=0.8) >> nn.Linear(16, classes), cache=id)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2, weight_decay=0.1)
    for _ in range(20):
        for at in torch.randperm(len(records)).split(32):
            loss = F.cross_entropy(net([records[i] for i in at]), labels[at])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
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


def split_accuracy(records: list[Any], labels: Tensor, seed: int) -> tuple[float, float]:
    """Right answers on the part that was not trained on: of the network, and of the most frequent class."""
    torch.manual_seed(seed)
    order = torch.randperm(len(records))
    seen, unseen = order.tensor_split([2 * len(records) // 3])
    net = train([records[i] for i in seen], labels[seen], int(labels.max()) + 1)
    with torch.no_grad():
        right = net([records[i] for i in unseen]).argmax(1) == labels[unseen]
    frequent = labels[seen].bincount().argmax()
    return 100 * float(right.float().mean()), 100 * float((labels[unseen] == frequent).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("WEFT_DATA"), help="folder that holds nested_json/")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--show", metavar="NAME", choices=NAMES, help="print what was found in a data set, and the network")
    chosen = parser.parse_args()
    if not chosen.data:
        parser.error("no data: give --data DIR or set WEFT_DATA")
    torch.set_num_threads(1)
    folder = Path(chosen.data) / "nested_json"
    if chosen.show:
        schema = wb.Json.schema_of(load(folder, chosen.show)[0])
        print(schema, wb.Json(schema, 16), sep="\n\n")
        return
    print("| data | records | classes | largest class | most frequent class | accuracy | points above it |")
    print("|---|---|---|---|---|---|---|")
    for name in NAMES:
        records, labels = load(folder, name)
        largest = 100 * int(labels.bincount().max()) / len(labels)
        rows = [split_accuracy(records, labels, seed) for seed in range(chosen.seeds)]
        scores, plain = [row[0] for row in rows], statistics.mean(row[1] for row in rows)
        mean, spread = statistics.mean(scores), statistics.pstdev(scores)
        facts = f"| {name} | {len(records)} | {int(labels.max()) + 1} | {largest:.1f} % | {plain:.1f} % "
        print(f"{facts}| {mean:.1f} ± {spread:.1f} % | {mean - plain:+.1f} |", flush=True)


if __name__ == "__main__":
    main()
