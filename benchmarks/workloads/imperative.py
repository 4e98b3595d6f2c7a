"""Per-example code: the recursive Tree-LSTM of examples/tree_lstm.py on SST trees, recording included, in every granularity.

Beside a loop over the trees: cells marked, unmarked, single operators, recordings kept. Then models that look at their values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from examples import early_exit, parser, sampler, tree_decoder, tree_lstm
from torch import Tensor

import weft
from benchmarks.harness import Instance, Variant, training
from benchmarks.workloads.common import ONE, WEFT, CaseSpec, Options, Target

MARKED, UNMARKED, OPERATORS, KEPT = "weft, marked cells", "weft, unmarked", "weft, single operators", "weft, recordings kept"
D_IN, D = 300, 150
CALLS, LEARNING = 64, 16
"""How many batches a value-dependent model has, of different examples; with so many it has run before anything is measured."""


def _variant(name: str, run: Callable[[], Tensor]) -> Variant:
    return Variant(name, "weft", training(lambda: run().sum()), run)


def tree_instance(options: Options, batch: int, dtype: torch.dtype) -> list[Instance]:
    """A batch of trees, with every way to run one model."""
    trees, words = _trees(options, batch)
    torch.manual_seed(0)
    plain = tree_lstm.TreeLSTM(words, D_IN, D, marked=False).to(dtype)
    marked = tree_lstm.TreeLSTM(words, D_IN, D).to(dtype)
    marked.embed, marked.out = plain.embed, plain.out
    marked.leaf.gates, marked.cell.gates = plain.leaf.gates, plain.cell.gates
    nets = {
        MARKED: weft.batched(marked),
        UNMARKED: weft.batched(plain),
        OPERATORS: weft.batched(plain, granularity="operator"),
        KEPT: weft.batched(marked, cache=True),
    }

    def loop() -> Tensor:
        return torch.stack([plain(tree) for tree in trees])

    variants = [Variant(ONE, "one by one", training(lambda: loop().sum()), loop)]
    variants += [_variant(name, partial(net, trees)) for name, net in nets.items()]
    return [Instance(variants, dict(plain.named_parameters()), {"trees": batch})]


def _trees(options: Options, count: int) -> tuple[list[Any], int]:
    import os

    before = os.environ.get("WEFT_DATA")
    os.environ["WEFT_DATA"] = str(options.folder())
    try:
        return tree_lstm.trees(count)
    finally:
        if before is None:
            del os.environ["WEFT_DATA"]
        else:
            os.environ["WEFT_DATA"] = before


class Stream:
    """Batches of examples: every call of a variant takes the next one, and none comes again before all have been had."""

    def __init__(self, inputs: Sequence[Any], count: int) -> None:
        self.inputs, self.count, self.at = inputs, count, -1

    def advance(self) -> None:
        self.at += 1

    def batch(self) -> list[Any]:
        first = self.at % CALLS * self.count
        return [given[first : first + self.count] for given in self.inputs]


def value_instance(make: Callable[[int], tuple[Any, ...]], count: int, dtype: torch.dtype) -> list[Instance]:
    """A model whose path depends on its own numbers. Every call gets new examples, the same ones for all variants."""
    model, *inputs = make(count * CALLS)
    model = model.to(dtype)
    inputs = [given.to(dtype) if isinstance(given, Tensor) else given for given in inputs]
    net = weft.batched(model)
    ours, theirs = Stream(inputs, count), Stream(inputs, count)

    def floats(result: Sequence[Any], rows: int) -> Tensor:
        return torch.cat(
            [part.reshape(rows, -1) for part in result if isinstance(part, Tensor) and part.is_floating_point()], 1
        )

    def loop() -> Tensor:
        return torch.cat([floats(model(*each), 1) for each in zip(*theirs.batch(), strict=True)])

    def batched() -> Tensor:
        return floats(net(*ours.batch()), count)

    step = training(lambda: batched().sum())
    for _ in range(LEARNING):  # what is learned of the code itself: types, blocks, recipes
        ours.advance()
        theirs.advance()
        step()
    variants = [
        Variant(ONE, "one by one", training(lambda: loop().sum()), loop, prepare=theirs.advance),
        Variant(WEFT, "weft", step, batched, prepare=ours.advance),
    ]
    return [Instance(variants, dict(model.named_parameters()), {"examples": count, "batches": CALLS})]


def targets(batch: int) -> Sequence[Target]:
    if batch == 1:
        return Target("train", ONE, 1.0, of=KEPT), Target("train", ONE, 1.3, of=MARKED), Target("train", ONE, 1.3, of=UNMARKED)
    if batch != 64:
        return ()
    return (
        Target("train", ONE, 1 / 12, of=MARKED),
        Target("train", ONE, 1 / 6, of=UNMARKED),
        Target("train", ONE, 1 / 3, of=OPERATORS),
    )


def cases(options: Options) -> list[CaseSpec]:
    found = [
        CaseSpec("imperative", f"{batch} SST trees", batch, partial(tree_instance, options, batch), tuple(targets(batch)))
        for batch in options.choose((1, 16, 64, 256), (16,))
    ]
    models = {"parser": parser, "tree decoder": tree_decoder, "early exit": early_exit, "sampler": sampler}
    for name, module in models.items():
        for batch in (16,) if options.quick else (64, 128, 256):
            build = partial(value_instance, module.example, batch)
            found.append(CaseSpec("imperative", f"{name}, {batch} examples", batch, build, (Target("train", ONE, 1 / 3),)))
    return found
