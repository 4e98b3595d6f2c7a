"""What a call is given and cannot use: the error names the model, what was expected and what came; the next call works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.errors import MissingKey, ShapeError, StructureError, TypeMismatch, WeftError

torch.set_num_threads(1)

Graph = weft.Graph
CHAIN = Graph.chain(3)
X = torch.arange(6.0).view(3, 2)
META = torch.zeros(3, 2, device="meta")
ONE_DEVICE = "Mix: all tensors of a call live on one device, but"
OPTIONS = "the options are policy, backend, dedupe, max_rows, recompute, graph"


class Mix(weft.VertexFunction):
    """h = w(x) + the sum over children; `x` may also be {"a": ..., "b": ...}."""

    def __init__(self, d: int = 2) -> None:
        super().__init__({"h": (d,)})
        self.w = nn.Linear(2, 2)

    def forward(self, v: Any) -> None:
        x = v.pull()
        h = self.w(x["a"] if isinstance(x, dict) else x) + v.gather().sum("h")
        v.scatter(h=h)
        v.push(h)


class Pushes(weft.VertexFunction):
    """Hands its row on, and pushes `result` of it."""

    def __init__(self, result: Callable[[Tensor], Any]) -> None:
        super().__init__({"h": (2,)})
        self.result = result

    def forward(self, v: Any) -> None:
        v.scatter(h=v.pull())
        v.push(self.result(v.pull()))


def typed(*names: str) -> weft.Typed:
    return weft.Typed({name: Mix() for name in names})


def pushing(second: Callable[[Tensor], Any]) -> weft.Typed:
    return weft.Typed({"a": Pushes(lambda row: row), "b": Pushes(second)})


MIX = Mix()

GIVEN: list[tuple[Callable[..., Any], type[WeftError], str]] = [
    (
        lambda **o: MIX(Graph([[2], [0], [1]]), X, **o),
        StructureError,
        "Mix: graph 0: cycle: 0 -> 2 -> 1 -> 0 (vertex 0 gathers vertex 2, which gathers vertex 1, which gathers vertex 0); "
        "rounds= runs on graphs with cycles",
    ),
    (
        lambda **o: MIX(Graph.batch([Graph.chain(2), Graph([[0]])]), X, **o),
        StructureError,
        "Mix: graph 1: cycle: 2 -> 2 (vertex 2 gathers itself); rounds= runs on graphs with cycles",
    ),
    (lambda **o: MIX([[], [0], [1]], X, **o), TypeMismatch, "Mix: expected a weft.Graph, got list"),
    (lambda **o: MIX(X, CHAIN, **o), TypeMismatch, "Mix: expected a weft.Graph, got Tensor"),
    (
        lambda **o: MIX(CHAIN, X[:2], **o),
        ShapeError,
        "Mix: x: expected 3 rows, one for each of the graph's vertices, got 2 rows",
    ),
    (
        lambda **o: MIX(CHAIN, {"a": X, "b": X[:2]}, **o),
        ShapeError,
        "Mix: x['b']: expected 3 rows, one for each of the graph's vertices, got 2 rows",
    ),
    (
        lambda **o: MIX(CHAIN, torch.tensor(1.0), **o),
        ShapeError,
        "Mix: x: expected 3 rows, one for each of the graph's vertices, got a 0-d tensor",
    ),
    (lambda **o: MIX(CHAIN, X.numpy(), **o), TypeMismatch, "Mix: x: expected a tensor or a nest of tensors, got ndarray"),
    (
        lambda **o: MIX(CHAIN, X.to_sparse(), **o),
        TypeMismatch,
        "Mix: x: expected a dense tensor, got one of layout torch.sparse_coo",
    ),
    (
        lambda **o: MIX(CHAIN, {"a": torch.nested.nested_tensor(list(X), layout=torch.jagged)}, **o),
        TypeMismatch,
        "Mix: x['a']: expected a dense tensor, got a nested tensor",
    ),
    (
        lambda **o: MIX(CHAIN, X, edges=X, **o),
        ShapeError,
        "Mix: edges: expected 2 rows, one for each of the graph's edges, got 3 rows",
    ),
    (
        lambda **o: MIX(CHAIN, X, init={"h": X}, **o),
        StructureError,
        "Mix: init= is the state before the first round; it needs rounds=",
    ),
    (
        lambda **o: MIX(CHAIN, X, rounds=1, init={"z": X}, **o),
        MissingKey,
        "Mix: init: unknown state key 'z'; the state has 'h'",
    ),
    (
        lambda **o: MIX(CHAIN, X, rounds=1, init=X, **o),
        TypeMismatch,
        "Mix: init: expected a mapping from state keys to tensors, got Tensor",
    ),
    (
        lambda **o: MIX(CHAIN, X, rounds=1, init={"h": [0.0, 0.0]}, **o),
        TypeMismatch,
        "Mix: init['h']: expected a tensor, got list",
    ),
    (
        lambda **o: MIX(CHAIN, X, rounds=1, init={"h": X[:2]}, **o),
        ShapeError,
        "Mix: init['h']: expected torch.float32 of shape [3, 2], got torch.float32 of shape [2, 2]",
    ),
    (
        lambda **o: MIX(CHAIN, X, rounds=1, init={"h": X.double()}, **o),
        ShapeError,
        "Mix: init['h']: expected torch.float32 of shape [3, 2], got torch.float64 of shape [3, 2]",
    ),
    *(
        (lambda r=r, **o: MIX(CHAIN, X, rounds=r, **o), TypeMismatch, f"Mix: rounds: expected a positive integer, got {r!r}")
        for r in (0, -1, 1.5, True)
    ),
    (lambda **o: MIX(CHAIN, META, **o), ShapeError, f"{ONE_DEVICE} the parameters are on cpu and the inputs are on meta"),
    (lambda **o: MIX(CHAIN.to("meta"), X, **o), ShapeError, f"{ONE_DEVICE} the graph is on meta and the parameters are on cpu"),
    (
        lambda **o: MIX(CHAIN, X, edges=META[:2], **o),
        ShapeError,
        f"{ONE_DEVICE} the parameters are on cpu and the inputs are on meta",
    ),
    (
        lambda **o: typed("a", "b")(CHAIN, X, **o),
        StructureError,
        "Typed: the graph has no types; build it with Graph(..., types=...)",
    ),
    *(
        (
            lambda names=names, **o: typed(*names)(Graph.chain(3, types=["a", "c", "a"]), X, **o),
            StructureError,
            f"Typed: vertex 1 has the unknown type 'c'; the types are {', '.join(map(repr, names))}",
        )
        for names in (["a", "b"], ["a"])
    ),
    (
        lambda **o: typed("a", "b")(Graph.chain(3, types=[0, 2, 1]), X, **o),
        StructureError,
        "Typed: vertex 1 has type 2, but the types are 0 to 1 ('a', 'b')",
    ),
    *(
        (
            lambda second=second, **o: pushing(second)(Graph.chain(3, types=["a", "b", "a"]), X, **o),
            ShapeError,
            "Typed: all types push results of one structure and shape, but Typed.a pushes [2] torch.float32 and "
            f"Typed.b pushes {came}",
        )
        for second, came in (
            (lambda row: row[0], "[] torch.float32"),
            (lambda row: row.double(), "[2] torch.float64"),
            (lambda row: {"h": row}, "{'h': [2] torch.float32}"),
        )
    ),
]


@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize(("call", "kind", "message"), GIVEN, ids=[message for _, _, message in GIVEN])
def test_what_a_call_cannot_use_is_named(call: Callable[..., Any], kind: type[WeftError], message: str, backend: str) -> None:
    with pytest.raises(kind) as caught:
        call(backend=backend)
    assert str(caught.value) == message
    assert type(caught.value) is kind
    expected = MIX.w(X).cumsum(0)
    torch.testing.assert_close(MIX(CHAIN, X, backend=backend), expected)


POLICIES = "'auto', 'depth', 'agenda', 'condense'"
BACKENDS = "'auto', 'reference', 'eager', 'compiled', 'triton'"

OTHERS: list[tuple[Callable[[], Any], type[WeftError], str]] = [
    (lambda: MIX(CHAIN, X, polcy="depth"), TypeMismatch, f"unknown option 'polcy'; {OPTIONS}"),
    (lambda: MIX(CHAIN, X, policy="greedy"), TypeMismatch, f"policy: expected one of {POLICIES}, got 'greedy'"),
    (lambda: MIX(CHAIN, X, backend="gpu"), TypeMismatch, f"backend: expected one of {BACKENDS}, got 'gpu'"),
    *(
        (
            lambda rows=rows: MIX(CHAIN, X, max_rows=rows),
            TypeMismatch,
            f"max_rows: expected a positive integer or None, got {rows!r}",
        )
        for rows in (0, -3, 1.5, True, [1])
    ),
    (
        lambda: weft.Typed({"a": Mix(2), "b": Mix(3)}),
        TypeMismatch,
        "Typed: all types share one state, but 'a' has {'h': (2,)} and 'b' has {'h': (3,)}",
    ),
    (lambda: weft.Typed({"a": nn.Linear(2, 2)}), TypeMismatch, "Typed: expected a VertexFunction for 'a', got Linear"),
    (lambda: weft.Typed([Mix()]), TypeMismatch, "Typed: expected a mapping from type names to vertex functions, got list"),
    (lambda: weft.Typed({}), TypeMismatch, "Typed: expected a mapping from type names to vertex functions, got {}"),
    (
        lambda: weft.Typed({"a.b": Mix()}),
        TypeMismatch,
        "Typed: 'a.b' cannot be a type name: it becomes part of parameter names",
    ),
    (
        lambda: weft.VertexFunction({}),
        TypeMismatch,
        "state: expected a mapping from keys to shapes, as {'h': (64,)}, got {}",
    ),
    (lambda: weft.VertexFunction({"h": 2.5}), TypeMismatch, "state: 'h': expected a shape, as (64,), got 2.5"),
    (lambda: weft.VertexFunction({"h": ("a",)}), TypeMismatch, "state: 'h': expected a shape, as (64,), got ('a',)"),
    (lambda: weft.VertexFunction({1: (2,)}), TypeMismatch, "state: expected string keys, got 1"),
]


@pytest.mark.parametrize(("call", "kind", "message"), OTHERS, ids=[message for _, _, message in OTHERS])
def test_bad_options_and_models_are_named(call: Callable[[], Any], kind: type[WeftError], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == message
    assert type(caught.value) is kind


def test_parameters_on_two_devices_are_an_error_that_names_both() -> None:
    model = Mix()
    model.w.bias = nn.Parameter(torch.zeros(2, device="meta"))
    for backend in ("eager", "reference"):
        with pytest.raises(RuntimeError, match="meta") as caught:
            model(CHAIN, X, backend=backend)
        assert "cpu" in str(caught.value)
        assert "Mix" in " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    model.w.bias = nn.Parameter(torch.zeros(2))
    torch.testing.assert_close(model(CHAIN, X), model.w(X).cumsum(0))


def test_every_option_of_the_contract_is_taken() -> None:
    options = {"policy": "depth", "backend": "eager", "dedupe": True, "max_rows": 2, "recompute": True, "graph": True}
    torch.testing.assert_close(MIX(CHAIN, X, **options), MIX(CHAIN, X))
    torch.testing.assert_close(MIX(CHAIN, x=X), MIX(CHAIN, X))
