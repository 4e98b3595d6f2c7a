"""The model and its tensors while its code is recorded: own backwards, changes, attributes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.testing


class Fivefold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 5


def test_functions_with_their_own_backward_keep_it() -> None:
    lin, alias = nn.Linear(3, 3), Fivefold.apply
    out = weft.batched(lambda x: lin(x) * 0 + Fivefold.apply(lin.bias))(torch.ones(2, 3))
    assert torch.autograd.grad(out.sum(), lin.bias)[0].tolist() == [10.0] * 3
    with pytest.raises(weft.TraceError, match=r"^autograd.Function on a Value would lose its backward; put the call into"):
        weft.batched(lambda x: alias(lin(x)))(torch.ones(2, 3))
    with pytest.raises(weft.TraceError, match=r"^apply of an autograd.Function, taken from its class before the recording"):
        weft.batched(lambda x: lin(x) + alias(lin.bias))(torch.ones(2, 3))


def test_tensors_of_the_model_are_not_changed_behind_the_recording() -> None:
    lin = nn.Linear(3, 3)
    model = nn.Module()
    model.register_buffer("seen", torch.zeros(3))

    def through_a_view(x: Any) -> Any:
        model.seen[1:].fill_(lin(x).sum())
        return lin(x)

    def count(x: Any) -> Any:
        model.seen += 1
        return lin(x)

    def used(x: Any) -> Any:
        model.seen += 1
        return lin(x) * model.seen

    with pytest.raises(
        weft.TraceError, match=r"^fill_: this Value is a view \(an index, slice or reshape\) of a tensor of the m"
    ):
        weft.batched(through_a_view)(torch.ones(2, 3))
    with pytest.raises(weft.TraceError, match=r"^add_ changed a tensor of the model of shape \[3\], which .* uses in the same"):
        weft.batched(used)(torch.ones(2, 3))
    model.seen.zero_()
    weft.batched(count)(torch.ones(2, 3))
    assert model.seen.tolist() == [2.0] * 3


class Keeps(nn.Module):
    """A module that puts its input where everybody can see it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        return self.layer(self.x)  # type: ignore[no-any-return]


def test_what_code_assigns_to_its_module_is_the_examples_own() -> None:
    model, xs = Keeps(), torch.randn(4, 3)
    for _ in range(3):
        one = torch.stack([model(x) for x in xs])
        torch.testing.assert_close(weft.batched(model)(xs), one)


def test_the_call_slot_of_modules_is_never_exchanged() -> None:
    """Setting it writes into every class of modules that exists."""
    seen = []

    def looked(x: Tensor) -> Tensor:
        seen.append(nn.Module.__call__)
        return x * 2

    before = nn.Module.__call__
    weft.batched(looked)(torch.ones(2, 2))
    assert seen == [before, before]


def test_compiled_modules_are_recorded_where_they_are_one_call() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    model, cell, late = Twice(), weft.cell(Twice()), Twice()
    cell.compile(backend="eager")
    x = torch.arange(6.0).reshape(3, 2)
    with pytest.warns(weft.FallbackWarning, match="it runs by plain vmap"):
        assert torch.equal(weft.batched(lambda row: cell(row) + 1)(x), x * 2 + 1)
    model.compile(backend="eager")
    with pytest.raises(weft.TraceError, match=r"a compiled function insists on real tensors; put the call into a weft.cell"):
        weft.batched(lambda row: model(row))(x)

    def compiling(row: Tensor) -> Tensor:
        late.compile(backend="eager")
        return row * 2

    weft.batched(compiling)(x)
    assert "_compiled_call_impl" in late.__dict__


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_autocast_casts_what_it_casts_in_the_loop(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(3, 3).to(dtype)
    x = torch.ones(2, 3, dtype=dtype)

    def inside(row: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return linear(row) + linear(row * 2)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = weft.batched(linear)(x), linear(x[0])
    assert found.dtype is wanted.dtype and torch.allclose(found[0], wanted, rtol=1e-2, atol=1e-2)
    found, wanted = weft.batched(inside)(x), inside(x[0])
    assert found.dtype is wanted.dtype and torch.allclose(found[0], wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch 2.11 itself uses it
@pytest.mark.parametrize("is_module", [False, True])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # which torch.compile looks at
def test_a_batched_call_is_a_graph_break_to_torch_compile(is_module: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    net = weft.batched(model if is_module else lambda x: model(x) * (2 if model(x).sum() > 0 else 1))
    x = torch.randn(4, 3)
    compiled = torch.compile(lambda rows: net(rows + 1) * 2, backend="eager")
    for _ in range(2):
        assert torch.allclose(compiled(x), net(x + 1) * 2)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch 2.11 itself uses it
def test_a_scope_is_a_graph_break_to_torch_compile() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    linear, graphs = nn.Linear(3, 3), []

    def kept(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def doubled(x: Tensor) -> Tensor:
        x = x * 2
        with weft.batching():
            y = torch.tanh(linear(x[0]))
            z = linear(y * 2 if y.sum() > 0 else y)
        return after(weft.value(z), x) + after(z.exp(), x)

    def after(z: Tensor, x: Tensor) -> Tensor:
        return z + x.sum() * 3

    x = torch.randn(4, 3)
    compiled = torch.compile(doubled, backend=kept)
    for _ in range(2):
        assert torch.allclose(compiled(x), doubled(x))
    assert graphs and all("* 3" in graph.code for graph in graphs)  # what is called after the scope, and nothing else
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"weft\.batching records what Python does"):
        torch.compile(doubled, backend=kept, fullgraph=True)(x)
    torch._dynamo.reset()
