"""What insists on real tensors says the way out; what changes the model behind a recording raises; cells made on the way."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from lazy_parts import assert_equals_loop

X = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
LINEAR = nn.Linear(3, 3).double()
WAY_OUT = ": it insists on real tensors; put the call into a weft.cell, or pass weft.value(v)"


def picky(x: Any) -> Any:
    if not isinstance(x, Tensor):
        raise TypeError(f"expected a tensor, got {type(x)}")
    return x


def functional(x: Any) -> Any:
    return torch.func.functional_call(LINEAR, {"weight": torch.eye(3, dtype=torch.float64)}, (x,))


def gradient(x: Any) -> Any:
    return torch.autograd.grad(LINEAR(x).sum(), LINEAR.weight)


def vmapped(x: Any) -> Any:
    return torch.vmap(torch.sin)(x)


CASES: dict[Callable[..., Any], str] = {
    picky: f"expected a tensor, got <class 'weft.lazy.value.Value'>{WAY_OUT}",
    functional: "torch.func.functional_call puts other tensors into a module while it runs, and what is recorded runs later; "
    "put the call into a weft.cell",
    gradient: "torch.autograd.grad on a Value: gradients are taken of what the batched call returns, not inside it; return it "
    "and call backward on the result, or put the call into a weft.cell",
    vmapped: "vmap(sin, in_dims=0, ...)(<inputs>): Got in_dim=0 for an input but the input is of type <class "
    f"'weft.lazy.value.Value'>. We cannot vmap over non-Tensor arguments, please use None as the respective in_dim{WAY_OUT}",
}


def sparse(x: Any) -> Any:
    return x.to_sparse().to_dense()


def handed_out(x: Any) -> Any:
    return torch.from_dlpack(x)


GENERATOR = torch.Generator()
LAYOUT = (
    "to_sparse gives a tensor of layout torch.sparse_coo, which cannot be one of a batch; put the call, and what makes an "
    "ordinary tensor of its result, into one weft.cell"
)
MEMORY = "Tensor.__dlpack_device__ on a Value: a Value has no memory of its own; take the tensor with weft.value(v) first"


@pytest.mark.filterwarnings("ignore::weft.FallbackWarning")
@pytest.mark.parametrize(("fn", "message"), [(sparse, LAYOUT), (handed_out, MEMORY)])
def test_what_is_no_row_of_a_batch_goes_into_a_cell(fn: Callable[..., Any], message: str) -> None:
    with pytest.raises(weft.TraceError) as error:
        weft.batched(lambda x: fn(x * 2))(X)
    assert str(error.value) == message and error.value.__notes__ == ["in example 0"]
    inside = weft.cell(fn)
    assert torch.allclose(weft.batched(lambda x: inside(x * 2))(X), X * 2)


def chosen(x: Tensor) -> Tensor:
    return torch.bernoulli(x, generator=GENERATOR)


def written(x: Tensor) -> Tensor:
    return (x * 1).exponential_(generator=GENERATOR)


def made(x: Tensor) -> Tensor:
    return x + torch.randn(3, generator=GENERATOR)


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (chosen, "bernoulli"),
        (written, "exponential"),
        (made, "randn"),
        (weft.cell(made), "made"),
        (weft.cell(chosen), "chosen"),
    ],
)
def test_generators_are_refused_before_they_draw(fn: Callable[..., Any], name: str) -> None:
    before = GENERATOR.get_state()
    with pytest.raises(weft.TraceError) as error:
        weft.batched(lambda x: fn(x.sigmoid()))(X)
    assert str(error.value) == (
        f"{name} with generator= takes its numbers from there one example after the other, which cannot be batched; leave "
        "generator= out, which torch.manual_seed decides, or draw the numbers before the call and pass them in"
    )
    assert torch.equal(GENERATOR.get_state(), before)


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_what_insists_on_tensors_says_the_way_out(fn: Callable[..., Any]) -> None:
    with pytest.raises(weft.TraceError) as error:
        weft.batched(lambda x: fn(x * 2))(X)
    assert str(error.value) == CASES[fn] and error.value.__notes__ == ["in example 0"]
    with pytest.raises(weft.TraceError) as error, weft.batching():
        fn(X[0] * 2)
    assert str(error.value) == CASES[fn]
    if fn is not gradient:
        inside = weft.cell(fn)
        assert torch.allclose(weft.batched(lambda x: inside(x * 2))(X), torch.stack([fn(x * 2) for x in X]))


def test_scripted_code_says_the_way_out() -> None:
    with pytest.warns(DeprecationWarning) if _warns() else _nothing():
        scripted = torch.jit.script(nn.Linear(3, 3).double())
    with pytest.raises(weft.TraceError) as error:
        weft.batched(lambda x: scripted(x * 2))(X)
    assert str(error.value) == (
        "a scripted module (Linear) insists on real tensors; put the call into a weft.cell, or use the module that was scripted"
    )


def _warns() -> bool:
    import warnings

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.jit.script(nn.Identity())
    return any(issubclass(each.category, DeprecationWarning) for each in seen)


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


@pytest.mark.parametrize("make", [torch.LongTensor, torch.FloatTensor, torch.Tensor])
def test_tensors_of_numbers_are_made_by_stacking(make: Any) -> None:
    with pytest.raises(weft.TraceError) as error:
        weft.batched(lambda x: make([(x * 2).argmax()]))(X)
    assert str(error.value) == "len() of a 0-d tensor; a tensor of several Values is made with torch.stack"
    assert isinstance(error.value, TypeError)


class Counting(nn.Module):
    def __init__(self, uses_before: bool) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3, dtype=torch.float64))
        self.uses_before = uses_before

    def forward(self, x: Tensor) -> Tensor:
        if self.uses_before:
            x = x * self.seen
        self.seen += 1
        return x * self.seen


def test_a_tensor_of_the_model_may_change_before_it_is_used() -> None:
    net = weft.batched(Counting(uses_before=False))
    assert torch.allclose(net(X[:1]), X[:1]) and torch.allclose(net(X[:1]), X[:1] * 2)
    with pytest.raises(weft.TraceError) as error:
        weft.batched(Counting(uses_before=True))(X[:1])
    assert str(error.value) == (
        "add_ changed a tensor of the model of shape [3], which mul uses in the same recording and would see as it is at the "
        "end; change it before or after the batched call, or use .clone()"
    )
    with pytest.raises(weft.TraceError):
        net(X)  # the second example changes what the first has used


def test_cells_made_in_the_function_are_learned_once() -> None:
    def fn(x: Tensor) -> Tensor:
        context = LINEAR(x)
        for k in range(3):

            @weft.cell
            def step(h: Tensor) -> Tensor:
                return torch.tanh(LINEAR(h)) * k + context  # noqa: B023 - read while the loop is there

            x = step(x)
        return weft.cell(lambda h: torch.vmap(torch.sin)(h) * 2)(x)

    assert_equals_loop(fn, X)
    net = weft.batched(fn)
    known = len(net.state.fines)
    net(X)
    net(X)
    assert len(net.state.fines) == known


def test_cells_of_a_method_are_learned_once() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3).double()

        def inner(self, h: Tensor) -> Tensor:
            return self.linear(h).tanh()

        def forward(self, x: Tensor) -> Tensor:
            step = weft.cell(self.inner)
            return step(step(x))

    model = Net()
    assert_equals_loop(model, X)
    known = len(weft.lazy.state.state_of(model).fines)
    weft.batched(model)(X)
    assert len(weft.lazy.state.state_of(model).fines) == known


def test_a_layer_without_parameters_yet_asks_for_a_first_call() -> None:
    model = nn.Sequential(nn.LazyLinear(2), nn.Tanh())
    with pytest.raises(weft.TraceError) as caught:
        weft.batched(model)(torch.ones(2, 3))
    assert str(caught.value).splitlines()[0] == (
        "LazyLinear has no parameters yet: their shapes come from its first call; call the model once on one example before it "
        "is batched"
    )
    model(torch.ones(3))
    assert torch.allclose(weft.batched(model)(torch.ones(2, 3)), model(torch.ones(2, 3)))


def test_a_value_is_not_pickled() -> None:
    with pytest.raises(weft.TraceError) as caught:
        weft.batched(lambda x: pickle.dumps(x * 2))(torch.ones(2, 3))
    assert str(caught.value).splitlines()[0] == (
        "Tensor.__reduce_ex__ on a Value: there is nothing to pickle yet; pickle what the batched call returns, or "
        "weft.value(v)"
    )
    with weft.batching():
        doubled = torch.ones(3) * 2
    assert pickle.loads(pickle.dumps(doubled)).tolist() == [2.0, 2.0, 2.0]


def test_a_number_that_is_no_int64_names_its_example() -> None:
    with pytest.raises(weft.TypeMismatch) as caught:
        weft.batched(lambda x, count: {"count": count})(torch.ones(2, 3), [1, 2**70])
    assert str(caught.value) == (
        "result['count'] of example 1: 1180591620717411303424 is no int64, so it cannot be stacked; use weft.batched(fn, "
        "stack=False) for a list of the examples' results"
    )
