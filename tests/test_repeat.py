"""Calls that go the way of an earlier one: they do, and whatever may have changed since is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.api import repeat, vertexcall
from weft.api.modelcache import ModelCache

torch.set_num_threads(1)
D = 3
GRAPHS = [weft.Graph.from_parents([2, 2, -1]), weft.Graph.from_parents([1, 2, 4, 4, -1]), weft.Graph.chain(4)]
BATCH, OTHER = weft.Graph.batch(GRAPHS), weft.Graph.batch(GRAPHS[::-1])


class Sum(weft.VertexFunction):
    """Everything a vertex may look at: parameters, a setting, a buffer, a submodule."""

    def __init__(self, size: int = D) -> None:
        super().__init__(state={"h": (size,)})
        self.u, self.scale = nn.Linear(size, size), 2.0
        self.a = nn.Parameter(torch.linspace(-1, 1, size))
        self.register_buffer("shift", torch.full((size,), 0.5))

    def forward(self, v: Any) -> None:
        h = torch.tanh(v.pull() * self.a + self.scale * self.u(v.gather().sum("h")) + self.shift)
        v.scatter(h=h)
        v.push(h)


def rows(graph: weft.Graph, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(graph.num_vertices, D, dtype=dtype, generator=torch.Generator().manual_seed(graph.num_vertices))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call that looked like an earlier one, whether it went its way."""
    found: list[bool] = []
    run = repeat.Repeat.run

    def watched(self: repeat.Repeat, *args: Any) -> Any:
        rows = run(self, *args)
        found.append(rows is not None)
        return rows

    monkeypatch.setattr(repeat.Repeat, "run", watched)
    return found


def made(model: weft.VertexFunction, **options: Any) -> weft.VertexFunction:
    """A model whose calls others may repeat."""
    for graph in (BATCH, OTHER):
        model(graph, rows(graph), **options)
    return model


def check(model: weft.VertexFunction, graph: weft.Graph = OTHER, x: Tensor | None = None, **options: Any) -> None:
    """Results and gradients of a call, which may be a repeat, are those of the reference."""
    x = rows(graph) if x is None else x
    found = model(graph, x, **options)
    expected = model(graph, x, backend="reference")
    assert found.dtype == expected.dtype and found.requires_grad == expected.requires_grad
    loosely = 1e-1 if torch.is_autocast_enabled("cpu") else 1e-5
    assert torch.allclose(found, expected, rtol=0, atol=loosely)
    if found.requires_grad:
        given = [tensor for tensor in (*model.parameters(), x) if tensor.requires_grad]
        ours, theirs = (torch.autograd.grad(out.float().sum(), given, allow_unused=True) for out in (found, expected))
        for one, other in zip(ours, theirs, strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.allclose(one, other, rtol=loosely, atol=10 * loosely)


@pytest.mark.parametrize("options", [{}, {"policy": "condense"}, {"max_rows": 2}, {"recompute": True}], ids=str)
def test_calls_that_look_alike_go_the_same_way(options: dict[str, Any], taken: list[bool]) -> None:
    model = made(Sum(), **options)
    taken.clear()
    for graph in (BATCH, OTHER, weft.Graph.batch(GRAPHS[1:])):
        check(model, graph, **options)
    assert taken == [True] * 3


def test_a_repeat_keeps_no_input_alive() -> None:
    model = made(Sum())
    ((known,),) = ModelCache.of(model).repeats.values()
    assert known.call.plan is None and not known.call.feeds and known.call.captured is None


def _replace_parameter(model: Any) -> None:
    model.a = nn.Parameter(torch.zeros(D))


def _swap_memory(model: Any) -> None:
    model.a.data = torch.ones(D)


def _to_double(model: Any) -> None:
    model.double()


def _tie(model: Any) -> None:
    model.u.bias = model.a


def _set(name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(model, name, value)


def _double_output(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return 2 * output


CHANGES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda model: None,
    "another parameter": _replace_parameter,
    "other memory of a parameter": _swap_memory,
    "another dtype": _to_double,
    "parameters that are one": _tie,
    "a parameter that does not learn": lambda model: model.a.requires_grad_(False),
    "a setting": _set("scale", -1.0),
    "another buffer": _set("shift", torch.zeros(D)),
    "a number changed in place": lambda model: model.a.data.mul_(3),
    "another submodule": _set("u", nn.Sequential(nn.Linear(D, D), nn.Tanh())),
    "a hook": lambda model: model.u.register_forward_hook(_double_output),
    "evaluation": lambda model: model.eval(),
    "another first parameter": lambda model: model._parameters.update({"u0": nn.Parameter(torch.zeros(1))}),
}


@pytest.mark.filterwarnings("ignore:.*carries hooks:weft.errors.FallbackWarning")
@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_in_a_model_is_noticed(change: str) -> None:
    model = made(Sum(), backend="eager")
    CHANGES[change](model)
    dtype = next(model.parameters()).dtype
    for graph in (BATCH, OTHER):
        check(model, graph, rows(graph, dtype), backend="eager")


def test_parameters_that_were_one_and_are_not_any_more() -> None:
    model = Sum()
    model.u.bias = model.a
    made(model)
    model.u.bias = nn.Parameter(torch.ones(D))
    for graph in (BATCH, OTHER):
        check(model, graph)


def test_the_state_and_the_types_of_a_model_may_change() -> None:
    typed = weft.Graph.batch([weft.Graph([[], [], [0, 1]], types=["a", "a", "b"])] * 2)
    model = weft.Typed({"a": Sum(), "b": Sum()})
    for _ in range(3):
        model(typed, rows(typed))
    model.functions["b"] = Sum()
    check(model, typed)
    single = made(Sum())
    single.state_shapes["more"] = (2,)
    with pytest.raises(weft.StructureError, match="state key 'more' was not scattered"):
        single(BATCH, rows(BATCH))


MOODS: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "a default device": lambda: torch.device("cpu"),
}


@pytest.mark.parametrize("mood", MOODS)
def test_the_mood_of_torch_counts(mood: str) -> None:
    model = made(Sum(), backend="eager")
    with MOODS[mood]():
        for graph in (BATCH, OTHER):
            check(model, graph, backend="eager")
    check(model, backend="eager")


def test_inputs_that_look_otherwise() -> None:
    model = made(Sum())
    check(model, OTHER, rows(OTHER).requires_grad_())
    check(model, OTHER, torch._neg_view(rows(OTHER)))
    check(model, OTHER, rows(OTHER).t().contiguous().t())
    with pytest.raises(weft.ShapeError, match="Sum: x: expected 12 rows, one for each of the graph's vertices, got 11 rows"):
        model(OTHER, rows(OTHER)[1:])
    with pytest.raises(weft.TypeMismatch, match="unknown option 'polcy'"):
        model(OTHER, rows(OTHER), polcy="auto")
    check(model, weft.Graph([[], [], []]))


@pytest.mark.parametrize("rows_of_a_step", [True, 1.0, [1]])
def test_what_equals_an_option_of_an_earlier_call_is_no_option(rows_of_a_step: Any) -> None:
    model = Sum()
    for _ in range(2):
        model(BATCH, rows(BATCH), max_rows=1)
    with pytest.raises(weft.TypeMismatch, match="max_rows: expected a positive integer or None"):
        model(OTHER, rows(OTHER), max_rows=rows_of_a_step)


def test_a_cycle_is_told_as_ever() -> None:
    model = made(Sum())
    cycle = weft.Graph.batch([GRAPHS[0], weft.Graph([[1], [0], []])])
    with pytest.raises(weft.StructureError, match="Sum: graph 1: cycle"):
        model(cycle, rows(cycle))


def test_forgetting_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vertexcall, "MOST_LOOKS", 2)
    model = Sum()
    for max_rows in range(1, 6):
        for _ in range(3):
            model(BATCH, rows(BATCH), max_rows=max_rows)
    assert 1 <= len(ModelCache.of(model).repeats) <= 2


def test_training_and_evaluation_take_turns(taken: list[bool]) -> None:
    model = Sum()
    for _ in range(2):
        made(model.train(), backend="eager")
        made(model.eval(), backend="eager")
    taken.clear()
    for mode in (True, False, True):
        model.train(mode)(OTHER, rows(OTHER), backend="eager")
    assert taken.count(True) == 3
    model(OTHER, rows(OTHER), backend="eager", at=[0])
    assert taken.count(True) == 3
