"""What recorded code writes into between two uses: the batch gives what the loop gives, or says what to do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft


class Model(nn.Module):
    """Uses its tensors, lets somebody write into them, and uses them again."""

    def __init__(self, write: Callable[[Any], None]) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.arange(1.0, 4.0))
        self.register_buffer("b", torch.ones(3))
        self.linear = nn.Linear(3, 3)
        self.write = write
        self.uses_before = True

    def forward(self, x: Tensor) -> Any:
        before = x * self.p + x * self.b + self.linear(x) if self.uses_before else x
        self.write(self)
        return before + x * self.p + x * self.b + self.linear(x)


def through_data(model: Model) -> None:
    model.p.data.mul_(2)


def into_data(model: Model) -> None:
    model.b.data[0] = 1.5


def other_data(model: Model) -> None:
    model.p.data = torch.tensor([1.0, 5.0, 2.0])


def of_a_layer(model: Model) -> None:
    model.linear.weight.data.zero_()


def lists(model: Model) -> None:
    with torch.no_grad():
        torch._foreach_mul_([model.p, model.b], 2.0)


def lists_of_data(model: Model) -> None:
    torch._foreach_add_([model.linear.bias.data], 1.0)


def out(model: Model) -> None:
    torch.add(torch.tensor([1.0, 2.0, 3.0]), 1, out=model.b)


def out_data(model: Model) -> None:
    torch.add(torch.tensor([1.0, 2.0, 3.0]), 1, out=model.p.data)


def overload(model: Model) -> None:
    with torch.no_grad():
        torch.ops.aten.mul_.Scalar(model.p, 2)


def array(model: Model) -> None:
    model.b.numpy()[0] += 1


def array_of_data(model: Model) -> None:
    model.p.data.numpy()[:] = 7


CHANGES: dict[Callable[[Any], None], str] = {
    through_data: "mul_ changed a tensor of the model of shape [3], which mul uses",
    into_data: "__setitem__ changed a tensor of the model of shape [3], which mul uses",
    other_data: "data = changed a tensor of the model of shape [3], which mul uses",
    of_a_layer: "zero_ changed a tensor of the model of shape [3, 3], which Linear uses",
    lists: "_foreach_mul_ changed a tensor of the model of shape [3], which mul uses",
    lists_of_data: "_foreach_add_ changed a tensor of the model of shape [3], which Linear uses",
    out: "add changed a tensor of the model of shape [3], which mul uses",
    out_data: "add changed a tensor of the model of shape [3], which mul uses",
    overload: "mul_ changed a tensor of the model of shape [3], which mul uses",
    array: "numpy changed a tensor of the model of shape [3], which mul uses",
    array_of_data: "numpy changed a tensor of the model of shape [3], which mul uses",
}
SEEN = [write for write in CHANGES if "array" not in write.__name__]
"""Writes of which the time is known, too: those of numpy are found at the next flush."""
X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("write", CHANGES, ids=lambda write: write.__name__)
def test_a_write_after_a_use_is_noticed(write: Callable[[Any], None]) -> None:
    with pytest.raises(weft.TraceError) as error:
        weft.batched(Model(write))(X)
    assert str(error.value) == CHANGES[write] + (
        " in the same recording and would see as it is at the end; change it before or after the batched call, or use .clone()"
    )


@pytest.mark.parametrize("write", SEEN, ids=lambda write: write.__name__)
def test_a_write_before_the_first_use_is_seen(write: Callable[[Any], None]) -> None:
    torch.manual_seed(0)
    model = Model(write)
    model.uses_before = False
    twin = copy.deepcopy(model)
    for _ in range(2):
        assert torch.allclose(weft.batched(model)(X[:1])[0], twin(X[0]), atol=1e-5)
    assert all(map(torch.equal, model.state_dict().values(), twin.state_dict().values()))


@pytest.mark.parametrize("write", SEEN, ids=lambda write: write.__name__)
def test_a_write_after_a_flush_is_seen_by_what_comes_after(write: Callable[[Any], None]) -> None:
    """What was recorded before has run."""
    torch.manual_seed(0)
    model = Model(write)
    twin = copy.deepcopy(model)

    def fn(net: Model, x: Tensor) -> Any:
        before = net.linear(x) * net.p * net.b
        total = before.sum().item()
        net.write(net)
        return before.detach(), total, net.linear(x) * net.p * net.b

    found, wanted = weft.batched(lambda x: fn(model, x))(X[:1]), fn(twin, X[0])
    assert all(torch.allclose(one[0], torch.as_tensor(other), atol=1e-5) for one, other in zip(found, wanted, strict=True))


def test_what_finished_examples_have_recorded_runs_before_a_write() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(3, 3)
    twin = copy.deepcopy(linear)

    def fn(net: nn.Linear, x: Tensor) -> Tensor:
        h = net(x)
        if x[0] > 0:
            return h * 2  # type: ignore[no-any-return]
        if h.sum() > -100:
            net.weight.data.mul_(2)
        return net(x)  # type: ignore[no-any-return]

    x = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 2.0, 3.0]])
    net = weft.batched(lambda each: fn(linear, each))
    for _ in range(3):
        wanted = torch.stack([fn(twin, each) for each in x])
        assert torch.allclose(net(x), wanted, atol=1e-5)


def parameter(model: Model) -> None:
    model.p = nn.Parameter(torch.tensor([1.0, 5.0, 2.0]))


def buffer(model: Model) -> None:
    model.b = torch.tensor([1.0, 5.0, 2.0])


def counted(model: Model) -> None:
    model.b = model.b + 1


def weight(model: Model) -> None:
    model.linear.weight = nn.Parameter(torch.tensor([[1.0, 5.0, 2.0]] * 3))


REPLACED = {parameter: "p, of shape [3]), which mul", buffer: "b, of shape [3]), which mul"}
REPLACED |= {counted: "b, of shape [3]), which mul", weight: "weight, of shape [3, 3]), which Linear"}


@pytest.mark.parametrize("write", REPLACED, ids=lambda write: write.__name__)
def test_a_tensor_of_the_model_that_is_replaced_is_noticed(write: Callable[[Any], None]) -> None:
    model = Model(write)
    net = weft.batched(model)
    with pytest.raises(weft.TraceError) as error:
        net(X)
    assert str(error.value) == f"another tensor was put in the place of a tensor of the model ({REPLACED[write]} uses in " + (
        "the same recording and would see as it is at the end; replace it before or after the batched call, or keep what "
        "changes from example to example in a variable"
    )
    assert all(isinstance(tensor, Tensor) for tensor in (*model.parameters(), *model.buffers()))
    model.write = lambda model: None
    assert torch.allclose(net(X), torch.stack([model(x) for x in X]), atol=1e-5)


def fed_data(x: Tensor, linear: nn.Linear) -> Tensor:
    own = torch.tensor([1.0, 2.0, 3.0])
    before = linear(x) * own
    own.data.mul_(2)
    return before + own


def fed_array(x: Tensor, linear: nn.Linear) -> Tensor:
    own = torch.tensor([1.0, 2.0, 3.0])
    before = linear(x) * own
    own.numpy()[0] = 5
    return before + own


def array_of_a_value(x: Tensor, linear: nn.Linear) -> Tensor:
    h = linear(x)
    h.detach().numpy()[0] = 5
    return h * 2


def array_of_a_result(x: Tensor, linear: nn.Linear) -> Tensor:
    h = linear(x)
    h.detach().numpy()[0] = 5
    return h


def array_written_later(x: Tensor, linear: nn.Linear) -> Tensor:
    h = linear(x).detach()
    numbers = h.numpy()
    if (h * 2).sum() > -1000:
        numbers[0] = 5
    return h * 2


def data_of_a_value(x: Tensor, linear: nn.Linear) -> Tensor:
    h = linear(x)
    weft.value(h).data.mul_(2)
    return h * 2


def array_of_what_is_given(x: Tensor, linear: nn.Linear) -> Tensor:
    h = linear(x)
    x.numpy()[0] = 5
    return h * x


WRITES = (
    fed_data,
    fed_array,
    array_of_a_value,
    array_of_a_result,
    array_written_later,
    data_of_a_value,
    array_of_what_is_given,
)


@pytest.mark.parametrize("fn", WRITES, ids=lambda fn: fn.__name__)
def test_a_write_into_data_and_values_after_a_use_is_noticed(fn: Callable[..., Tensor]) -> None:
    linear = nn.Linear(3, 3)
    with pytest.raises(weft.TraceError) as error:
        weft.batched(lambda x: fn(x, linear))(X.clone())
    assert str(error.value) == (
        "a tensor of shape [3] was written into after a recorded operation had used it; use .clone() before writing"
    )


def test_an_array_of_what_is_taken_of_the_model_must_not_be_written_into() -> None:
    linear = nn.Linear(3, 3)

    def fn(x: Tensor) -> Tensor:
        linear.bias.detach().numpy()[0] = 5
        return x * 2

    with pytest.raises(weft.TraceError) as error:
        weft.batched(fn)(X)
    assert str(error.value) == (
        "what was taken of a tensor of the model (a view, .detach()) was written into as a tensor or an array of numpy, and "
        "the model would stay unchanged; use .clone() first, or write into the model itself before or after the call"
    )


def test_arrays_and_own_tensors_may_be_written_into_before_they_are_used() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(3, 3)

    def fn(x: Tensor) -> Any:
        own = torch.tensor([1.0, 2.0, 3.0])
        own.numpy()[0] = 5
        own.data[1] = 6
        chances = torch.softmax(linear(x), 0).detach().numpy()
        chances /= chances.sum()
        h = linear(x).detach()
        h.numpy()[0] = 1
        return linear(x) * own, float(chances[0]), h.tolist()

    found = weft.batched(fn, stack=False)(X)
    for one, other in zip(found, map(fn, X), strict=True):
        assert torch.allclose(one[0], other[0], atol=1e-5) and one[2] == pytest.approx(other[2]), (one, other)
        assert one[1] == pytest.approx(other[1])


def test_embeddings_that_write_into_their_weight_say_what_to_do() -> None:
    embed = nn.Embedding(5, 3, max_norm=0.5)
    functional = torch.nn.functional.embedding
    model = nn.Sequential(embed, nn.Linear(3, 3))
    way_out = (
        "writes into its weight whenever it is called, which cannot be batched; leave max_norm= out, and set the weight to "
        "torch.renorm(weight, 2, 0, max_norm) after every step of the optimiser"
    )
    cases: dict[str, Callable[[int], Any]] = {
        "Embedding": lambda i: embed(torch.tensor(i)),
        "Embedding in Sequential.0": lambda i: model(torch.tensor(i)),
        "embedding": lambda i: functional(torch.tensor(i), embed.weight, max_norm=0.5),
        "looked_up: an embedding": lambda i: looked_up(torch.tensor(i)),
    }

    @weft.cell
    def looked_up(i: Tensor) -> Any:
        return embed(i)

    looked_up.__wrapped__.__qualname__ = "looked_up"  # type: ignore[attr-defined]  # of what functools.wraps made
    before = embed.weight.detach().clone()
    for name, fn in cases.items():
        with pytest.raises(weft.TraceError) as error:
            weft.batched(fn)([1, 2])
        assert torch.equal(embed.weight, before)
        assert str(error.value) == f"{name} with max_norm= {way_out}"
