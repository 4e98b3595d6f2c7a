"""Numbers that code reads out of real tensors: those of the moment, and none of the model's where recordings are kept."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import weft
import weft.data


class Tempered(nn.Module):
    """One row of an embedding, times a number that is read from a tensor of the model."""

    def __init__(self, read: Callable[[Tempered], Any]) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.register_buffer("heat", torch.tensor([1.0, 2.0]))
        self.trained = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.plain = torch.tensor([1.0, 2.0])
        self.read = read

    def forward(self, word: int) -> Tensor:
        found: Tensor = self.embed(torch.tensor(word)) * self.read(self)
        return found

    def change(self, number: float) -> None:
        with torch.no_grad():
            for tensor in (self.heat, self.trained, self.plain):
                assert isinstance(tensor, Tensor)
                tensor.fill_(number)


READS: dict[str, Callable[[Tensor], Any]] = {
    "tolist": lambda t: t.tolist()[0],
    "tolist of data": lambda t: t.data.tolist()[1],
    "item": lambda t: t[0].item(),
    "numpy": lambda t: float(t.detach().numpy()[0]),
    "str": lambda t: float(len(str(t))),
    "equal": lambda t: 2.0 if torch.equal(t, torch.tensor([1.0, 2.0])) else 3.0,
    "contains": lambda t: 2.0 if 1.0 in t else 3.0,
    "sum": lambda t: float(t.detach().sum()),
}
TENSORS = ("heat", "trained", "plain")


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("name", READS)
def test_numbers_of_captured_tensors_are_those_of_the_moment(name: str, tensor: str) -> None:
    model = Tempered(lambda self: READS[name](getattr(self, tensor)))
    net = weft.batched(model)
    for number in (1.0, 123456.0, -4.0):
        model.change(number)
        torch.testing.assert_close(net([1, 2, 3]), torch.stack([model(word) for word in (1, 2, 3)]))


def test_numbers_of_parameters_in_a_scope_are_those_of_the_moment() -> None:
    weight, rows = nn.Parameter(torch.ones(2)), torch.ones(2)
    for number in (1.0, 2.0, 3.0):
        with torch.no_grad():
            weight.fill_(number)
        with weft.batching():
            found = rows * weight.tolist()[0]
        assert weft.value(found).tolist() == [number, number]


def test_a_captured_tensor_is_printed_with_its_numbers() -> None:
    weight, plain, shown = nn.Parameter(torch.ones(2)), torch.zeros(1), []

    def fn(row: Tensor) -> Tensor:
        shown.append((str(weight), f"{plain}", repr(plain)))
        return row * weight

    net = weft.batched(fn)
    net(torch.ones(1, 2))
    plain.fill_(5.0)
    net(torch.ones(1, 2))
    parameter = "Parameter containing:\ntensor([1., 1.], requires_grad=True)"
    assert shown == [(parameter, "tensor([0.])", "tensor([0.])"), (parameter, "tensor([5.])", "tensor([5.])")]


KEPT: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
    "item": ("item", lambda t: t.item()),
    "float": ("float", lambda t: float(t)),
    "int": ("int", lambda t: int(t)),
    "tolist": ("tolist", lambda t: t.tolist()),
    "numpy": ("numpy", lambda t: float(t.numpy())),
    "array": ("__array__", lambda t: float(np.asarray(t))),
    "equal": ("equal", lambda t: 2 if torch.equal(t, torch.tensor(1.0)) else 3),
    "equal data": ("equal", lambda t: 2 if torch.equal(t, torch.arange(1.0)) else 3),
    "is_nonzero": ("is_nonzero", lambda t: 2 if t.is_nonzero() else 3),
    "contains": ("contains", lambda t: 2 if 1.0 in t else 3),
    "tensor": ("torch.tensor", lambda t: torch.tensor([t, t])[0]),
    "copy": ("copy_", lambda t: torch.arange(1.0).copy_(t)),
    "out": ("mul", lambda t: torch.mul(t, 2.0, out=torch.arange(1.0).sum())),
    "grad": ("grad", lambda t: 2 if t.grad is None else 3),
}
ASKED = (
    "the code asked for the number in a Value (bool, float, int, item or tolist); what it does next would depend on numbers "
    "that change from epoch to epoch, so its recording cannot be kept: call without "
)


def _refusal(keeper: str, name: str) -> str:
    return (
        f"{keeper}: {name} reads the numbers of a tensor of the model of shape [], which change from epoch to epoch, so the "
        "recording cannot be kept: put what needs them into a weft.cell, which runs in every epoch, or call without "
        f"{keeper.strip('=')}"
    )


@pytest.mark.parametrize("read", KEPT)
def test_kept_recordings_read_no_numbers_out_of_the_model(read: str) -> None:
    name, function = KEPT[read]
    model = Tempered(lambda self: function(self.heat))
    model.heat = torch.tensor(1.0)
    net = weft.batched(model, cache=True)
    with pytest.raises(weft.TraceError) as error:
        net([1, 2])
    assert str(error.value) == _refusal("cache=", name)
    with pytest.raises(weft.TraceError) as error:
        weft.data.collate(net)([1, 2])
    assert str(error.value) == _refusal("collate", name)


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.detach().item(),
        lambda t: t.data.item(),
        lambda t: 2 if t > 0 else 3,
        lambda t: f"{t.sum():.1f}",
        lambda t: t.T.numpy(),
    ],
)
def test_kept_recordings_read_no_numbers_out_of_what_is_recorded(read: Callable[[Tensor], Any]) -> None:
    weight = nn.Parameter(torch.tensor(1.0))
    for fn in (lambda i: torch.ones(2) * weight * read(weight), lambda i: torch.ones(2) * read(weight)):
        with pytest.raises(weft.TraceError) as error:
            weft.batched(fn, cache=True)([1])
        assert str(error.value) == f"cache=: {ASKED}cache"


@pytest.mark.parametrize("tensor", ["heat", "trained"])
@pytest.mark.parametrize("name", ["data", "T", "mT", "real"])
def test_attributes_of_the_model_are_looked_up_by_kept_recordings(name: str, tensor: str) -> None:
    model = Tempered(lambda self: (getattr(getattr(self, tensor), name) * 2).sum())
    model.heat, model.trained = torch.ones(2, 3), nn.Parameter(torch.ones(2, 3))
    net = weft.batched(model, cache=True)
    for number in (1.0, 2.0):
        with torch.no_grad():
            getattr(model, tensor).fill_(number)
        results = []
        for found in (net([1, 2]), torch.stack([model(1), model(2)])):
            model.zero_grad()
            found.sum().backward()
            results.append((found, model.embed.weight.grad, model.trained.grad))
        torch.testing.assert_close(*results)


def test_kept_recordings_read_numbers_of_the_examples_and_of_what_is_known_of_tensors() -> None:
    weight, rows = torch.ones(3), [torch.full((3,), float(i)) for i in range(3)]

    def fn(i: int) -> Tensor:
        assert (weight.dim(), weight.size(0), weight.is_contiguous(), str(weight)) == (1, 3, True, "tensor([1., 1., 1.])")
        scale = sum(rows[i].tolist()) + rows[i][0].item() + float((rows[i] * 2).numpy()[0])
        return weight * scale

    net = weft.batched(fn, cache=True)
    assert torch.equal(net([0, 1, 2]), torch.stack([fn(i) for i in range(3)]))
    assert torch.equal(net([2, 0]), torch.stack([fn(2), fn(0)]))


def test_what_needs_numbers_of_the_model_is_kept_inside_a_cell() -> None:
    heat = torch.tensor(1.0)

    @weft.cell
    def tempered(row: Tensor) -> Tensor:
        return row * heat.item()

    net = weft.batched(lambda i: tempered(torch.full((2,), float(i))), cache=True)
    for number in (1.0, 5.0):
        heat.fill_(number)
        with pytest.warns(weft.FallbackWarning) if number == 1.0 else nullcontext():
            found = net([1, 2])
        assert found.tolist() == [[number, number], [2 * number, 2 * number]]


def test_kept_recordings_keep_no_results_of_other_code() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

    tree, weight = weft.nn.TreeGRU(2, 3), nn.Parameter(torch.ones(3))
    graph, rows = weft.Graph.chain(2), torch.ones(2, 2)
    with torch.no_grad(), pytest.raises(weft.TraceError) as error:
        weft.batched(lambda i: tree(graph, rows) * i, cache=True)([1])
    assert str(error.value) == (
        "cache=: TreeGRU batches its own work, and what it gives now would be kept; call it outside of the batched function, "
        "or call without cache"
    )
    with torch.no_grad(), pytest.raises(weft.TraceError) as error:
        weft.batched(lambda i: Twice.apply(weight) * i, cache=True)([1])
    assert str(error.value) == _refusal("cache=", "Twice.apply").replace("[]", "[3]")
