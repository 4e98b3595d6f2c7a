"""A transition-based parser: its next action (shift, or reduce the two topmost) is the argmax of its own scores."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

import weft
from examples.compare import compare


class Compose(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * dim, dim)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.tanh(self.linear(torch.cat([left, right])))


class Parser(nn.Module):
    """Reads a sentence; returns what is left on the stack, the log-probability of its actions, and how many it reduced."""

    def __init__(self, words: int, dim: int = 128) -> None:
        super().__init__()
        self.word, self.nothing = nn.Embedding(words, dim), nn.Parameter(torch.zeros(dim))
        self.score = nn.Sequential(nn.Linear(3 * dim, dim), nn.Tanh(), nn.Linear(dim, 2))
        self.compose = weft.cell(Compose(dim))

    def forward(self, sentence: list[int]) -> Any:
        queue = [self.word(torch.tensor(word)) for word in reversed(sentence)]
        stack: list[Tensor] = []
        chosen: list[Tensor] = []
        reduced = 0
        while queue or len(stack) > 1:
            if len(stack) < 2:
                stack.append(queue.pop())
                continue
            ahead = queue[-1] if queue else self.nothing
            scores = torch.log_softmax(self.score(torch.cat([stack[-1], stack[-2], ahead])), 0)
            reduce = not queue or int(scores.argmax()) == 1
            chosen.append(scores[1] if reduce else scores[0])
            if reduce:
                right, left = stack.pop(), stack.pop()
                stack.append(self.compose(left, right))
                reduced += 1
            else:
                stack.append(queue.pop())
        return stack[0], torch.stack(chosen).sum(0), reduced


def example(count: int = 64) -> tuple[Any, ...]:
    torch.manual_seed(0)
    dice = random.Random(0)
    return Parser(50), [[dice.randrange(50) for _ in range(dice.randint(3, 12))] for _ in range(count)]


if __name__ == "__main__":
    compare(example)
