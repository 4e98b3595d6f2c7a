"""A decoder that samples words until the end of the sequence: every step needs the word that the last one drew.

Sampling is by the inverse of the cumulative distribution at numbers that come with the example, so that the loop and the batch
draw the same words.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from examples.compare import compare

END = 0


class Sampler(nn.Module):
    """Returns the log-probability of the sampled sequence and its length."""

    def __init__(self, words: int = 20, dim: int = 128) -> None:
        super().__init__()
        self.embed, self.cell, self.out = nn.Embedding(words, dim), nn.GRUCell(dim, dim), nn.Linear(dim, words)

    def forward(self, code: Tensor, draws: list[float]) -> Any:
        h, word = self.cell(self.embed(torch.tensor(END)), code), None
        chosen: list[Tensor] = []
        for draw in draws:
            logs = torch.log_softmax(self.out(h), 0)
            word = int((logs.detach().exp().cumsum(0) < draw).sum())
            word = min(word, logs.shape[0] - 1)
            chosen.append(logs[torch.tensor(word)])
            if word == END:
                break
            h = self.cell(self.embed(torch.tensor(word)), h)
        return torch.stack(chosen).sum(0), len(chosen)


def example(count: int = 64) -> tuple[Any, ...]:
    torch.manual_seed(0)
    draws = torch.rand(count, 20).tolist()
    return Sampler(), torch.randn(count, 128), draws


if __name__ == "__main__":
    compare(example)
