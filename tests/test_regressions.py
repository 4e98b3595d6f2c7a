"""Vertex functions that once gave wrong numbers, crashed, or left something behind."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.testing import assert_equivalent

F64 = torch.float64
D = 4
GRAPH = weft.Graph.batch([weft.Graph.from_parents([2, 2, 3, -1]), weft.Graph.chain(5), weft.Graph([[], [], [0, 1], [2, 0]])])


class Cell(weft.VertexFunction):
    """One function of (module, vertex) as a vertex function with two linear maps."""

    def __init__(self, code: Callable[[Any, Any], None], keys: tuple[str, ...] = ("h",)) -> None:
        super().__init__(state=dict.fromkeys(keys, (D,)))
        self.code = code
        self.w, self.u = nn.Linear(D, D), nn.Linear(D, D)
        self.double()

    def forward(self, v: Any) -> None:
        self.code(self, v)


def give(v: Any, h: torch.Tensor) -> None:
    v.scatter(h=h)
    v.push(h)


def rows(graph: weft.Graph = GRAPH) -> torch.Tensor:
    return torch.randn(graph.num_vertices, D, dtype=F64, generator=torch.Generator().manual_seed(0))


def part_of_a_repeated_number(m: Any, v: Any) -> None:
    x = v.pull()
    repeated = x[:1].expand(D)
    h = torch.tanh(m.w(x) + m.u(v.gather(0)["h"]))
    give(v, torch.cat([h[:2] * repeated[2:], h[2:] * repeated.chunk(2)[1]]))


def pushes_a_gathered_state(m: Any, v: Any) -> None:
    state = v.gather(0)["h"]
    v.scatter(h=torch.tanh(state + v.pull()))
    v.push((state, state[:2]))


def writes_into_a_slice(m: Any, v: Any) -> None:
    x = v.pull() * 1
    x[1:3] = v.gather(0)["h"][:2]
    give(v, torch.tanh(x))


def sorts_by_a_computed_index(m: Any, v: Any) -> None:
    a = v.gather().sum("h") + v.pull()
    give(v, torch.tanh(a[a.argsort()]))


def joins_constants_at_leaves(m: Any, v: Any) -> None:
    a = v.gather(0)["h"]
    give(v, torch.cat([a[2:] + 1, a[:2].sigmoid()]))


def writes_into_a_childs_state(m: Any, v: Any) -> None:
    def shifted(child: Any) -> torch.Tensor:
        h = child["h"]
        h += 1
        return h

    give(v, torch.tanh(v.pull() + v.gather().map(shifted).sum()))


def small_sigmoids(m: Any, v: Any) -> None:
    give(v, torch.sigmoid(v.pull() * 300 + v.gather(0)["h"]).clamp_min(1e-300).log() * 1e-3)


def two_lists_of_places(m: Any, v: Any) -> None:
    a = v.gather(0)["h"] + v.pull()
    give(v, torch.tanh(a[[0, 1, 2, 3]] * 2 + a[[3, 2, 0, 1]]))


def writes_into_a_turned_copy(m: Any, v: Any) -> None:
    turned = torch.tanh(m.w(v.gather(0)["h"] + v.pull())).view(2, 2).t()
    copy = turned.clone()
    copy[1] = turned[1] * 3
    give(v, torch.tanh(copy.reshape(-1)))


def multiplies_by_a_reshaped_parameter(m: Any, v: Any) -> None:
    square = (v.pull() + v.gather().sum()).reshape(2, 2)
    give(v, torch.tanh(square.sort()[0] * m.w.bias.reshape(2, 2) + m.u.bias[:1].expand(2, 2)).reshape(D))


def normalises_groups(m: Any, v: Any) -> None:
    channels = (v.pull() + v.gather().sum()).reshape(1, D, 1)
    give(v, nn.functional.group_norm(channels, 2, m.w.bias, m.u.bias).reshape(D))


CODES = [
    multiplies_by_a_reshaped_parameter,
    normalises_groups,
    writes_into_a_turned_copy,
    two_lists_of_places,
    part_of_a_repeated_number,
    pushes_a_gathered_state,
    writes_into_a_slice,
    sorts_by_a_computed_index,
    joins_constants_at_leaves,
    writes_into_a_childs_state,
    small_sigmoids,
]


@pytest.mark.parametrize("code", CODES)
def test_a_cell_that_was_wrong_is_right(code: Callable[[Any, Any], None]) -> None:
    assert_equivalent(Cell(code), GRAPH, rows())


def test_one_tensor_scattered_under_two_keys() -> None:
    def code(m: Any, v: Any) -> None:
        h = torch.tanh(m.w(v.pull()) + v.gather(0)["c"])
        v.scatter(h=h, c=h)
        v.push(h + v.gather(0)["h"])

    assert_equivalent(Cell(code, ("h", "c")), GRAPH, rows())


def test_an_input_that_is_pushed_and_multiplies_what_is_gathered() -> None:
    def code(m: Any, v: Any) -> None:
        first, second = v.pull()
        h = torch.tanh(m.w(first) + second * v.gather().sum("h"))
        v.scatter(h=h)
        v.push((second, h))

    assert_equivalent(Cell(code), GRAPH, (rows(), rows().flip(0)))


def test_an_infinite_recurrent_weight_shows_at_leaves() -> None:
    model = Cell(lambda m, v: give(v, torch.tanh(m.w(v.pull()) + m.u(v.gather(0)["h"]))))
    with torch.no_grad():
        model.u.weight[0, 0] = torch.inf
    leaves = weft.Graph([[], []])
    for backend in ("auto", "eager"):
        got, expected = (model(leaves, rows(leaves), backend=b) for b in (backend, "reference"))
        assert torch.equal(got.isnan(), expected.isnan()) and bool(got.isnan().any())


def test_a_tensor_made_on_first_use_stays_real() -> None:
    def code(m: Any, v: Any) -> None:
        if not hasattr(m, "mask"):
            m.mask = torch.ones(D, dtype=F64) * 2
        give(v, torch.tanh(v.pull() * m.mask + v.gather(0)["h"]))

    model = Cell(code)
    assert_equivalent(model, GRAPH, rows())
    assert type(model.mask) is torch.Tensor


def test_a_tensor_kept_outside_on_first_use_is_refused() -> None:
    @functools.lru_cache
    def table(n: int) -> torch.Tensor:
        return torch.arange(n, dtype=F64) / n

    model = Cell(lambda m, v: give(v, torch.tanh(v.pull() * table(D) + v.gather(0)["h"])))
    with pytest.raises(
        weft.TraceError, match=r"^Cell: it keeps a tensor that it makes on first use where weft cannot make it anew"
    ):
        model(GRAPH, rows())


def test_a_parameter_at_two_places_is_counted_once_in_a_fallback() -> None:
    def code(m: Any, v: Any) -> None:
        x = torch.nn.functional.linear(v.pull(), m.again[0])
        give(v, torch.tanh(x * 2 if x.sum() > 0 else x + v.gather(0)["h"]))

    model = Cell(code)
    model.again = [model.w.weight]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", weft.FallbackWarning)
        assert_equivalent(model, GRAPH, rows())


CHANGES: dict[str, tuple[Callable[[Any], None], Callable[[Any], None]]] = {
    "an attribute of an object": (lambda m: setattr(m, "cfg", SimpleNamespace(k=1.0)), lambda m: setattr(m.cfg, "k", 3.0)),
    "an entry of a nested list": (lambda m: setattr(m, "cfg", [[1.0]]), lambda m: m.cfg[0].__setitem__(0, 3.0)),
    "a new attribute": (lambda m: None, lambda m: setattr(m, "cfg", 3.0)),
}


def factor(cfg: Any) -> float:
    return cfg.k if isinstance(cfg, SimpleNamespace) else cfg[0][0] if isinstance(cfg, list) else cfg


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_between_calls_is_noticed(what: str) -> None:
    before, change = CHANGES[what]
    model = Cell(lambda m, v: give(v, torch.tanh(v.pull() * factor(getattr(m, "cfg", 1.0)) + v.gather(0)["h"])))
    before(model)
    assert_equivalent(model, GRAPH, rows(), policies=["auto"])
    change(model)
    assert_equivalent(model, GRAPH, rows(), policies=["auto"])


def test_train_and_eval_are_traced_once_each() -> None:
    model = Cell(lambda m, v: give(v, torch.tanh(v.pull() * (2.0 if m.training else 1.0) + v.gather(0)["h"])))
    results = []
    for training in (True, False, True, False):
        model.train(training)
        results.append(model(GRAPH, rows()))
    assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])
    assert not torch.equal(results[0], results[1])
    assert max(len(kept) for kept in model.__dict__["_weft"].cells.values()) == 2


def test_a_compiled_model_runs_as_it_is() -> None:
    model, x = Cell(lambda m, v: give(v, torch.tanh(m.w(v.pull()) + v.gather(0)["h"]))), rows()
    assert torch.equal(torch.compile(model, backend="eager")(GRAPH, x), model(GRAPH, x))


def test_threads_that_trace_at_once_do_not_disturb_each_other() -> None:
    models = [Cell(lambda m, v: give(v, torch.tanh(m.w(v.pull()) + m.u(v.gather(0)["h"])))) for _ in range(4)]
    results: list[Any] = [None] * len(models)

    def run(i: int) -> None:
        results[i] = models[i](GRAPH, rows())

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for model, result in zip(models, results, strict=True):
        torch.testing.assert_close(result, model(GRAPH, rows(), backend="reference"))


def test_looping_over_children_says_what_to_do_instead() -> None:
    with pytest.raises(weft.TypeMismatch, match=r"^Cell: v\.gather\(\) cannot be looped over: vertices have different numbers"):
        Cell(lambda m, v: give(v, sum(k["h"] for k in v.gather())))(GRAPH, rows())
