"""States that are handed on as they are: the input, a child's state, a sum of children's states, children side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from bounds import check_memory
from kernel_parts import NEEDS_INTERPRETER
from weft.testing import assert_equivalent

pytestmark = NEEDS_INTERPRETER


class Cell(weft.VertexFunction):
    """Two states, given by a function of the vertex."""

    def __init__(self, states: Callable[[Any, nn.Module], dict[str, Tensor]]) -> None:
        super().__init__(state={"h": 3, "c": 3})
        self.states, self.norm = states, nn.LayerNorm(3)

    def forward(self, v: Any) -> None:
        v.scatter(**self.states(v, self.norm))


def both(h: Tensor, c: Tensor) -> dict[str, Tensor]:
    return {"h": h, "c": c}


CELLS: dict[str, Callable[[Any, Any], dict[str, Tensor]]] = {
    "the input": lambda v, norm: both(v.pull(), torch.tanh(v.gather().sum("c") + v.pull())),
    "the input, which parents read": lambda v, norm: both(v.pull(), torch.tanh(v.gather(0)["c"] + v.gather(1)["h"])),
    "a child's state": lambda v, norm: both(v.pull(), v.gather(0)["c"]),
    "a child's other state": lambda v, norm: both(v.gather(0)["c"] + v.pull(), v.gather(0)["h"]),
    "two states in turn": lambda v, norm: both(v.gather(0)["c"], v.gather(0)["h"] + v.pull()),
    "a sum": lambda v, norm: both(v.gather().sum("h"), torch.tanh(v.gather().sum("c") + v.pull())),
    "sums in turn": lambda v, norm: both(v.gather().sum("c"), v.gather().sum("h") + v.pull()),
    "a sum that backward needs": lambda v, norm: both(v.gather().sum("h"), norm(v.gather().sum("h")) + v.pull()),
    "a constant": lambda v, norm: both(torch.ones(3, dtype=torch.float64), v.gather(0)["h"] + v.gather(0)["c"] * v.pull()),
}


@pytest.mark.parametrize("name", CELLS)
def test_states_that_are_handed_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_memory(monkeypatch)
    model, graph = Cell(CELLS[name]).double(), weft.Graph([[], [], [0, 1], [2, 1], [3, 0, 2], [4, 4]])
    x = torch.randn(graph.num_vertices, 3, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        assert_equivalent(model, graph, x, backends=["triton", "auto"])


class Pair(weft.VertexFunction):
    """Children side by side, in one type; what is computed of them in another."""

    def __init__(self, d: int, joins: bool) -> None:
        super().__init__(state={"h": d, "pair": 2 * d})
        self.joins, self.down = joins, nn.Linear(2 * d, d)

    def forward(self, v: Any) -> None:
        if self.joins:
            pair = torch.cat([v.gather(0)["h"], v.gather(1)["h"]])
            v.scatter(h=v.gather(0)["h"], pair=pair)
        else:
            pair = v.gather(0)["pair"]
            v.scatter(h=torch.tanh(self.down(pair) + v.pull()), pair=pair)


@pytest.mark.filterwarnings("ignore:.*no kernel can express stack of single numbers")  # for d = 1, where rows are no rows
@pytest.mark.parametrize("d", [1, 2, 4])
def test_children_side_by_side(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is put together of several is read row by row."""
    check_memory(monkeypatch)
    model = weft.Typed({"join": Pair(d, True), "work": Pair(d, False)}).double()
    graph = weft.Graph([[], [], [0, 1], [2], [3, 1], [4], [5, 3]], types=[1, 1, 0, 1, 0, 1, 0])
    x = torch.randn(graph.num_vertices, d, dtype=torch.float64)
    for _ in range(2):
        assert_equivalent(model, graph, x, backends=["triton"])
