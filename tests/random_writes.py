"""Random functions of one example, as Python text, that write into tensors: rows, views, masks, before and after a branch."""

from __future__ import annotations

import random

FIRST = "h = torch.tanh(lin(v)) * P; z = torch.zeros(2, 3).double(); y = W * h"
"""Every function starts with a vector of the example, one that was computed, and two matrices, one of data."""

WRITES = """
{m}[{bit}] = {u}
{m}[:, 1] = {u}[:2]
{m}[n % 2] += {u}
{m}.add_({u})
{m}[0].mul_({u})
{m}.t()[1] -= {u}[:2]
{m}.view(-1)[n] = {u}[0]
{m}[:, 1:].mul_(0.5)
{m}.T.copy_(torch.outer({u}, torch.ones(2).double()))
{m}[{m} > 0.5] = 0.5
{m}.masked_fill_({m} < -0.5, 0.1)
{m}.clamp_(-1, 1)
{m}.index_add_(0, torch.tensor([n % 2]), {u}[None])
{m}[torch.tensor([1, 0])] = torch.stack([{u}, {w}])
{m}.zero_()
{m} += {u}
{m} *= 0.9
{m}[0], {m}[1] = {m}[1].clone(), {m}[0].clone()
{m}.unsqueeze(0)[0, 1] += {u}
{m}.diagonal().add_({u}[:2])
{m}.select(1, 2).sub_(0.1)
{m}.narrow(0, 1, 1).mul_(2)
{m}[1, 1] = {u}.sum()
{m}.scatter_(1, torch.tensor([[0], [2]]), 1.5)
""".split("\n")[1:-1]
VECTORS = """
{m}[{bit}]
{m}.sum(0)
torch.tanh(lin({u}))
{m}[0] * {u}
{m}.mean(0) + {u}
{m}[1].clone()
{m}[0].detach() + P
{m}[n % 2][[2, 1, 0]]
""".split("\n")[1:-1]
MATRICES = """
{m} * 1
{m}.clone()
torch.stack([{u}, {w}])
torch.zeros(2, 3).double()
{m}.flip(0)
{m}.contiguous()
{m}.view(2, 3)
{m}[:]
W * {u}
torch.cat([{m}[:1], {u}[None]])
{m}.t().t()
{m}.detach().clone()
""".split("\n")[1:-1]
QUESTIONS = ["{m}.sum() > 0.3", "{u}[0] > 0", "n % 2", "({m} * {m}).sum().item() > 1"]
ANSWERS = ["{m}[0] += 1", "{m}.mul_(0.5)", "{m}[1] = {u}", "{m} = {m} + {u}"]


def random_function(seed: int) -> str:
    """The text of a function `f(v, n)` of a vector and a number."""
    chance = random.Random(seed)
    matrices, vectors, lines = ["z", "y"], ["v", "h"], [FIRST]
    for number in range(chance.randint(4, 10)):
        names = {
            "m": chance.choice(matrices),
            "u": chance.choice(vectors),
            "w": chance.choice(vectors),
            "bit": chance.randint(0, 1),
        }
        made, kind = f"t{number}", chance.random()
        if kind < 0.5:
            line = chance.choice(WRITES)
        elif kind < 0.65:
            line, vectors = f"{made} = {chance.choice(VECTORS)}", [*vectors, made]
        elif kind < 0.8:
            line, matrices = f"{made} = {chance.choice(MATRICES)}", [*matrices, made]
        else:
            line = f"if {chance.choice(QUESTIONS)}: {chance.choice(ANSWERS)}"
        lines.append(line.format(**names))
    results = f"{chance.choice(matrices)}, {chance.choice(matrices)}, {chance.choice(vectors[1:])}, z.sum()"
    return "\n    ".join(["def f(v, n):", *lines, f"return {results}"]) + "\n"
