"""A calculator that learns what +, - and * mean from small expressions, and is right on deeper ones.

An expression is a number, or (operator, left, right). Each operator is a learned form a l + b r + c l r + d.
Run it: `python examples/blocks_calculator.py`.
"""

import operator
import random

import torch
from torch import nn

import weft.blocks as wb

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


class Form(nn.Module):
    """An unknown operator on two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(0.3 * torch.randn(4))

    def forward(self, left, right):
        a, b, c, d = self.weights
        return a * left + b * right + c * left * right + d


def calculator() -> wb.Block:
    value = wb.ForwardDeclaration(wb.PyObjectType(), wb.TensorType([]))
    pair = wb.Slice(start=1) >> wb.Record((value(), value()))
    cases = {
        sign: pair >> wb.Function(Form(), name=name) for sign, name in zip(OPERATORS, ("plus", "minus", "times"), strict=True)
    }
    value.resolve_to(wb.OneOf(lambda x: x[0] if isinstance(x, tuple) else "number", {"number": wb.Scalar(), **cases}))
    return value()


def expression(draw: random.Random, height: int):
    """A random expression and its value."""
    if height == 0:
        number = draw.randrange(-3, 4)
        return number, number
    sign = draw.choice(list(OPERATORS))
    (left, a), (right, b) = expression(draw, height - 1), expression(draw, draw.randrange(height))
    return (sign, left, right), OPERATORS[sign](a, b)


def main(steps: int = 400, batch: int = 64) -> float:
    draw = random.Random(0)
    torch.manual_seed(0)
    net = wb.compile(calculator())
    optimizer = torch.optim.Adam(net.parameters(), 5e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        given, values = zip(*(expression(draw, 1 + step % 2) for _ in range(batch)), strict=True)
        loss = nn.functional.smooth_l1_loss(net(list(given)), torch.tensor(values, dtype=torch.float32))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    given, values = zip(*(expression(draw, 4) for _ in range(500)), strict=True)
    wanted = torch.tensor(values, dtype=torch.float32)
    with torch.no_grad():
        right = ((net(list(given)) - wanted).abs() <= 0.01 * wanted.abs().clamp_min(10)).float().mean()
    print(f"right on expressions of height 4, trained on heights 1 and 2: {right:.1%}")
    return float(right)


if __name__ == "__main__":
    main()
