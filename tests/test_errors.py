"""Mistakes in the code of a vertex: what the error says, word for word, under every engine; and the next call works."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import weft
from weft.errors import MissingKey, ShapeError, StructureError, TypeMismatch, WeftError

torch.set_num_threads(1)

Body = Callable[[Any], Any]
CHAIN = weft.Graph.chain(3)
X = torch.arange(6.0).view(3, 2)
SUMS = X.cumsum(0)
SLOT = "expected a child slot 0, 1, 2, ..., got"
ONCE = "each vertex scatters every key exactly once"


def sums(v: Any) -> None:
    """What is right: the sum of the rows so far."""
    h = v.gather().sum("h") + v.pull()
    v.scatter(h=h)
    v.push(h)


class Cell(weft.VertexFunction):
    """Does what it is told."""

    def __init__(self, body: Body = sums, state: Any = None) -> None:
        super().__init__(state or {"h": (2,)})
        self.body = body

    def forward(self, v: Any) -> None:
        self.body(v)


CASES: list[tuple[Body, type[WeftError], str]] = [
    (lambda v: v.scatter(h=torch.zeros(3)), ShapeError, "scatter(h=...): expected shape [2], got [3]"),
    (lambda v: v.scatter(h=v.pull()[None]), ShapeError, "scatter(h=...): expected shape [2], got [1, 2]"),
    (lambda v: v.scatter(h=v.pull().double()), ShapeError, "scatter(h=...): expected torch.float32, got torch.float64"),
    (lambda v: v.scatter(h=v.pull().long()), ShapeError, "scatter(h=...): expected torch.float32, got torch.int64"),
    (lambda v: v.scatter(h=1.0), TypeMismatch, "scatter(h=...): expected a tensor, got float"),
    (lambda v: v.push(v.pull()), StructureError, f"state key 'h' was not scattered; {ONCE}"),
    (lambda v: (v.scatter(h=v.pull()), v.scatter(h=v.pull())), StructureError, f"state key 'h' was scattered twice; {ONCE}"),
    (
        lambda v: (v.scatter(h=v.pull()), v.push(v.pull()), v.push(v.pull())),
        StructureError,
        "a vertex pushed twice; each vertex pushes at most once",
    ),
    (
        lambda v: (v.scatter(h=v.pull()), v.push({"rows": v.pull(), "note": "text"})),
        TypeMismatch,
        "push: expected a tensor or a nest of tensors, got str",
    ),
    (lambda v: v.scatter(z=v.pull()), MissingKey, "unknown state key 'z'; the state has 'h'"),
    (lambda v: v.gather(0)["z"], MissingKey, "unknown state key 'z'; the state has 'h'"),
    (lambda v: v.gather().sum("z"), MissingKey, "unknown state key 'z'; the state has 'h'"),
    (lambda v: v.gather().mean("z"), MissingKey, "unknown state key 'z'; the state has 'h'"),
    (lambda v: v.gather().max("z"), MissingKey, "unknown state key 'z'; the state has 'h'"),
    (lambda v: v.gather().map(lambda k: k["z"]).sum(), MissingKey, "unknown state key 'z'; the state has 'h'"),
    (lambda v: v.gather().softmax_sum(lambda k: k["z"].sum()), MissingKey, "unknown state key 'z'; the state has 'h'"),
    (lambda v: v.gather(0, default={"z": X[0]}), MissingKey, "unknown state key 'z'; the state has 'h'"),
    (
        lambda v: v.gather().map(lambda k: {"a": k["h"]}).sum("b"),
        MissingKey,
        "unknown key 'b'; the mapped function returned 'a'",
    ),
    (
        lambda v: v.gather().map(lambda k: None).sum(),
        TypeMismatch,
        "map: expected a function that returns a tensor or a nest of tensors, got NoneType",
    ),
    (
        lambda v: v.gather().softmax_sum(lambda k: "high"),
        TypeMismatch,
        "softmax_sum: expected a function that returns a tensor or a nest of tensors, got str",
    ),
    (lambda v: v.gather(-1), TypeMismatch, f"v.gather: {SLOT} -1"),
    (lambda v: v.gather(0.0), TypeMismatch, f"v.gather: {SLOT} 0.0"),
    (lambda v: v.gather("h"), TypeMismatch, f"v.gather: {SLOT} 'h'"),
    (lambda v: v.gather(True), TypeMismatch, f"v.gather: {SLOT} True"),
    (lambda v: v.gather(torch.tensor(0)), TypeMismatch, f"v.gather: {SLOT} a tensor"),
    (lambda v: v.edge(-1), TypeMismatch, f"v.edge: {SLOT} -1"),
    (lambda v: v.edge(0.5), TypeMismatch, f"v.edge: {SLOT} 0.5"),
    (
        lambda v: v.scatter(h=v.gather(0, default=torch.ones(3))["h"]),
        ShapeError,
        "v.gather(0, default=...): state key 'h': expected shape [2], got [3]",
    ),
    (
        lambda v: v.scatter(h=v.gather(0, default={"h": torch.ones(5, 2)})["h"]),
        ShapeError,
        "v.gather(0, default=...): state key 'h': expected shape [2], got [5, 2]",
    ),
    (
        lambda v: v.gather(default=torch.ones(2)),
        TypeMismatch,
        "v.gather: default= is for one child slot; pass v.gather(slot, default=...)",
    ),
    (
        lambda v: v.edge(0),
        TypeMismatch,
        "v.edge() was called, but the call has no edges=; pass model(graph, x, edges=...)",
    ),
    (
        lambda v: v.gather().map(lambda k: k.edge).sum(),
        TypeMismatch,
        "k.edge was read, but the call has no edges=; pass model(graph, x, edges=...)",
    ),
    (lambda v: v.state, StructureError, "v.state is the state of the round before, and exists only with rounds="),
]

TWO_KEYS: list[tuple[Body, type[WeftError], str]] = [
    (lambda v: v.scatter(h=v.pull()), StructureError, f"state key 'c' was not scattered; {ONCE}"),
    (lambda v: v.push(v.pull()), StructureError, f"state keys 'h', 'c' were not scattered; {ONCE}"),
    (lambda v: v.gather().sum(), MissingKey, "which state key? the state has 'h', 'c'"),
    (
        lambda v: v.gather(0, default=X[0]),
        MissingKey,
        "default: which state key? the state has 'h', 'c'; pass a mapping",
    ),
]


def assert_named(model: Cell, kind: type[WeftError], message: str, backend: str) -> None:
    with pytest.raises(kind) as caught:
        model(CHAIN, X, backend=backend)
    assert str(caught.value) == f"Cell: {message}"
    assert type(caught.value) is kind
    assert caught.value.__notes__ == ["in Cell, vertex 0 of graph 0 (vertex 0 of the batch)"]


@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize(("body", "kind", "message"), CASES, ids=[message for _, _, message in CASES])
def test_a_mistake_in_forward_is_named(body: Body, kind: type[WeftError], message: str, backend: str) -> None:
    model = Cell(body)
    assert_named(model, kind, message, backend)
    model.body = sums
    assert torch.equal(model(CHAIN, X, backend=backend), SUMS)


@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize(("body", "kind", "message"), TWO_KEYS, ids=[message for _, _, message in TWO_KEYS])
def test_a_mistake_with_several_keys_is_named(body: Body, kind: type[WeftError], message: str, backend: str) -> None:
    assert_named(Cell(body, {"h": (2,), "c": (2,)}), kind, message, backend)


def test_a_missing_input_is_named_when_it_is_pulled() -> None:
    model = Cell()
    for backend in ("eager", "reference"):
        with pytest.raises(TypeMismatch) as caught:
            model(CHAIN, backend=backend)
        assert str(caught.value) == "Cell: v.pull() was called, but the call has no input; pass model(graph, x)"
    assert torch.equal(model(CHAIN, X), SUMS)


@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_a_mistake_in_one_type_names_that_type(backend: str) -> None:
    model = weft.Typed({"a": Cell(), "b": Cell(lambda v: v.scatter(h=v.pull()[0]))})
    graph = weft.Graph.batch([weft.Graph.chain(1, types=["a"]), weft.Graph.chain(2, types=["a", "b"])])
    with pytest.raises(ShapeError) as caught:
        model(graph, X, backend=backend)
    assert str(caught.value) == "Typed.b: scatter(h=...): expected shape [2], got []"
    assert caught.value.__notes__ == ["in Typed.b, vertex 1 of graph 1 (vertex 2 of the batch)"]


class Theirs(Exception):
    """An exception of the user's own."""


def fails(v: Any) -> None:
    v.scatter(h=v.gather().sum("h") + v.pull())
    if v.type == 1:
        raise Theirs("the user's words")


@pytest.mark.parametrize("backend", ["eager", "compiled", "reference"])
def test_an_exception_of_the_users_own_keeps_its_type_and_gets_a_note(backend: str) -> None:
    graph = weft.Graph.batch([weft.Graph.chain(2, types=[0, 0]), weft.Graph.chain(3, types=[0, 0, 1])])
    model, x = Cell(fails), torch.ones(5, 2)
    with pytest.raises(Theirs) as caught:
        model(graph, x, backend=backend)
    assert str(caught.value) == "the user's words"
    assert caught.value.__notes__ == ["in Cell, vertex 2 of graph 1 (vertex 4 of the batch)"]
    assert "fails" in [entry.name for entry in caught.traceback]
    model.body = sums
    assert model(graph, x, backend="eager")[:, 0].tolist() == [1, 2, 1, 2, 3]


@pytest.mark.parametrize("backend", ["auto", "eager", "reference"])
def test_a_mistake_for_some_types_alone_names_the_type(backend: str) -> None:
    def forgets(v: Any) -> None:
        if v.type != 1:
            v.scatter(h=v.pull())

    graph = weft.Graph.batch([weft.Graph.chain(1, types=[0]), weft.Graph.chain(2, types=[0, 1])])
    with pytest.raises(StructureError) as caught:
        Cell(forgets)(graph, X, backend=backend)
    assert str(caught.value) == f"Cell, v.type 1: state key 'h' was not scattered; {ONCE}"
    assert caught.value.__notes__ == ["in Cell, vertex 1 of graph 1 (vertex 2 of the batch)"]


@pytest.mark.parametrize("backend", ["auto", "eager", "reference"])
def test_rows_of_another_dtype_fail_where_the_code_does(backend: str) -> None:
    linear = torch.nn.Linear(2, 2)
    model = Cell(lambda v: v.scatter(h=linear(v.pull())))
    model.linear = linear
    with pytest.raises(RuntimeError, match="must have the same dtype, but got Double and Float") as caught:
        model(CHAIN, X.double(), backend=backend)
    assert caught.value.__notes__ == ["in Cell, vertex 0 of graph 0 (vertex 0 of the batch)"]


def test_any_word_is_a_state_key() -> None:
    model = Cell(lambda v: v.scatter(self=v.pull() + v.gather().sum("self")), {"self": (2,)})
    for backend in ("auto", "reference"):
        assert torch.equal(model(CHAIN, X, backend=backend)["self"], X.cumsum(0))


class Words(weft.VertexFunction):
    def __init__(self) -> None:
        super().__init__(state={"h": (2,)})
        self.words = torch.nn.Embedding(7, 2)

    def forward(self, v: Any) -> None:
        v.scatter(h=self.words(v.pull()) + v.gather().sum())


@pytest.mark.parametrize("backend", ["auto", "eager", "reference"])
def test_what_fails_when_rows_run_together_names_the_vertex(backend: str) -> None:
    graph, numbers = weft.Graph.batch([weft.Graph.chain(2), weft.Graph.chain(3)]), torch.arange(5)
    model, wrong = Words(), torch.tensor([0, 1, 2, 99, 4])
    for known in (False, True):  # the second time as a call that repeats another
        with pytest.raises(IndexError) as caught:
            model(graph, wrong, backend=backend)
        assert caught.value.__notes__ == ["in Words, vertex 1 of graph 1 (vertex 3 of the batch)"], known
        assert "forward" in [entry.name for entry in caught.traceback]
        state = torch.get_rng_state()
        assert model(graph, numbers, backend=backend)["h"].shape == (5, 2)
        assert torch.equal(torch.get_rng_state(), state)


def test_a_mistake_in_forward_logs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own tracing writes pages about an operation that fails; the exception is enough."""
    logged: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.Logger, "callHandlers", lambda _, record: logged.append(record))
    model = Cell(lambda v: v.scatter(h=F.linear(v.pull(), torch.ones(2, 3))))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(CHAIN, X)
    model.body = lambda v: v.scatter(h=v.pull() + torch.ones(3))
    with pytest.raises(RuntimeError, match="must match the size"):
        model(CHAIN, X)
    assert [record for record in logged if record.levelno >= logging.WARNING] == []


class NoForward(weft.VertexFunction):
    def __init__(self) -> None:
        super().__init__({"h": (2,)})
        self.linear = nn.Linear(2, 2)


@pytest.mark.parametrize("options", [{}, {"backend": "reference"}])
def test_a_vertex_function_without_forward_says_so(options: dict[str, Any]) -> None:
    with pytest.raises(TypeMismatch) as caught:
        NoForward()(CHAIN, X, **options)
    assert str(caught.value) == "NoForward does not say what a vertex does; write forward(self, v)"
