"""`weft train RECIPE --data DIR`: train a network on the data in a folder, keep the best, tell how good it is.

A recipe reads a folder, makes a model and trains it. There is one so far:

    sst    binary trees with a label at every vertex, in the form of the Stanford Sentiment Treebank (Socher et al. 2013): one
           tree a line, `(label left right)` and `(label word)`, in train.txt, dev.txt and, if it is there, test.txt, or the
           same with .gz; a binary Tree-LSTM (Tai, Socher, Manning, ACL 2015) learns the labels of all vertices and is judged
           by the roots
"""

from __future__ import annotations

import gzip
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import weft
import weft.nn
from weft.errors import StructureError

UNKNOWN = "<unknown>"
"""The word that stands for all words that were not trained on."""


@dataclass(frozen=True)
class Settings:
    """What can be chosen on the command line."""

    epochs: int = 8
    batch: int = 32
    dim: int = 128
    rate: float = 0.003
    decay: float = 1e-4
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Tree:
    """One line: the children of each vertex (none: a leaf), its word (None inside) and its label; children come first."""

    children: list[list[int]]
    words: list[str | None]
    labels: list[int]


_TOKEN = re.compile(r"[()]|[^()\s]+", re.ASCII)
"""A word may hold spaces that are not ASCII."""


def parse(line: str, place: str = "") -> Tree:
    """The tree that a line holds.

    >>> parse("(3 (2 a) (4 (1 fine) (2 day)))").labels
    [2, 1, 2, 4, 3]
    """
    tree = Tree([], [], [])
    open: list[tuple[int, list[int | str]]] = []
    tokens = _TOKEN.findall(line)
    for at, token in enumerate(tokens):
        if token == "(":
            label = tokens[at + 1] if at + 1 < len(tokens) else "the end"
            if not label.isdigit():
                raise StructureError(f"{place}expected a label after '(', got {label!r}")
            open.append((int(label), []))
        elif not open:
            raise StructureError(f"{place}expected '(', got {token!r}")
        elif token == ")":
            label_of, parts = open.pop()
            _close(tree, label_of, parts, place)
            if open:
                open[-1][1].append(len(tree.labels) - 1)
            elif at + 1 < len(tokens):
                raise StructureError(f"{place}expected one tree, got {' '.join(tokens[at + 1 : at + 4])!r} after it")
        elif tokens[at - 1] != "(":
            open[-1][1].append(token)
    if open or not tokens:
        raise StructureError(f"{place}expected ')', got the end of the line")
    return tree


def _close(tree: Tree, label: int, parts: list[int | str], place: str) -> None:
    """One vertex more, of which the parts are known."""
    kinds = [type(part) for part in parts]
    if kinds not in ([str], [int, int]):
        raise StructureError(f"{place}expected (label word) or (label left right), got a vertex with {len(parts)} parts")
    tree.children.append([part for part in parts if isinstance(part, int)])
    tree.words.append(parts[0] if isinstance(parts[0], str) else None)
    tree.labels.append(label)


def read_trees(folder: Path, split: str) -> list[Tree]:
    """The trees of one file of the folder."""
    found = [path for name in (f"{split}.txt", f"{split}.txt.gz") if (path := folder / name).is_file()]
    if not found:
        raise StructureError(f"there is no {split}.txt or {split}.txt.gz in {folder}")
    raw = found[0].read_bytes()
    text = (gzip.decompress(raw) if found[0].suffix == ".gz" else raw).decode("utf-8")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise StructureError(f"{found[0]} holds no trees")
    return [parse(line, f"{found[0].name}, line {number}: ") for number, line in lines]


class Split:
    """Trees as graphs and tensors, ready to be put into mini-batches."""

    def __init__(self, trees: Sequence[Tree], vocabulary: dict[str, int]) -> None:
        kinds = [["node" if kids else "leaf" for kids in tree.children] for tree in trees]
        self.graphs = [weft.Graph(tree.children, types=types) for tree, types in zip(trees, kinds, strict=True)]
        self.words = [np.array([vocabulary.get(word or "", 0) for word in tree.words]) for tree in trees]
        self.labels = [np.array(tree.labels) for tree in trees]

    def batch(self, chosen: Iterable[int]) -> tuple[weft.Graph, Tensor, Tensor]:
        chosen = list(chosen)
        words, labels = (np.concatenate([rows[i] for i in chosen]) for rows in (self.words, self.labels))
        return weft.Graph.batch([self.graphs[i] for i in chosen]), torch.from_numpy(words), torch.from_numpy(labels)


class SentimentTrees(nn.Module):
    """Word vectors, a binary Tree-LSTM, and a classifier at every vertex."""

    def __init__(self, words: int, dim: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.tree = weft.nn.NaryTreeLSTM(dim, dim, classes=classes)

    def forward(self, graph: weft.Graph, words: Tensor) -> Tensor:
        found: Tensor = self.tree(graph, self.embed(words))
        return found


def accuracy(model: SentimentTrees, split: Split, batch: int) -> float:
    """The share of trees whose root is labelled right."""
    right = 0
    with torch.no_grad():
        for first in range(0, len(split.graphs), batch):
            graph, words, labels = split.batch(range(first, min(first + batch, len(split.graphs))))
            roots = torch.as_tensor(graph.roots)
            right += int((model(graph, words)[roots].argmax(1) == labels[roots]).sum())
    return right / len(split.graphs)


def train_sst(folder: Path, settings: Settings, console: Console) -> dict[str, Any]:
    """The recipe `sst`; returns what is worth keeping: parameters, vocabulary, sizes and accuracies."""
    torch.manual_seed(settings.seed)
    trees = {name: read_trees(folder, name) for name in ("train", "dev")}
    if any((folder / f"test{end}").is_file() for end in (".txt", ".txt.gz")):
        trees["test"] = read_trees(folder, "test")
    words = Counter(word for tree in trees["train"] for word in tree.words if word is not None)
    vocabulary = {word: number for number, word in enumerate([UNKNOWN, *sorted(word for word in words if words[word] > 1)])}
    splits = {name: Split(some, vocabulary) for name, some in trees.items()}
    classes = 1 + max(label for some in trees.values() for tree in some for label in tree.labels)
    model = SentimentTrees(len(vocabulary), settings.dim, classes)
    console.print(f"sst: {len(trees['train']):,} trees, {len(vocabulary):,} words, {classes} classes, {settings.dim} hidden")
    best, kept = -1.0, model.state_dict()
    optimizer = torch.optim.Adam(model.parameters(), settings.rate, weight_decay=settings.decay)
    for epoch in range(1, settings.epochs + 1):
        start = time.perf_counter()
        loss = _epoch(model, optimizer, splits["train"], settings.batch)
        speed, dev = len(trees["train"]) / (time.perf_counter() - start), accuracy(model, splits["dev"], 256)
        console.print(f"epoch {epoch}: loss {loss:.3f}, dev {dev:.1%} of the roots right, {speed:,.0f} trees/s")
        if dev > best:
            best, kept = dev, {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(kept)
    found = {"dev": best, **({"test": accuracy(model, splits["test"], 256)} if "test" in splits else {})}
    console.print("best epoch: " + ", ".join(f"{name} {share:.1%}" for name, share in found.items()))
    return {"state_dict": kept, "vocabulary": list(vocabulary), "dim": settings.dim, "classes": classes, "accuracy": found}


def _epoch(model: SentimentTrees, optimizer: torch.optim.Optimizer, split: Split, batch: int) -> float:
    """Every tree once, in a new order; the mean loss."""
    losses = []
    for chosen in torch.randperm(len(split.graphs)).split(batch):
        graph, words, labels = split.batch(chosen.tolist())
        loss = cross_entropy(model(graph, words), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


RECIPES: dict[str, Callable[[Path, Settings, Console], dict[str, Any]]] = {"sst": train_sst}
