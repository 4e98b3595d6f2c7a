"""`weft demo`: train a Tree-LSTM on the treebank of `weft.treebank`, compare, time, explain, and write a report page.

The model is `TreeLSTM` below: what one vertex does, in plain PyTorch. Everything else here is an ordinary training loop.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import weft
from weft.report import Accuracy, Report, Sample, Speed, write_page
from weft.tools.planned import Planned
from weft.treebank import LABELS, VOCABULARY, Tree, make, word_counts

State = dict[str, Tensor]


class TreeLSTM(weft.VertexFunction):
    """Binary Tree-LSTM (Tai, Socher, Manning, ACL 2015, section 3.2) with a classifier at every vertex.

    >>> tree = make(1)[0]
    >>> TreeLSTM(dim=8)(weft.Graph(tree.children), torch.from_numpy(tree.words)).shape == (len(tree.words), 5)
    True
    """

    def __init__(self, dim: int) -> None:
        super().__init__(state={"h": (dim,), "c": (dim,)})
        self.word = nn.Embedding(len(VOCABULARY), 5 * dim)
        self.gates = nn.Linear(2 * dim, 5 * dim)
        self.classes = nn.Linear(dim, len(LABELS))

    def cell(self, word: Tensor, left: State, right: State) -> tuple[Tensor, Tensor]:
        i, f_left, f_right, o, u = (self.word(word) + self.gates(torch.cat([left["h"], right["h"]]))).chunk(5)
        c = i.sigmoid() * u.tanh() + f_left.sigmoid() * left["c"] + f_right.sigmoid() * right["c"]
        return o.sigmoid() * c.tanh(), c

    def forward(self, v: Any) -> None:
        h, c = self.cell(v.pull(), v.gather(0), v.gather(1))
        v.scatter(h=h, c=c)
        v.push(self.classes(h))


def one_by_one(model: TreeLSTM, tree: Tree) -> Tensor:
    """The same network without weft: an ordinary loop over the vertices of one tree."""
    nothing = {key: model.classes.weight.new_zeros(model.classes.in_features) for key in ("h", "c")}
    states: list[State] = []
    for word, (left, right) in zip(torch.from_numpy(tree.words), tree.children, strict=True):
        h, c = model.cell(word, states[left] if left >= 0 else nothing, states[right] if right >= 0 else nothing)
        states.append({"h": h, "c": c})
    return torch.stack([model.classes(state["h"]) for state in states])


@dataclass(frozen=True)
class Settings:
    """Sizes of the demo; `quick()` is small enough for a test."""

    train: int = 4000
    test: int = 500
    longer: int = 200
    short_words: int = 20
    epochs: int = 10
    batch: int = 64
    dim: int = 96
    rate: float = 0.01
    repeats: int = 5
    seed: int = 0

    @staticmethod
    def quick() -> Settings:
        return Settings(train=128, test=40, longer=20, epochs=2, batch=32, dim=16, repeats=1)


class Sentences:
    """Trees with their graphs, ready to be put into mini-batches."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        self.trees = list(trees)
        self.graphs = [weft.Graph(tree.children) for tree in self.trees]
        self.roots = torch.tensor([tree.labels[-1] for tree in self.trees])

    def batch(self, chosen: Sequence[int] | None = None) -> tuple[weft.Graph, Tensor, Tensor]:
        """One graph of the chosen trees, with the word and the label of every vertex."""
        chosen = range(len(self.trees)) if chosen is None else chosen
        words = torch.from_numpy(np.concatenate([self.trees[i].words for i in chosen]))
        labels = torch.from_numpy(np.concatenate([self.trees[i].labels for i in chosen]))
        return weft.Graph.batch([self.graphs[i] for i in chosen]), words, labels


@dataclass(frozen=True)
class Data:
    """Sentences to learn from, unseen ones of the same lengths, and unseen ones longer than any of those."""

    train: Sentences
    test: Sentences
    longer: Sentences

    @staticmethod
    def make(settings: Settings) -> Data:
        short = make(settings.train + settings.test, settings.seed, max_words=settings.short_words)
        longer = make(settings.longer, settings.seed + 1, min_words=settings.short_words + 1)
        return Data(Sentences(short[: settings.train]), Sentences(short[settings.train :]), Sentences(longer))


def train(model: TreeLSTM, data: Data, settings: Settings, console: Console) -> list[float]:
    """Train, show progress, return the loss of every step."""
    steps = -(-len(data.train.trees) // settings.batch) * settings.epochs
    optimizer = torch.optim.Adam(model.parameters(), settings.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.rate, total_steps=steps)
    shuffle = torch.Generator().manual_seed(settings.seed)
    losses: list[float] = []
    text = TextColumn("loss {task.fields[loss]}  unseen {task.fields[unseen]}")
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), text, TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=steps, loss="-", unseen="-")
        for _ in range(settings.epochs):
            for chosen in torch.randperm(len(data.train.trees), generator=shuffle).split(settings.batch):
                graph, words, labels = data.train.batch(chosen.tolist())
                loss = cross_entropy(model(graph, words), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                losses.append(loss.item())
                progress.update(task, advance=1, loss=f"{losses[-1]:.3f}")
            progress.update(task, unseen=f"{root_accuracy(model, data.test):.1%}")
    return losses


def predict(model: TreeLSTM, sentences: Sentences) -> tuple[weft.Graph, Tensor]:
    """The predicted class of every vertex of all sentences."""
    graph, words, _ = sentences.batch()
    with torch.no_grad():
        return graph, model(graph, words).argmax(1)


def root_accuracy(model: TreeLSTM, sentences: Sentences) -> float:
    graph, predicted = predict(model, sentences)
    return share_equal(predicted[torch.as_tensor(graph.roots)], sentences.roots)


def share_equal(predicted: Tensor, labels: Tensor) -> float:
    return (predicted == labels).float().mean().item()


def bag_of_words(sentences: Sentences) -> Callable[[Sentences], Tensor]:
    """The best that word counts alone can do: logistic regression on them, as a function that predicts root classes."""
    counts = torch.from_numpy(word_counts(sentences.trees))
    model = nn.Linear(counts.shape[1], len(LABELS))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(counts), sentences.roots) + 1e-3 * model.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return lambda others: model(torch.from_numpy(word_counts(others.trees))).argmax(1)


def measure(model: TreeLSTM, sentences: Sentences, settings: Settings) -> Speed:
    """Time forward, loss and backward of one mini-batch: batched by weft, and in a plain loop over trees and vertices."""
    chosen = range(min(settings.batch, len(sentences.trees)))
    _, _, labels = sentences.batch(chosen)

    def batched() -> Tensor:
        graph, words, _ = sentences.batch(chosen)
        logits: Tensor = model(graph, words)
        return logits

    def looped() -> Tensor:
        return torch.cat([one_by_one(model, sentences.trees[i]) for i in chosen])

    def step(run: Callable[[], Tensor]) -> tuple[float, list[Tensor]]:
        model.zero_grad()
        start = time.perf_counter()
        cross_entropy(run(), labels).backward()
        seconds = time.perf_counter() - start
        return seconds, [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    step(batched), step(looped)
    pairs = [(step(batched), step(looped)) for _ in range(settings.repeats)]
    (_, fast), (_, slow) = pairs[-1]
    difference = max((a - b).abs().max().item() for a, b in zip(fast, slow, strict=True))
    batched_seconds, looped_seconds = (median(pair[which][0] for pair in pairs) for which in (0, 1))
    return Speed(len(chosen), len(labels), batched_seconds, looped_seconds, difference)


def compare(model: TreeLSTM, data: Data) -> tuple[list[Accuracy], Callable[[Sentences], Tensor]]:
    """Root accuracy of the network beside always saying the commonest class and beside the bag of words."""
    words = bag_of_words(data.train)
    commonest = data.train.roots.bincount().argmax()
    unseen, longer = data.test, data.longer
    rows = [
        Accuracy("majority", share_equal(commonest, unseen.roots), share_equal(commonest, longer.roots)),
        Accuracy("bag of words", share_equal(words(unseen), unseen.roots), share_equal(words(longer), longer.roots)),
        Accuracy("Tree-LSTM", root_accuracy(model, unseen), root_accuracy(model, longer)),
    ]
    return rows, words


def choose_sample(model: TreeLSTM, sentences: Sentences, words: Callable[[Sentences], Tensor]) -> Sample:
    """Of the unseen sentences that fit on a page and mislead the bag of words, the one that says most."""
    graph, predicted = predict(model, sentences)
    said = words(sentences)
    rows = [rows.tolist() for rows in graph.split(predicted)]
    fits = [i for i, tree in enumerate(sentences.trees) if len(tree.text) <= 90 and said[i] != tree.labels[-1]]
    best = max(fits or range(1), key=lambda i: int((sentences.trees[i].labels != LABELS.index("neutral")).sum()))
    return Sample(sentences.trees[best], rows[best], int(said[best]))


def run(settings: Settings, path: Path, console: Console) -> Report:
    """The whole demo; returns what the page at `path` shows."""
    torch.manual_seed(settings.seed)
    data = Data.make(settings)
    model = TreeLSTM(settings.dim)
    sizes = (
        f"{settings.train:,} sentences of a made-up treebank, a label at every vertex; "
        f"binary Tree-LSTM, {settings.dim} hidden, batches of {settings.batch}, {settings.epochs} epochs."
    )
    console.print(Panel(f"[bold]weft demo[/]\n{sizes}\ne.g. [italic]{data.train.trees[0].text}[/]", expand=False))
    start = time.perf_counter()
    losses = train(model, data, settings, console)
    train_seconds = time.perf_counter() - start
    accuracies, words = compare(model, data)
    show_accuracies(accuracies, console)
    speed = measure(model, data.test, settings)
    show_speed(speed, console)
    graph, inputs, _ = data.test.batch(range(speed.trees))
    plan = weft.plan(model, graph, inputs)
    show_plan(plan, console)
    sample = choose_sample(model, data.test, words)
    report = Report(sizes, losses, train_seconds, accuracies, speed, sample, plan.explain(), machine(settings))
    write_page(report, path)
    console.print(f"report page: [bold]{path}[/]")
    return report


def machine(settings: Settings) -> str:
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}"
    threads = torch.get_num_threads()
    return f"weft demo, seed {settings.seed}; {versions}, {threads} thread{'s' if threads > 1 else ''}"


def show_accuracies(accuracies: Sequence[Accuracy], console: Console) -> None:
    table = Table()
    table.add_column("share of sentences right")
    table.add_column("unseen", justify="right")
    table.add_column("unseen and longer", justify="right")
    for row in accuracies:
        table.add_row(row.name, f"{row.unseen:.1%}", f"{row.longer:.1%}", style="bold" if row is accuracies[-1] else None)
    console.print(table)


def show_speed(speed: Speed, console: Console) -> None:
    table = Table()
    table.add_column(f"one training step, {speed.trees} trees, {speed.vertices:,} vertices")
    table.add_column("ms", justify="right")
    table.add_row("one by one, plain PyTorch", f"{speed.one_by_one * 1e3:,.1f}")
    table.add_row("weft", f"{speed.batched * 1e3:,.1f}", style="bold")
    console.print(table)
    console.print(f"{speed.ratio:.1f}x faster, the same gradients (largest difference {speed.difference:.0e})")


def show_plan(plan: Planned, console: Console) -> None:
    text = Text(plan.explain(width=min(100, console.width - 4)))  # the frame takes four columns
    console.print(Panel(text, title="the plan of one mini-batch", expand=False))
