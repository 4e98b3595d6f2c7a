"""A neural module network (Andreas et al. 2016): the layout of the network comes with each question about an image.

`WEFT_DATA` may point to a folder with shapes_nmn (the SHAPES questions and images); else a few questions on random images.
"""

from __future__ import annotations

import lzma
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import weft
from examples.compare import compare

WORDS = ("red", "green", "blue", "circle", "square", "triangle")
MOVES = ("left_of", "right_of", "above", "below")
GRID = 3


class Find(nn.Module):
    """Where in the image something is: an attention over the cells of the grid."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(self, features: Tensor) -> Tensor:
        return torch.sigmoid(self.score(features)).squeeze(-1)


class Move(nn.Module):
    """From an attention to the attention on what lies in some direction of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(GRID * GRID, 16), nn.Linear(16, GRID * GRID)

    def forward(self, attention: Tensor) -> Tensor:
        return torch.sigmoid(self.outer(torch.relu(self.inner(attention))))


class ModuleNetwork(nn.Module):
    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.features = nn.Linear(300, dim)
        self.find = nn.ModuleDict({word: weft.cell(Find(dim)) for word in WORDS})
        self.move = nn.ModuleDict({name: weft.cell(Move()) for name in MOVES})
        self.answer = nn.Linear(GRID * GRID, 2)

    def attend(self, layout: Any, features: Tensor) -> Tensor:
        if isinstance(layout, str):
            return self.find[layout](features)
        name, inner = layout
        return self.move[name](self.attend(inner, features))

    def forward(self, question: tuple[Any, ...], image: Tensor, answer: int) -> Any:
        features = torch.relu(self.features(image))
        _, what, where = question
        both = self.attend(what, features) * self.attend(where, features)
        logits = self.answer(both)
        return logits, F.cross_entropy(logits, torch.tensor(answer))


def parse(text: str) -> Any:
    """`(is red (above circle))` as nested tuples."""
    stack: list[list[Any]] = [[]]
    for token in text.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            stack.append([])
        elif token == ")":
            done = tuple(stack.pop())
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    return stack[0][0]


def cells(images: Any) -> Tensor:
    """[n, 30, 30, 3] images as [n, 9, 300] cells of the grid."""
    n = len(images)
    whole = torch.from_numpy(np.asarray(images)).float() / 255
    return whole.reshape(n, GRID, 10, GRID, 10, 3).permute(0, 1, 3, 2, 4, 5).reshape(n, GRID * GRID, 300)


def _lines(path: Path) -> list[str]:
    with lzma.open(path, "rt") as file:
        return file.read().split("\n")


def data(count: int) -> tuple[list[Any], Tensor, list[int]]:
    """Questions, images and answers."""
    folder = Path(os.environ.get("WEFT_DATA", "")) / "shapes_nmn"
    if os.environ.get("WEFT_DATA") and (folder / "train.small.query.xz").exists():
        lines, answers = (_lines(folder / f"train.small.{name}.xz") for name in ("query", "output"))
        with lzma.open(folder / "train.small.input.npy.xz") as file:
            images = np.load(file)
        chosen = np.random.default_rng(0).permutation(640)[:count]
        return [parse(lines[i]) for i in chosen], cells(images[chosen]), [int(answers[i] == "true") for i in chosen]
    texts = [
        "(is green (left_of red))",
        "(is triangle (above (above circle)))",
        "(is square circle)",
        "(is red (below (left_of blue)))",
    ]
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (count, 30, 30, 3), dtype=np.uint8)
    return [parse(texts[i % len(texts)]) for i in range(count)], cells(images), random.integers(0, 2, count).tolist()


def example(count: int = 32) -> tuple[Any, ...]:
    torch.manual_seed(0)
    return ModuleNetwork(), *data(count)


if __name__ == "__main__":
    compare(example)
