"""Random per-example programs: statements over named vectors, run by an ordinary module; and what is in each."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

import weft

FEATURES = (
    "branches on values",
    "recursion",
    "sharing",
    "unused results",
    "several dtypes",
    "captured tensors",
    "lists",
    "loops",
    "writing",
)
DIM, WORDS = 3, 6

Program = tuple[Any, ...]


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(self.left(a) - self.right(b))


class Interpreter(nn.Module):
    """Runs one program on one vector. Written for one example, without a thought of batching."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.pair, self.embed = nn.Linear(DIM, DIM), weft.cell(Pair()), nn.Embedding(WORDS, DIM)
        self.bias = nn.Parameter(torch.randn(DIM))
        self.register_buffer("table", torch.randn(WORDS, DIM))
        self.double()
        self.extra = torch.randn(DIM, dtype=torch.float64, requires_grad=True)

    def forward(self, program: Program, x: Tensor) -> Any:
        env = {"x": x * self.bias}
        self.run(program, env)
        return env["x"], env["x"].sum() * 2

    def run(self, program: Program, env: dict[str, Tensor]) -> None:
        for statement in program:
            getattr(self, f"do_{statement[0]}")(env, *statement[1:])

    def do_word(self, env: dict[str, Tensor], to: str, word: int) -> None:
        env[to] = self.embed(torch.tensor(word))

    def do_add(self, env: dict[str, Tensor], to: str, a: str, b: str) -> None:
        env[to] = env[a] + env[b] * 0.5

    def do_linear(self, env: dict[str, Tensor], to: str, a: str) -> None:
        env[to] = torch.tanh(self.linear(env[a]))

    def do_pair(self, env: dict[str, Tensor], to: str, a: str, b: str) -> None:
        env[to] = self.pair(env[a], env[b])

    def do_captured(self, env: dict[str, Tensor], to: str, a: str, row: int) -> None:
        env[to] = env[a] * self.extra + self.table[row]

    def do_unused(self, env: dict[str, Tensor], a: str) -> None:
        torch.exp(env[a] * 3).sum()

    def do_types(self, env: dict[str, Tensor], to: str, a: str) -> None:
        positive = (env[a] > 0).long().sum()
        env[to] = (env[a].float() * 2).double() + self.embed(positive)

    def do_list(self, env: dict[str, Tensor], to: str, names: tuple[str, ...]) -> None:
        env[to] = torch.stack([env[name] for name in names]).mean(0)

    def do_write(self, env: dict[str, Tensor], to: str, a: str, b: str, row: int) -> None:
        whole = torch.zeros(WORDS, DIM, dtype=torch.float64)
        whole[row] += env[a]
        part, turned = whole[1:], whole.t()
        part[0] = env[b] * 2
        turned[0].add_(1)
        whole[row, 1:] -= env[b][:2]
        rows = torch.stack([env[a], env[b]])
        rows[1] += part[row - 1]
        env[to] = torch.tanh(whole.sum(0) + turned[:, 1].sum() + rows.mean(0))

    def do_loop(self, env: dict[str, Tensor], to: str, a: str, count: int) -> None:
        for _ in range(count):
            env[to] = self.pair(env[a], env[to])

    def do_recurse(self, env: dict[str, Tensor], to: str, a: str, depth: int) -> None:
        env[to] = self._down(env[a], depth)

    def _down(self, v: Tensor, depth: int) -> Tensor:
        return v * 0.5 if depth == 0 else self.pair(self._down(v, depth - 1), v)

    def do_branch(self, env: dict[str, Tensor], a: str, then: Program, other: Program) -> None:
        self.run(then if env[a].sum() > 0.1 else other, env)


def random_example(seed: int) -> tuple[Program, set[str]]:
    """A program, and which features it has."""
    dice = random.Random(seed)
    features: set[str] = set()
    names = ["x"]

    def block(size: int, depth: int) -> Program:
        return tuple(statement(depth) for _ in range(size))

    def fresh() -> str:
        name = dice.choice(["x", "a", "b", "c"])
        if name not in names:
            names.append(name)
        return name

    def statement(depth: int) -> Any:
        kind = dice.choice("word add linear pair captured unused types list loop recurse branch branch write".split())
        a, b = dice.choice(names), dice.choice(names)
        if kind == "branch":
            if depth == 0:
                return ("linear", "x", a)
            features.add("branches on values")
            known = list(names)
            then = block(dice.randint(1, 2), depth - 1)
            names[:] = known
            other = block(dice.randint(0, 2), depth - 1)
            names[:] = known
            return ("branch", a, then, other)
        return _plain(kind, a, b)

    def _plain(kind: str, a: str, b: str) -> Any:
        if kind == "unused":
            features.add("unused results")
            return (kind, a)
        if kind == "write":
            features.add("writing")
            return (kind, fresh(), a, b, dice.randint(1, WORDS - 1))
        if kind == "list":
            features.add("lists")
            return (kind, "x", tuple(dice.choice(names) for _ in range(dice.randint(1, 4))))
        if kind == "loop":
            features.add("loops")
            return (kind, "x", a, dice.randint(1, 3))
        if kind in ("add", "pair"):
            if a == b:
                features.add("sharing")
            return (kind, fresh(), a, b)
        named = {"types": "several dtypes", "captured": "captured tensors", "recurse": "recursion"}
        if kind in named:
            features.add(named[kind])
        extra = {"word": (dice.randrange(WORDS),), "captured": (a, dice.randrange(WORDS)), "recurse": (a, dice.randint(1, 3))}
        return (kind, fresh(), *extra.get(kind, (a,)))

    return block(dice.randint(3, 8), 2), features
