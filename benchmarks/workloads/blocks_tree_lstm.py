"""The Tree-LSTM on SST trees written with blocks, beside the vertex-centric one: equal numbers, cached programs in both."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import weft.blocks as wb
from benchmarks import data
from benchmarks.harness import Instance, Variant, training
from benchmarks.workloads import tree_lstm
from benchmarks.workloads.common import WEFT, CaseSpec, Options, Target, part
from weft.nn import NaryTreeLSTM, TreeLSTMLeaf, TreeLSTMNode

BLOCKS = "weft, blocks"
BUILDING = "weft, building the programs alone"


class Leaf(nn.Module):
    """State of a leaf from its word, whose row is fixed."""

    def __init__(self, leaf: TreeLSTMLeaf, table: Tensor) -> None:
        super().__init__()
        self.input = leaf.input
        self.register_buffer("table", table)

    def forward(self, word: Tensor) -> tuple[Tensor, Tensor]:
        i, o, u = self.input(F.embedding(word, self.table)).chunk(3)
        c = i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c


class Node(nn.Module):
    """State of an inner vertex from those of its children."""

    def __init__(self, node: TreeLSTMNode) -> None:
        super().__init__()
        self.hidden = node.hidden

    def forward(self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        rows = self.hidden(torch.cat([left[0], right[0]]))
        d = rows.shape[0] // 5
        i, o, f0, f1 = rows[:-d].sigmoid().chunk(4)
        c = i * rows[-d:].tanh() + f0 * left[1] + f1 * right[1]
        return o * c.tanh(), c


def tree_block(leaf: nn.Module, node: nn.Module, out: nn.Module, size: int) -> wb.Block:
    """A tree is a word, or a pair of trees; the classifier's logits of every vertex are the metric."""
    kind = wb.TensorType([size], next(out.parameters()).dtype)
    state = wb.ForwardDeclaration(wb.PyObjectType(), (kind, kind))
    word = wb.Scalar("int64") >> wb.Function(leaf)
    pair = wb.Record((state(), state())) >> wb.Function(node)
    vertex = wb.Composition()
    with vertex.scope():
        computed = wb.OneOf(_is_pair, (word, pair)).reads(vertex.input)
        wb.Metric("logits").reads(wb.Function(out).reads(computed[0]))
        vertex.output.reads(computed)
    state.resolve_to(vertex)
    return state() >> wb.Void()


def _is_pair(tree: Any) -> bool:
    return type(tree) is tuple


def nested(tree: data.BinaryTree) -> Any:
    """The tree as a word number, or a pair of trees."""
    found: list[Any] = []
    for at, (left, right) in enumerate(tree.children.tolist()):
        found.append(int(tree.words[at]) if left < 0 else (found[left], found[right]))
    return found[-1]


class _BlockStep:
    """A step from cached programs, in another order each time."""

    def __init__(self, net: wb.CompiledBlock, trees: Sequence[data.BinaryTree]) -> None:
        self.net, self.examples = net, [nested(tree) for tree in trees]
        self.programs = [net.program(example) for example in self.examples]
        self.labels = [torch.from_numpy(tree.labels) for tree in trees]
        self.generator = np.random.default_rng(1)
        self.shuffle()

    def shuffle(self) -> None:
        self.places = self.generator.permutation(len(self.programs)).tolist()
        self.y = torch.cat([self.labels[place] for place in self.places])

    def run(self) -> Tensor:
        self.net.run([self.programs[place] for place in self.places])
        return self.net.metrics["logits"]

    def build(self) -> None:
        for example in self.examples:
            self.net.program(example)

    def in_order(self, rows: Tensor) -> Tensor:
        pieces = dict(zip(self.places, rows.split([len(self.labels[place]) for place in self.places]), strict=True))
        return torch.cat([pieces[place] for place in range(len(self.places))])


def make_instance(model: NaryTreeLSTM, trees: Sequence[data.BinaryTree], table: Tensor) -> Instance:
    """The variants of the vertex-centric workload, and blocks over the same parameters."""
    base = tree_lstm.make_instance(model, trees, table)
    leaf, node = part(model, TreeLSTMLeaf), part(model, TreeLSTMNode)
    assert node.out is not None
    step = _BlockStep(wb.compile(tree_block(Leaf(leaf, table), Node(node), node.out, tree_lstm.D)), trees)
    train = training(lambda: tree_lstm.summed_loss(step.run(), step.y))
    variants = [
        *base.variants,
        Variant(BLOCKS, "weft", train, step.run, step.in_order, step.shuffle),
        Variant(BUILDING, "planning", step.build, step.build),
    ]
    return Instance(variants, base.parameters, base.facts)


def cases(options: Options) -> list[CaseSpec]:
    trees, table = tree_lstm.load(options)

    def build(batch: int, dtype: torch.dtype) -> list[Instance]:
        model = tree_lstm.make_model(dtype)
        return [make_instance(model, trees[:batch], table.to(dtype))]

    targets = (Target("train", WEFT, 1 / 0.9, of=BLOCKS),)
    return [
        CaseSpec("blocks_tree_lstm", f"{batch} SST trees, blocks", batch, partial(build, batch), targets)
        for batch in options.choose((64, 256), (16,))
    ]
