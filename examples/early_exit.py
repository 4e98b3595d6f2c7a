"""An early-exit network: after each layer it stops if its own answer is confident enough."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from examples.compare import compare


class EarlyExit(nn.Module):
    def __init__(self, dim: int = 256, classes: int = 10, layers: int = 8, confidence: float = 0.22) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)) for _ in range(layers))
        self.heads = nn.ModuleList(nn.Linear(dim, classes) for _ in range(layers))
        self.confidence = confidence

    def forward(self, x: Tensor) -> Any:
        h, depth = x, 0
        for layer, head in zip(self.layers, self.heads, strict=True):
            h, depth = layer(h) + h, depth + 1
            logits = head(h)
            if torch.softmax(logits, 0).max() > self.confidence:
                break
        return logits, depth


def example(count: int = 64) -> tuple[Any, ...]:
    torch.manual_seed(0)
    return EarlyExit(), torch.randn(count, 256)


if __name__ == "__main__":
    compare(example)
