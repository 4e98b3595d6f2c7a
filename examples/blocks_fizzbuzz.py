"""FizzBuzz, learned from the digits of numbers and right on numbers it never saw. Run it: `python examples/blocks_fizzbuzz.py`.

Every digit turns some hands by learned angles; where the hands stand at the end, and the last digit, decide.
"""

import torch
import torch.nn.functional as F
from torch import nn

import weft.blocks as wb


def fizzbuzz(hands: int = 8) -> wb.Block:
    turns = wb.Embedding(10, hands, initializer=lambda table: table.uniform_(-3.14, 3.14))
    digit = wb.InputTransform(int) >> wb.Scalar("int64")
    stand = wb.Map(digit >> turns) >> wb.Sum() >> wb.Function(lambda angle: torch.cat([angle.cos(), angle.sin()]))
    last = wb.GetItem(-1) >> wb.InputTransform(int) >> wb.OneHot(10)
    return wb.InputTransform(str) >> wb.AllOf(stand, last) >> wb.Concat() >> wb.FC(64) >> nn.Linear(64, 4)


def main(steps: int = 600, batch: int = 128, limit: int = 10_000) -> float:
    torch.manual_seed(0)
    numbers = torch.randperm(limit - 1) + 1
    answers = (numbers % 3 == 0).long() + 2 * (numbers % 5 == 0).long()
    seen = limit // 2
    net = wb.compile(fizzbuzz(), cache=True)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(steps):
        at = torch.randint(seen, (batch,))
        loss = F.cross_entropy(net(numbers[at].tolist()), answers[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = (net(numbers[seen:].tolist()).argmax(1) == answers[seen:]).float().mean()
    print(f"right on {limit - 1 - seen} numbers never trained on: {right:.2%}")
    return float(right)


if __name__ == "__main__":
    main()
