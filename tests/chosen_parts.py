"""Calls that return rows of some nodes, for tests with a GPU and without: recorded code, blocks, and `at=`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import weft
import weft.blocks as wb
import weft.nn
from kernel_parts import tree

Call = Callable[..., Tensor]
"""With options: all results, side by side."""


class Pairs(nn.Module):
    """Trees of numbers. What it returns holds one value twice, and values of several layers."""

    def __init__(self, d: int = 4) -> None:
        super().__init__()
        self.leaf, self.node, self.out = nn.Linear(1, d), nn.Linear(2 * d, d), nn.Linear(d, 2)

    def encode(self, pair: Any) -> Tensor:
        if isinstance(pair, float):
            return torch.tanh(self.leaf(torch.tensor([pair])))
        return torch.tanh(self.node(torch.cat([self.encode(part) for part in pair])))

    def forward(self, pair: Any) -> tuple[Tensor, ...]:
        top = self.encode(pair)
        return top, self.out(top), top


PAIRS = [((0.1, 0.2), 0.3), ((0.5, 0.6), (0.7, (0.8, 0.9))), (0.1, 0.4)]


def _code(device: torch.device) -> tuple[nn.Module, Call]:
    return _recorded(Pairs().to(device), PAIRS)


def _recorded(model: nn.Module, examples: Any) -> tuple[nn.Module, Call]:
    nets: dict[Any, Any] = {}

    def call(**options: Any) -> Tensor:
        key = tuple(options.items())
        net = nets.setdefault(key, weft.batched(model, cache=True, **options))
        return torch.cat(net(examples), 1)

    return model, call


class Words(nn.Module):
    """Trees of words. One table is read as leaves, as marks of inner nodes, two at a time, and at the top."""

    def __init__(self, d: int = 4) -> None:
        super().__init__()
        self.table, self.tags = nn.Embedding(12, d, padding_idx=2), nn.Embedding(3, 2)
        self.node, self.out = nn.Linear(4 * d, d), nn.Linear(d, 2)

    def encode(self, tree: Any) -> Tensor:
        if isinstance(tree, int):
            return self.table(self.numbers(tree))
        marks = self.table(self.numbers([len(tree), 11])).flatten()
        return torch.tanh(self.node(torch.cat([marks, *map(self.encode, tree)])))

    def numbers(self, words: Any) -> Tensor:
        return torch.tensor(words, device=self.table.weight.device)

    def forward(self, tree: Any) -> tuple[Tensor, ...]:
        top = self.encode(tree)
        return top, self.out(top) * self.tags(self.numbers(1)), self.table(self.numbers(5)) + top


TREES = [((1, 2), 3), ((5, 2), (7, (2, 9))), (1, 4)]


def _words(device: torch.device) -> tuple[nn.Module, Call]:
    return _recorded(Words().to(device), TREES)


def _blocks(device: torch.device) -> tuple[nn.Module, Call]:
    pair = wb.ForwardDeclaration(wb.PyObjectType(), wb.TensorType([4]))
    leaf = wb.Vector(3) >> nn.Linear(3, 4)
    both = wb.Record((pair(), pair())) >> wb.Concat() >> nn.Linear(8, 4) >> wb.Function(torch.tanh)
    pair.resolve_to(wb.OneOf(lambda x: len(x) == 2, {False: leaf, True: both}))
    model = pair().to(device)
    one, two, three = [0.1, 0.2, 0.3], [0.5, 0.2, 0.3], [0.7, 0.2, 0.3]
    examples = [(one, two), ((one, two), three), (three, (two, two))]

    def call(**options: Any) -> Tensor:
        return wb.compile(model, **options)(examples)

    return model, call


def _at(nodes: Callable[[weft.Graph], Any], device: torch.device) -> tuple[nn.Module, Call]:
    model = weft.nn.NaryTreeLSTM(3, 4).to(device)
    graph = weft.Graph.batch([tree(leaves) for leaves in (3, 1, 5, 2)])
    x = torch.linspace(-1, 1, 3 * graph.num_vertices, device=device).view(-1, 3)
    return model, lambda **options: model(graph, x, at=nodes(graph), **options)


CASES: dict[str, Callable[[torch.device], tuple[nn.Module, Call]]] = {
    "plain code": _code,
    "plain code with embeddings": _words,
    "blocks": _blocks,
    "roots, some of which are leaves": partial(_at, lambda graph: graph.roots),
    "nodes, some of them twice": partial(_at, lambda graph: [4, 2, 4, 3, 4]),
    "leaves": partial(_at, lambda graph: [1, 0]),
}


def step(model: nn.Module, call: Call, **options: Any) -> dict[str, Tensor]:
    """Results and all gradients of one training step, by name."""
    model.zero_grad()
    out = call(**options)
    out.backward(torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out))
    found = {"out": out.detach(), **{name: p.grad for name, p in model.named_parameters()}}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, rtol=1e-5, atol=1e-6), name
