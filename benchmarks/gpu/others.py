"""Other recurrences on a GPU: ragged LSTM beside cuDNN on packed sequences, Tree-FC on full trees, an epoch of SST."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import weft
import weft.nn
from benchmarks import data
from benchmarks.gpu.trees import keep_no_plans

CUDA = torch.device("cuda")


@dataclass(frozen=True)
class Sequences:
    """Sequences of different lengths: as chains with their rows, and packed."""

    graphs: list[weft.Graph]
    x: Tensor
    packed: PackedSequence
    gradient: Tensor
    packed_gradient: Tensor


def make_sequences(lengths: Sequence[int], d: int, seed: int) -> Sequences:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn(int(length), d, generator=generator).to(CUDA) for length in lengths]
    packed = pack_sequence(rows, enforce_sorted=False)
    gradient = torch.randn(sum(map(int, lengths)), d, generator=generator).to(CUDA)
    graphs = [weft.Graph.chain(int(length)) for length in lengths]
    return Sequences(graphs, torch.cat(rows), packed, gradient, torch.randn(packed.data.shape, generator=generator).to(CUDA))


def cudnn_step(module: nn.LSTM) -> Callable[[Sequences], None]:
    def step(batch: Sequences) -> None:
        module.zero_grad()
        module(batch.packed)[0].data.backward(batch.packed_gradient)

    return step


def lstm_step(model: weft.nn.LSTM) -> Callable[[Sequences], None]:
    keep_no_plans(model)

    def step(batch: Sequences) -> None:
        model.zero_grad()
        model(weft.Graph.batch(batch.graphs), batch.x).backward(batch.gradient)

    return step


@dataclass(frozen=True)
class FullTrees:
    """Full binary trees of one size, and the rows of their leaves."""

    graphs: list[weft.Graph]
    x: Tensor
    leaves: Tensor  # [trees, leaves, d]
    gradient: Tensor


def make_full_trees(trees: int, leaves: int, d: int, seed: int) -> FullTrees:
    generator = torch.Generator().manual_seed(seed)
    plain = weft.Graph.full_binary_tree(leaves)
    types = (np.arange(plain.num_vertices) >= leaves).astype(np.int64)
    children = [[] if v < leaves else [2 * (v - leaves), 2 * (v - leaves) + 1] for v in range(2 * leaves - 1)]
    graph = weft.Graph(children, types=types)
    x = torch.randn(trees * (2 * leaves - 1), d, generator=generator).to(CUDA) * 0.3
    rows = x.view(trees, 2 * leaves - 1, d)[:, :leaves].contiguous()
    return FullTrees([graph] * trees, x, rows, torch.randn(trees * (2 * leaves - 1), d, generator=generator).to(CUDA))


def tree_fc_step(model: weft.nn.TreeFC) -> Callable[[FullTrees], None]:
    """All batches are of one structure, whose plan is made once."""

    def step(batch: FullTrees) -> None:
        model.zero_grad()
        model(weft.Graph.batch(batch.graphs), batch.x).backward(batch.gradient)

    return step


def tree_fc_by_hand(model: weft.nn.TreeFC) -> Callable[[FullTrees], None]:
    """Siblings are neighbours, so a level is one product over a reshape of the level below."""
    fc = next(module for module in model.modules() if isinstance(module, nn.Linear))

    def step(batch: FullTrees) -> None:
        model.zero_grad()
        h, made = batch.leaves, []
        trees, _, d = h.shape
        while h.shape[1] > 1:
            h = fc(h.reshape(trees, -1, 2 * d)).tanh()
            made.append(h)
        rows = torch.cat(made, 1)
        rows.backward(batch.gradient.view(trees, -1, d)[:, -rows.shape[1] :])

    return step


class Flat:
    """A word and a label at every vertex of many trees, one tree after the other."""

    def __init__(self, trees: Sequence[data.BinaryTree]) -> None:
        self.numbers = np.concatenate([np.stack([np.maximum(tree.words, 0), tree.labels]) for tree in trees], 1)
        self.lengths = np.array([len(tree.words) for tree in trees])
        self.starts = np.cumsum(self.lengths) - self.lengths

    def chosen(self, trees: data.Ints) -> data.Ints:
        """The words and labels of some trees."""
        lengths = self.lengths[trees]
        shift = self.starts[trees] - (np.cumsum(lengths) - lengths)
        return self.numbers.take(np.repeat(shift, lengths) + np.arange(lengths.sum()), 1)


def sst_epoch(trees: Sequence[data.BinaryTree], words: int, d: int = 150, batch: int = 256) -> float:
    """Trees per second of one epoch: merging, embedding, a classifier at every vertex, loss, Adagrad.

    The median of five epochs; the two before them compile kernels, for steps of all widths.
    """
    torch.manual_seed(0)
    graphs = [weft.Graph(tree.children, types=(tree.children[:, 0] >= 0).astype(np.int64)) for tree in trees]
    embedding = nn.Embedding(words, 300).to(CUDA)
    model = weft.nn.NaryTreeLSTM(300, d, classes=5).to(CUDA)
    optimiser = torch.optim.Adagrad([*model.parameters(), *embedding.parameters()], lr=0.05)
    vertices = Flat(trees)

    def epoch(seed: int) -> None:
        order = np.random.default_rng(seed).permutation(len(trees))
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            words, y = torch.from_numpy(vertices.chosen(chosen)).pin_memory().to(CUDA, non_blocking=True)
            graph = weft.Graph.batch([graphs[i] for i in chosen.tolist()])
            optimiser.zero_grad()
            F.cross_entropy(model(graph, embedding(words)), y).backward()
            optimiser.step()

    def seconds(seed: int) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        epoch(seed)
        torch.cuda.synchronize()
        return time.perf_counter() - started

    with torch.autograd.set_multithreading_enabled(False):
        _, _, *found = [seconds(seed) for seed in range(7)]
        return len(trees) / statistics.median(found)
