"""Cells at the edge of what a cell can be: aliases, constants, nothing recurrent, nothing gathered, nests of everything."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.testing import assert_equivalent, random_structure

torch.set_num_threads(1)
D = 3
F64 = torch.float64


class Odd(weft.VertexFunction):
    """State h [D], size []; parameters w, start; the rest is the function given."""

    def __init__(self, code: Callable[[Any, Any], None]) -> None:
        super().__init__(state={"h": (D,), "size": ()})
        self.w, self.start = nn.Linear(D, D), nn.Parameter(torch.linspace(-1, 1, D))
        self.code = code
        self.double()

    def forward(self, v: Any) -> None:
        self.code(self, v)


ODD: dict[str, Callable[[Any, Any], None]] = {}


def odd(code: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    ODD[code.__name__.replace("_", " ")] = code
    return code


def give(v: Any, h: Any, size: Any = None, push: Any = None) -> None:
    v.scatter(h=h, size=v.gather().sum("size") + 1 if size is None else size)
    v.push(h if push is None else push)


@odd
def hands_its_input_on(m: Any, v: Any) -> None:
    give(v, v.pull()["x"])


@odd
def hands_its_first_child_on(m: Any, v: Any) -> None:
    give(v, v.gather(0)["h"], push=v.gather(0)["h"] * v.pull()["x"])


@odd
def hands_its_first_child_or_a_parameter_on(m: Any, v: Any) -> None:
    give(v, v.gather(0, default={"h": m.start})["h"])


@odd
def hands_the_sum_of_its_children_on(m: Any, v: Any) -> None:
    give(v, v.gather().sum("h"), push=m.w(v.gather().sum("h") + v.pull()["x"]))


@odd
def scatters_a_constant(m: Any, v: Any) -> None:
    give(v, torch.ones(D, dtype=F64), push=m.w(v.gather().sum("h")))


@odd
def scatters_a_parameter(m: Any, v: Any) -> None:
    give(v, m.start, push=m.w(v.gather().sum("h")))


@odd
def scatters_a_parameter_plus_its_children(m: Any, v: Any) -> None:
    give(v, m.start + v.gather().sum("h") / 2)


@odd
def pushes_a_parameter(m: Any, v: Any) -> None:
    give(v, torch.tanh(m.w(v.gather().sum("h"))), push=m.start)


@odd
def pushes_a_constant(m: Any, v: Any) -> None:
    give(v, torch.tanh(m.w(v.gather().sum("h"))), push=(torch.zeros(2), torch.tensor(True)))


@odd
def pushes_its_input(m: Any, v: Any) -> None:
    give(v, torch.tanh(m.w(v.gather().sum("h"))), push=v.pull())


@odd
def pushes_the_same_twice(m: Any, v: Any) -> None:
    h = torch.tanh(m.w(v.gather().sum("h") + v.pull()["x"]))
    give(v, h, push=[h, {"again": h, "other": (h, h.sum())}])


@odd
def gathers_nothing(m: Any, v: Any) -> None:
    give(v, m.w(v.pull()["x"]), size=torch.ones((), dtype=F64))


@odd
def pulls_nothing(m: Any, v: Any) -> None:
    give(v, torch.tanh(m.w(v.gather().sum("h") + m.start)))


@odd
def reads_the_third_slot_only(m: Any, v: Any) -> None:
    give(v, torch.tanh(m.w(v.gather(2)["h"]) + v.pull()["x"]))


@odd
def reads_one_key_of_one_slot_and_the_other_of_another(m: Any, v: Any) -> None:
    give(v, torch.tanh(m.w(v.gather(0)["h"]) * v.gather(1)["size"] + v.pull()["x"]), size=v.gather(1)["size"] * 0.5 + 1)


@odd
def reads_slots_sums_and_edges_at_once(m: Any, v: Any) -> None:
    kids = v.gather()
    near = v.gather(1)["h"] * v.edge(0)["e"].sum()
    far = kids.map(lambda k: k["h"] * k.edge["e"][0] + m.w(k["h"])).mean()
    give(v, torch.tanh(near + far + kids.sum("h") + v.pull()["x"]))


@odd
def maps_to_what_does_not_depend_on_the_child(m: Any, v: Any) -> None:
    x = v.pull()["x"]
    give(v, torch.tanh(v.gather().map(lambda k: m.start * x).sum() + x))


@odd
def maps_to_the_edge_alone(m: Any, v: Any) -> None:
    give(v, v.gather().map(lambda k: k.edge["e"].sum()).max() * m.start + v.pull()["x"])


@odd
def maps_a_map(m: Any, v: Any) -> None:
    first = v.gather().map(lambda k: {"a": k["h"], "b": k["size"] * 2})
    second = v.gather().map(lambda k: m.w(k["h"] + first.mean("a")))
    give(v, torch.tanh(second.sum() + first.max("b") + v.pull()["x"]))


@odd
def attends_with_the_whole_state(m: Any, v: Any) -> None:
    seen = v.gather().softmax_sum(lambda k: (k["h"] * m.start).sum() + k.edge["e"][1])
    give(v, torch.tanh(m.w(seen["h"]) + v.pull()["x"]), size=seen["size"] + 1)


@odd
def counts_its_children(m: Any, v: Any) -> None:
    give(v, m.start * v.gather().count, push=v.gather().count)


@odd
def stops_the_gradient(m: Any, v: Any) -> None:
    give(v, torch.tanh(m.w(v.gather().sum("h").detach()) + v.pull()["x"]))


@odd
def computes_without_gradient(m: Any, v: Any) -> None:
    with torch.no_grad():
        scale = m.w(v.gather().sum("h")).abs().sum() + 1
    give(v, torch.tanh(m.w(v.gather().sum("h")) / scale + v.pull()["x"]))


@odd
def uses_bools_and_integers(m: Any, v: Any) -> None:
    given = v.pull()
    h = torch.where(given["flag"], m.w(v.gather().sum("h")).tanh(), m.start * given["number"])
    give(v, h, push={"h": h, "not": ~given["flag"], "twice": given["number"] * 2})


@odd
def uses_one_weight_many_times(m: Any, v: Any) -> None:
    h = v.gather().sum("h") + v.pull()["x"]
    for _ in range(3):
        h = torch.tanh(m.w(h) + m.w.weight.mean(0))
    give(v, h)


@cache
def model_of(name: str) -> Odd:
    """One model for all tests, which leave it as it is: what is traced and compiled for one structure serves the others."""
    torch.manual_seed(0)
    return Odd(ODD[name])


def assert_right(name: str, graph: weft.Graph, **options: Any) -> None:
    torch.manual_seed(0)
    n = graph.num_vertices
    x = {"x": torch.randn(n, D, dtype=F64), "flag": torch.rand(n) > 0.5, "number": torch.arange(n) % 5}
    assert_equivalent(model_of(name), graph, x, edges={"e": torch.randn(graph.num_edges, 2, dtype=F64)}, **options)


STRUCTURES = {
    "chain": weft.Graph.chain(4),
    "leaves": weft.Graph([[]] * 3),
    "binary trees": weft.Graph.batch([weft.Graph.full_binary_tree(4), weft.Graph.full_binary_tree(3)]),
    "grid": weft.Graph.grid(3, 3),
    "dag": random_structure(3, "repeated", size=12),
    "holes": random_structure(4, "holes", size=12),
}


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", ODD)
def test_an_odd_cell_is_right(name: str, structure: str) -> None:
    assert_right(name, STRUCTURES[structure])


@pytest.mark.parametrize("name", ODD)
def test_an_odd_cell_is_right_in_rounds(name: str) -> None:
    assert_right(name, random_structure(6, "cyclic", size=8), rounds=2)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_cell_is_right_when_it_recomputes_in_small_steps(name: str) -> None:
    assert_right(name, STRUCTURES["dag"], recompute=True, max_rows=2)
