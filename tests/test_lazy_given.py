"""The tensors that a batched call is given are values that know their numbers: everything on them is recorded and batched."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import weft
from lazy_parts import assert_equals_loop
from weft.lazy.fibers import Fibers

X = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def test_operations_on_what_is_given_are_recorded_and_batched() -> None:
    seen: list[Any] = []

    def fn(x: Tensor) -> Tensor:
        seen.append(x)
        return x * 2

    assert torch.equal(weft.batched(fn)(X), X * 2)
    assert all(type(x) is weft.Value for x in seen)
    planned = weft.plan(weft.batched(lambda x: torch.tanh(x * 2) + 1), X)
    assert planned.stats()["examples"] == 4 and planned.stats()["batches"] <= 2
    assert_equals_loop(lambda x: torch.tanh(x * 2) @ x, X.clone().requires_grad_())


@pytest.mark.parametrize("given", [X, list(X), tuple(X)], ids=["tensor", "list", "tuple"])
def test_numbers_of_what_is_given_are_known_at_once(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, value: Any) -> None:
        raise AssertionError("nothing has to be computed")

    monkeypatch.setattr(Fibers, "need", refuse)

    def fn(x: Tensor) -> Any:
        parts = [float(part) for part in x]
        assert parts == x.tolist() and len(x) == 3 and x[0].item() == parts[0] and x[1:].tolist() == parts[1:]
        assert x[None, :, ...].shape == (1, 3) and bool(x[0] * 0 == 0 if False else x[2].item() == parts[2])
        return parts[-1], float(x[1]), int(x[0]), f"{x[0]:.1f}", x.detach() if False else x[2]

    last, second, whole, text, third = weft.batched(fn)(given)
    assert torch.allclose(last, X[:, 2].float()) and torch.allclose(second, X[:, 1].float())
    assert whole.tolist() == [int(x[0]) for x in X] and text == [f"{x[0]:.1f}" for x in X]
    assert torch.equal(third, X[:, 2])


def test_tensors_in_tuples_lists_and_dictionaries_are_values() -> None:
    class Both(NamedTuple):
        a: Tensor
        b: int

    seen: set[type] = set()

    def fn(pair: Any, named: Any, both: Any) -> Tensor:
        seen.update((type(pair[0]), type(named["x"])))
        return pair[0] * pair[1] + named["x"] + both.a * both.b

    pairs, named = [(x, 2.0) for x in X], [{"x": x} for x in X]
    both = [Both(x, 3) for x in X]
    assert torch.allclose(weft.batched(fn)(pairs, named, both), X * 6)
    assert seen == {weft.Value}


def test_gradients_reach_what_is_given() -> None:
    x = X.clone().requires_grad_()
    weft.batched(lambda x: (x[0] * x[1:]).sum() + sum(part * part for part in x))(x).sum().backward()
    other = X.clone().requires_grad_()
    (other[:, :1] * other[:, 1:]).sum().add((other * other).sum()).backward()
    assert torch.allclose(x.grad, other.grad)


def test_what_is_given_stays_as_it_is() -> None:
    x = X.clone()

    def fn(row: Tensor) -> Tensor:
        row += 1
        row[0] = 7.0
        return row * 1

    found = weft.batched(fn)(x)
    assert torch.equal(x, X) and torch.equal(found[:, 0], torch.full((4,), 7.0)) and torch.equal(found[:, 1:], X[:, 1:] + 1)

    def changed(row: Tensor) -> Tensor:
        found = row * 2
        x.add_(1)
        return found

    with pytest.raises(weft.TraceError) as error:
        weft.batched(changed)(x)
    assert str(error.value) == (
        "a tensor of shape [3] was written into after a recorded operation had used it; use .clone() before writing"
    )


def test_sequences_of_different_lengths_batch_item_by_item() -> None:
    linear = nn.Linear(3, 3).double()

    def fn(rows: Tensor) -> Tensor:
        h = torch.zeros(3, dtype=torch.float64)
        for row in rows:
            h = torch.tanh(linear(row) + h)
        return h + linear(rows[0]) + linear(rows[-1])

    sequences = [torch.randn(n, 3, dtype=torch.float64) for n in (1, 4, 2, 7)]
    assert_equals_loop(fn, sequences)
    state = weft.batched(fn).state
    assert len(state.library.types) < 14, "no kind of call for each length"


def test_operations_in_a_scope_return_values() -> None:
    x, ids = torch.randn(3), torch.tensor([1, 2])
    with weft.batching():
        found = [x * 2, x[0], x.sum(), torch.relu(x), torch.cat([x, x]), ids + 1, torch.stack([x, x]), x.clone()]
        assert all(type(value) is weft.Value for value in found)
        assert x.shape == (3,) and len(x) == 3 and x.size(0) == 3 and ids.tolist() == [1, 2] and x.dim() == 1
        assert found[2].item() == pytest.approx(float(x.numpy().sum()))
    assert torch.equal(weft.value(found[0]), x * 2) and torch.equal(weft.value(found[5]), torch.tensor([2, 3]))


def test_in_dims_are_those_of_vmap() -> None:
    shared = torch.arange(3.0, dtype=torch.float64)

    def fn(given: Any, scale: Any) -> Tensor:
        return (given["a"] * scale + given["b"][0] + given["b"][1]).sum()

    given = {"a": X.T, "b": (X, shared)}
    dims = ({"a": 1, "b": (0, None)}, None)
    expected = torch.vmap(fn, in_dims=dims)(given, shared)
    assert torch.allclose(weft.batched(fn, in_dims=dims)(given, shared), expected)
    whole = torch.vmap(lambda given: given["a"] * given["b"], in_dims=0)({"a": X, "b": X})
    assert torch.allclose(weft.batched(lambda given: given["a"] * given["b"], in_dims=0)({"a": X, "b": X}), whole)
    assert torch.allclose(weft.batched(lambda x: x * 1, in_dims=-1)(X), X.T)


@pytest.mark.parametrize(
    ("in_dims", "args", "message"),
    [
        (3, (X,), "argument 0: in_dims asks for dimension 3 of a tensor of shape [4, 3]"),
        ((1,), ([1, 2],), "argument 0: in_dims asks for dimension 1 of a list, which has one item per example"),
        ([0], (X,), "in_dims: expected None, an integer or a tuple with an entry for each argument, got [0]"),
        (True, (X,), "in_dims: expected None, an integer or a tuple with an entry for each argument, got True"),
        (("0",), (X,), "argument 0: in_dims: expected an integer or None, got '0'"),
        ((0, 0), (X,), "in_dims has 2 entries for 1 arguments"),
        (({"a": 0},), ({"b": X},), "argument 0: in_dims has the structure {'a': 0}, which is not that of the dict given"),
        (({"a": 0, "b": 0},), ({"a": X, "b": 3},), "argument 0['b']: in_dims asks for examples, got int"),
        ((None,), (X,), "no argument holds examples: pass a list, a tuple or a tensor of them"),
    ],
)
def test_in_dims_that_do_not_fit_say_so(in_dims: Any, args: Any, message: str) -> None:
    with pytest.raises(weft.TypeMismatch) as error:
        weft.batched(lambda x: x, in_dims=in_dims)(*args)
    assert str(error.value) == message


def test_parts_of_different_sizes_are_named() -> None:
    with pytest.raises(weft.StructureError) as error:
        weft.batched(lambda x: x, in_dims=({"a": 0, "b": 1},))({"a": X, "b": X})
    assert str(error.value) == "argument 0['a'] holds 4 examples, argument 0['b'] holds 3"


class Node:
    """Not a nest that is looked into: its tensor is data."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 2).double(), nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.register_buffer("start", X[0].clone())

    def forward(self, nodes: list[Node]) -> Tensor:
        own = [self.start, self.scale]
        return torch.stack([self.layer(x) for x in [*[node.x for node in nodes], *own]]).sum(0)


def test_layers_take_data_and_tensors_of_the_model_at_one_place() -> None:
    torch.manual_seed(0)
    model, rows = Layered(), [torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(6)]
    examples = [[Node(x) for x in rows[:1]], [Node(x) for x in rows[1:4]], [Node(x) for x in rows[4:]]]
    net, trained = weft.batched(model), [*model.parameters(), *rows]
    for turn in range(3):  # the first call goes the long way
        found, expected = net(examples), torch.stack([model(example) for example in examples])
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)
        gradients = [torch.autograd.grad(out.square().sum(), trained) for out in (found, expected)]
        assert all(torch.allclose(one, other, rtol=0, atol=1e-12) for one, other in zip(*gradients, strict=True)), turn
        model.start.mul_(1.5)  # type: ignore[operator]  # a buffer


def test_data_that_is_written_into_after_a_layer_took_it_is_refused() -> None:
    layer = nn.Linear(3, 2)

    def fn(node: Node) -> Tensor:
        found = layer(node.x)
        node.x.add_(1)
        return found

    net = weft.batched(fn)
    for _ in range(3):
        with pytest.raises(weft.TraceError, match="was written into after a recorded operation had used it"):
            net([Node(torch.zeros(3)), Node(torch.zeros(3))])
