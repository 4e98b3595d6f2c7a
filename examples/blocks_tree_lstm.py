"""A binary Tree-LSTM with a forget gate for each child (Tai et al., 2015) that learns the sign of toy phrases.

A tree is a word, or a pair of trees. Run it: `python examples/blocks_tree_lstm.py`.
"""

import random

import torch
import torch.nn.functional as F
from torch import nn

import weft.blocks as wb

WORDS = {"good": 1, "great": 1, "bad": -1, "poor": -1, "film": 0, "plot": 0, "not": None}


class TreeLSTMCell(nn.Module):
    """States of two children to that of their parent."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * size, 5 * size)

    def forward(self, left, right):
        i, f_left, f_right, o, u = self.gates(torch.cat([left[0], right[0]])).chunk(5)
        c = i.sigmoid() * u.tanh() + f_left.sigmoid() * left[1] + f_right.sigmoid() * right[1]
        return o.sigmoid() * c.tanh(), c


def tree_lstm(words: list[str], size: int, classes: int) -> wb.Block:
    """Logits at the root."""
    state = wb.ForwardDeclaration(wb.PyObjectType(), (size, size))
    word = wb.InputTransform(words.index) >> wb.Scalar("int64") >> wb.Embedding(len(words), size)
    leaf = word >> wb.AllOf(wb.Function(torch.tanh), wb.Identity())
    pair = wb.Record((state(), state())) >> TreeLSTMCell(size)
    state.resolve_to(wb.OneOf(lambda tree: isinstance(tree, tuple), (leaf, pair)))
    return state() >> wb.GetItem(0) >> nn.Linear(size, classes)


def phrase(draw: random.Random, height: int):
    """A random tree and its sign: "not" turns what follows round, otherwise signs add up."""
    if height == 0 or draw.random() < 0.2:
        word = draw.choice([word for word, sign in WORDS.items() if sign is not None])
        return word, WORDS[word]
    right, sign = phrase(draw, height - 1)
    if draw.random() < 0.3:
        return ("not", right), -sign
    left, other = phrase(draw, height - 1)
    return (left, right), (sign + other > 0) - (sign + other < 0)


def main(steps: int = 150, batch: int = 64) -> float:
    draw = random.Random(0)
    torch.manual_seed(0)
    net = wb.compile(tree_lstm(list(WORDS), 32, 3))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(steps):
        trees, signs = zip(*(phrase(draw, 4) for _ in range(batch)), strict=True)
        loss = F.cross_entropy(net(list(trees)), torch.tensor(signs) + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    trees, signs = zip(*(phrase(draw, 5) for _ in range(500)), strict=True)
    with torch.no_grad():
        right = (net(list(trees)).argmax(1) == torch.tensor(signs) + 1).float().mean()
    print(f"right on deeper phrases: {right:.1%}")
    return float(right)


if __name__ == "__main__":
    main()
