"""How much memory training takes as one call, beside hand-batched code: counted where nothing is launched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.data import BinaryTree
from benchmarks.gpu import graphs, others, trees
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import weft
import weft.nn
from cpu_driver import Driver, install
from kernel_parts import NEEDS_INTERPRETER
from weft.run.gpu import apart
from weft.run.gpu.launch import Kernel
from weft.run.gpu.sweep import Walk

pytestmark = NEEDS_INTERPRETER
CPU = torch.device("cpu")
ENOUGH = 0.9
"""Of what hand-batched code takes."""


class Peak(TorchDispatchMode):
    """The most bytes that tensors made meanwhile have at a time."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.known = {StorageWeakRef(tensor.untyped_storage()).cdata for tensor in known}
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in torch.utils._pytree.tree_leaves(result):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                one = StorageWeakRef(storage)
                if one.cdata not in self.known:
                    self.live[one.cdata] = one, storage.nbytes()
        self.live = {key: one for key, one in self.live.items() if not one[0].expired()}
        self.bytes = max(self.bytes, sum(size for _, size in self.live.values()))
        return result


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("launch", "product", "fill", "copy"):
        monkeypatch.setattr(Driver, name, lambda self, *given: 0)
    for module in (trees, graphs, others):
        monkeypatch.setattr(module, "CUDA", CPU)
    install(monkeypatch)
    monkeypatch.setattr(Kernel, "launch", lambda self, *given: None)
    monkeypatch.setattr(Walk, "start", lambda self, *given: None)
    monkeypatch.setattr(apart, "rates", lambda device: SimpleNamespace(rows=lambda operations: 100))
    with torch.autograd.set_multithreading_enabled(False):
        yield


def peak(model: torch.nn.Module, step: Callable[[Any], None], batch: Any) -> int:
    """Bytes of a later step, beyond the gradients that it replaces."""
    for _ in range(3):
        step(batch)
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    with Peak(*model.parameters(), *[one for one in vars(batch).values() if isinstance(one, Tensor)]) as found:
        step(batch)
    return found.bytes - gradients


def ours(model: weft.VertexFunction) -> Callable[[Any], None]:
    def step(batch: Any) -> None:
        model.zero_grad()
        model(weft.Graph.batch(batch.graphs), batch.x, backend="triton").backward(batch.gradient)

    return step


def random_tree(leaves: int, seed: int) -> BinaryTree:
    """Neighbours are joined in random order."""
    made, children, tops = np.random.default_rng(seed), [[-1, -1] for _ in range(leaves)], [*range(leaves)]
    while len(tops) > 1:
        at = int(made.integers(len(tops) - 1))
        children.append(tops[at : at + 2])
        tops[at : at + 2] = [len(children) - 1]
    return BinaryTree(np.array(children), np.zeros(len(children), int), np.zeros(len(children), int))


@pytest.mark.parametrize("count", [1, 16, 64])
def test_tree_lstm(count: int) -> None:
    model = weft.nn.NaryTreeLSTM(trees.D_IN, 256)
    read = [random_tree(10 + seed % 20, seed) for seed in range(count)]
    shapes = [weft.Graph(tree.children, types=(tree.children[:, 0] >= 0).astype(np.int64)) for tree in read]
    batch = trees.make_batch(read, shapes, 256, 0)
    hand = trees.Hand(model, 256)
    assert peak(model, ours(model), batch) < ENOUGH * peak(model, trees.hand_step(model, hand.growing), batch)


@pytest.mark.parametrize("count", [1, 16])
def test_grids(count: int) -> None:
    model = weft.nn.GridCell(graphs.D_IN, 256)
    (batch,) = graphs.grid_batches(count, 256, 1)
    assert peak(model, ours(model), batch) < ENOUGH * peak(model, graphs.hand_step(model, graphs.grid), batch)


@pytest.mark.parametrize("kind", ["child-sum", "gru"])
@pytest.mark.parametrize("count", [1, 16, 64])
def test_dependency_trees(kind: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = (weft.nn.ChildSumTreeLSTM if kind == "child-sum" else weft.nn.TreeGRU)(graphs.D_IN, 256)
    made = np.random.default_rng(0)
    parents = [np.array([*(int(made.integers(v + 1, 10)) for v in range(9)), -1]) for _ in range(count)]
    pairs = [(SimpleNamespace(parents=one),) for one in parents]
    monkeypatch.setattr(graphs.data, "sick", lambda *given: pairs)
    monkeypatch.setattr(graphs.data, "folder", lambda given: None)
    (batch,) = graphs.sick_batches(None, count, 256, 1)
    by_hand = graphs.hand_step(model, graphs.child_sum if kind == "child-sum" else graphs.tree_gru)
    assert peak(model, ours(model), batch) < ENOUGH * peak(model, by_hand, batch)


def test_lstm() -> None:
    """For each row the four gates, h and c with their gradients, and the result."""
    model = weft.nn.LSTM(64, 64)
    batch = others.make_sequences([20, 30, 40, 50] * 16, 64, 0)
    one = batch.x.nbytes
    assert peak(model, ours(model), batch) < 9.3 * one


@pytest.mark.parametrize("apart_from", [100, 100_000])
def test_tree_fc(apart_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many bytes as there are in leaves for the states or for what is made of them, besides the result, which has rows of
    all vertices."""
    monkeypatch.setattr(apart, "rates", lambda device: SimpleNamespace(rows=lambda operations: apart_from))
    model, batch = weft.nn.TreeFC(64), others.make_full_trees(16, 256, 64, 0)
    assert peak(model, ours(model), batch) < 3.05 * batch.leaves.nbytes
