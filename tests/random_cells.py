"""Random vertex functions: what one vertex does is a script, drawn from a seed, over vectors of several widths.

Rows are joined, cut, multiplied and handed on in ways that nobody would think of, states that are nothing but a child's state,
a sum over children or the input among them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import weft

WIDEST = 24
POINTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "exp": lambda t: torch.exp(t.clamp(max=2)),
    "gelu": F.gelu,
    "softplus": F.softplus,
    "abs": torch.abs,
    "square": lambda t: torch.tanh(t) ** 2,
    "scale": lambda t: t * 0.3 + 0.1,
    "softmax": lambda t: F.softmax(t, 0),
    "share": lambda t: t / (1 + t.abs().sum()),
    "positive": lambda t: torch.where(t > 0, t, -0.5 * t),
    "turned": lambda t: -t,
}
WIDTHS = (1, 2, 3, 4, 4, 6)


class RandomCell(weft.VertexFunction):
    """Its script is a list of operations with their arguments; each gives one vector, named by its place in the list."""

    def __init__(self, seed: int, widths: dict[str, int], d_in: int, d_edge: int) -> None:
        super().__init__(state={key: (width,) for key, width in widths.items()})
        self.dice, self.widths, self.d_in, self.d_edge = random.Random(seed), widths, d_in, d_edge
        self.parts = nn.ModuleList()
        self.script: list[tuple[Any, ...]] = []
        self.made: list[int] = []
        """The width of what each operation gives."""
        self._draw_inputs()
        for _ in range(self.dice.randrange(8)):
            self._draw_operation()
        self.states = {key: self._of_width(width) for key, width in widths.items()}
        self.pushed: Any = self.dice.choice(["nothing", "states", self.dice.randrange(len(self.made))])

    def forward(self, v: Any) -> None:
        found: list[Tensor] = []
        for kind, *given in self.script:
            found.append(getattr(self, f"do_{kind}")(v, found, *given))
        states = {key: found[at] for key, at in self.states.items()}
        v.scatter(**states)
        if self.pushed != "nothing":
            v.push(states if self.pushed == "states" else found[self.pushed])

    # Drawing a script.

    def _add(self, width: int, *operation: Any) -> int:
        self.script.append(operation)
        self.made.append(width)
        return len(self.made) - 1

    def _draw_inputs(self) -> None:
        dice = self.dice
        if self.d_in and dice.random() < 0.8:
            self._add(self.d_in, "input")
        for slot in range(dice.choice([0, 1, 2, 2, 3])):
            for key, width in self.widths.items():
                if dice.random() < 0.8:
                    self._add(width, "slot", slot, key, dice.random() < 0.2)
            if self.d_edge and dice.random() < 0.5:
                self._add(self.d_edge, "edge", slot)
        if dice.random() < 0.5 or not self.made:
            for key, width in self.widths.items():
                self._add(width, "children", key, dice.choice(["sum", "sum", "mean", "max", "min"]))
        if dice.random() < 0.3:
            self._draw_map()
        if dice.random() < 0.1:
            self._add(1, "count")

    def _draw_map(self) -> None:
        """Work for every child."""
        key, width = self.dice.choice(list(self.widths.items()))
        own = self._any([width])
        with_edge = bool(self.d_edge) and self.dice.random() < 0.5
        part = self._part(nn.Linear(width + self.d_edge * with_edge, width))
        how = self.dice.choice(["sum", "mean", "max", "softmax"])
        self._add(width, "map", key, part, own, with_edge, how)

    def _draw_operation(self) -> None:
        dice, at = self.dice, self.dice.randrange(len(self.made))
        width = self.made[at]
        kind = dice.choice(
            ["join", "join", "join", "linear", "linear", "pointwise", "pointwise", "both", "cut", "total", "parameter"]
        )
        if kind == "join":
            others = [dice.randrange(len(self.made)) for _ in range(dice.choice([1, 1, 2]))]
            total = width + sum(self.made[one] for one in others)
            if total <= WIDEST:
                self._add(total, "join", at, *others)
        elif kind == "linear":
            self._linear(at, dice.choice(WIDTHS))
        elif kind == "pointwise":
            self._add(width, "pointwise", at, dice.choice(list(POINTWISE)))
        elif kind == "both":
            other = self._any([width, 1])
            self._add(width, "both", at, at if other is None else other, dice.choice("+*"))
        elif kind == "cut" and width > 1:
            first = dice.randrange(width - 1)
            last = dice.randrange(first + 1, width + 1)
            self._add(last - first, "cut", at, first, last)
        elif kind == "total":
            self._add(1, "total", at, dice.choice(["sum", "mean", "max"]))
        elif kind == "parameter":
            self._add(width, "normed" if width > 2 else "scaled", at, self._part(nn.LayerNorm(width)))

    def _part(self, module: nn.Module) -> int:
        self.parts.append(module)
        return len(self.parts) - 1

    def _linear(self, at: int, width: int) -> int:
        return self._add(width, "linear", at, self._part(nn.Linear(self.made[at], width, bias=self.dice.random() < 0.6)))

    def _any(self, widths: list[int]) -> int | None:
        """Some vector of one of these widths."""
        found = [at for at, width in enumerate(self.made) if width in widths]
        return self.dice.choice(found) if found else None

    def _of_width(self, width: int) -> int:
        found = self._any([width])
        if found is not None and self.dice.random() < 0.6:
            return found
        return self._linear(self.dice.randrange(len(self.made)), width)

    # Operations.

    def do_input(self, v: Any, found: list[Tensor]) -> Tensor:
        return v.pull()

    def do_slot(self, v: Any, found: list[Tensor], slot: int, key: str, has_default: bool) -> Tensor:
        return v.gather(slot, default={key: torch.tensor(0.5)} if has_default else None)[key]

    def do_edge(self, v: Any, found: list[Tensor], slot: int) -> Tensor:
        return v.edge(slot)

    def do_children(self, v: Any, found: list[Tensor], key: str, how: str) -> Tensor:
        return getattr(v.gather(), how)(key)

    def do_count(self, v: Any, found: list[Tensor]) -> Tensor:
        return v.gather().count.reshape(1) * 0.1

    def do_map(self, v: Any, found: list[Tensor], key: str, part: int, own: int | None, with_edge: bool, how: str) -> Tensor:
        def each(child: Any) -> Tensor:
            row = torch.cat([child[key], child.edge]) if with_edge else child[key]
            made = torch.tanh(self.parts[part](row))
            return made if own is None else made * found[own]

        if how == "softmax":
            return v.gather().softmax_sum(lambda child: each(child).sum(), lambda child: child[key])
        return getattr(v.gather().map(each), how)()

    def do_join(self, v: Any, found: list[Tensor], *parts: int) -> Tensor:
        return torch.cat([found[at] for at in parts])

    def do_linear(self, v: Any, found: list[Tensor], at: int, part: int) -> Tensor:
        return self.parts[part](found[at])

    def do_pointwise(self, v: Any, found: list[Tensor], at: int, name: str) -> Tensor:
        return POINTWISE[name](found[at])

    def do_both(self, v: Any, found: list[Tensor], one: int, other: int, how: str) -> Tensor:
        return found[one] + found[other] if how == "+" else torch.tanh(found[one]) * found[other]

    def do_cut(self, v: Any, found: list[Tensor], at: int, first: int, last: int) -> Tensor:
        return found[at][first:last]

    def do_total(self, v: Any, found: list[Tensor], at: int, how: str) -> Tensor:
        return found[at].amax(0, keepdim=True) if how == "max" else getattr(found[at], how)(0, keepdim=True)

    def do_normed(self, v: Any, found: list[Tensor], at: int, part: int) -> Tensor:
        return self.parts[part](found[at])

    def do_scaled(self, v: Any, found: list[Tensor], at: int, part: int) -> Tensor:
        return found[at] * self.parts[part].weight


def random_case(seed: int) -> tuple[weft.VertexFunction, weft.Graph, Tensor | None, Tensor | None]:
    """A model of one type of vertices or of several, graphs for it, rows for its vertices, and rows for its edges."""
    dice = random.Random(seed)
    torch.manual_seed(seed)
    widths = {key: dice.choice(WIDTHS) for key in "hc"[: dice.choice([1, 2])]}
    d_in, d_edge, types = dice.choice([0, 3, 4]), dice.choice([0, 0, 2, 3]), dice.choice([1, 1, 2, 3])
    cells = [RandomCell(100 * seed + number, widths, d_in, d_edge) for number in range(types)]
    if types > 1:
        for cell in cells:  # all that push do it alike
            cell.pushed = "states" if cells[0].pushed != "nothing" and cell.pushed != "nothing" else "nothing"
    model = weft.Typed({f"type{number}": cell for number, cell in enumerate(cells)}) if types > 1 else cells[0]
    graph = weft.Graph.batch([_random_graph(dice, types) for _ in range(dice.choice([1, 2, 3]))])
    x = torch.randn(graph.num_vertices, d_in, dtype=torch.float64, requires_grad=dice.random() < 0.7) if d_in else None
    edges = torch.randn(graph.num_edges, d_edge, dtype=torch.float64, requires_grad=dice.random() < 0.7) if d_edge else None
    for cell in cells:  # states are of the dtype of a model's parameters
        cell.own = nn.Parameter(torch.zeros(()))
    return model.double(), graph, x, edges


def _random_graph(dice: random.Random, types: int) -> weft.Graph:
    children: list[list[int]] = [[]]
    for vertex in range(1, dice.randrange(3, 12)):
        count = dice.choice([0, 1, 2, 2, 3])
        children.append([dice.randrange(vertex) if dice.random() < 0.9 else -1 for _ in range(count)])
    return weft.Graph(children, types=[dice.randrange(types) for _ in children] if types > 1 else None)
