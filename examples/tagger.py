"""Part-of-speech tagger: a bidirectional LSTM over words, where rare words are spelled by a bidirectional LSTM over characters.

As in the DyNet papers (Neubig et al. 2017): which words are rare, and how long they are, differs from sentence to sentence.
"""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.compare import compare

State = tuple[Tensor, Tensor]


class Tagger(nn.Module):
    def __init__(self, words: int, chars: int, tags: int, dim: int = 32) -> None:
        super().__init__()
        self.word, self.char = nn.Embedding(words, dim), nn.Embedding(chars, dim // 2)
        self.char_forward, self.char_backward = nn.LSTMCell(dim // 2, dim // 2), nn.LSTMCell(dim // 2, dim // 2)
        self.forward_cell, self.backward_cell = nn.LSTMCell(dim, dim), nn.LSTMCell(dim, dim)
        self.out = nn.Linear(2 * dim, tags)

    def run(self, cell: nn.LSTMCell, xs: list[Tensor]) -> list[Tensor]:
        state: State = (torch.zeros(cell.hidden_size), torch.zeros(cell.hidden_size))
        found = []
        for x in xs:
            state = cell(x, state)
            found.append(state[0])
        return found

    def represent(self, word: int | str) -> Tensor:
        if isinstance(word, int):
            return self.word(torch.tensor(word))
        chars = [self.char(torch.tensor(ord(letter) % 64)) for letter in word]
        return torch.cat([self.run(self.char_forward, chars)[-1], self.run(self.char_backward, chars[::-1])[-1]])

    def forward(self, sentence: list[int | str], tags: list[int]) -> Tensor:
        xs = [self.represent(word) for word in sentence]
        ahead, behind = self.run(self.forward_cell, xs), self.run(self.backward_cell, xs[::-1])[::-1]
        losses = [
            F.cross_entropy(self.out(torch.cat([a, b])), torch.tensor(tag))
            for a, b, tag in zip(ahead, behind, tags, strict=True)
        ]
        return torch.stack(losses).sum(0)


def example(count: int = 32) -> tuple[Any, ...]:
    torch.manual_seed(0)
    dice = random.Random(0)

    def word() -> int | str:
        return (
            dice.randrange(100) if dice.random() < 0.7 else "".join(dice.choice("abcdefgh") for _ in range(dice.randint(2, 7)))
        )

    sentences = [[word() for _ in range(dice.randint(3, 15))] for _ in range(count)]
    return Tagger(100, 64, 8), sentences, [[dice.randrange(8) for _ in sentence] for sentence in sentences]


if __name__ == "__main__":
    compare(example)
