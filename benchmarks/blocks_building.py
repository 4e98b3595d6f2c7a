"""What it costs to record an example with blocks: `python -m benchmarks.blocks_building`.

A block call is one block at work on one value, as `block.trace` lists them. Nothing is computed while recording.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

import torch
from torch import nn

import weft.blocks as wb
from benchmarks.workloads.blocks_tree_lstm import tree_block

AT_MOST = 2.0
"""Microseconds for a block call, the target."""


def calculator() -> tuple[wb.Block, list[Any]]:
    """Expressions of 63 operators as nested records."""
    expression = wb.ForwardDeclaration(wb.PyObjectType(), wb.TensorType([]))
    pair = wb.Record([("left", expression()), ("right", expression())])
    cases = {
        "num": wb.GetItem("value") >> wb.Scalar(),
        "+": pair >> wb.Function(torch.add),
        "*": pair >> wb.Function(torch.mul),
    }
    expression.resolve_to(wb.OneOf(wb.GetItem("op"), cases))
    draw = random.Random(0)

    def tree(height: int) -> Any:
        if height == 0:
            return {"op": "num", "value": draw.random()}
        return {"op": draw.choice("+*"), "left": tree(height - 1), "right": tree(height - 1)}

    return expression(), [tree(6) for _ in range(64)]


def tree_lstm() -> tuple[wb.Block, list[Any]]:
    """Random binary trees of words, with a classifier at every vertex."""
    draw = random.Random(0)

    def tree(words: int) -> Any:
        if words == 1:
            return draw.randrange(100)
        left = draw.randrange(1, words)
        return tree(left), tree(words - left)

    leaf, node = nn.Embedding(100, 8), nn.Bilinear(8, 8, 8)
    block = tree_block(Twice(leaf), Both(node), nn.Linear(8, 5), 8)
    return block, [tree(20) for _ in range(64)]


class Twice(nn.Module):
    """A leaf whose hidden and memory state are its row."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table

    def forward(self, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.table(word), self.table(word)


class Both(nn.Module):
    """A vertex whose states are a bilinear form of those of its children."""

    def __init__(self, form: nn.Bilinear) -> None:
        super().__init__()
        self.form = form

    def forward(self, left: Any, right: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self.form(left[0], right[0]), self.form(left[1], right[1])


def nested_records() -> tuple[wb.Block, list[Any]]:
    """JSON records with lists of records inside, encoded by `Json`."""
    draw = random.Random(0)

    def record() -> Any:
        marks = [{"value": draw.random(), "kind": draw.choice("abc")} for _ in range(draw.randrange(12))]
        return {"age": draw.randrange(90), "marks": marks, "note": draw.choice(["well", "ill"])}

    records = [record() for _ in range(64)]
    return wb.Json(records, 8), records


def microseconds(block: wb.Block, examples: list[Any], rounds: int = 9) -> tuple[float, int]:
    """The median over rounds of the time to record all examples, for each block call; and how many calls there are."""
    net = wb.compile(block)
    calls = sum(len(block.trace(example)) for example in examples)
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        for example in examples:
            net.program(example)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) / calls * 1e6, calls


def main() -> None:
    torch.set_num_threads(1)
    for make in (calculator, tree_lstm, nested_records):
        cost, calls = microseconds(*make())
        verdict = "met" if cost <= AT_MOST else "missed"
        print(f"{make.__name__:16} {calls:7} block calls  {cost:5.2f} µs each   target {AT_MOST:.0f} µs: {verdict}")


if __name__ == "__main__":
    main()
