"""What seldom changes between two calls that look alike, and is noticed all the same."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.test_repeat import BATCH, OTHER, D, Sum, check, made, rows
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import weft
from weft.api.modelcache import ModelCache
from weft.graph.cell import discover
from weft.graph.rows import Spec

torch.set_num_threads(1)


class Scaled(nn.Linear):
    """A layer of the user's own."""

    def forward(self, input: Tensor) -> Tensor:
        return self.factor() * super().forward(input)

    def factor(self) -> float:
        return 3.0


class Other(Sum):
    """Sum without its recurrence."""

    def forward(self, v: Any) -> None:
        h = v.pull() * self.a
        v.scatter(h=h)
        v.push(h)


def test_another_class() -> None:
    model = made(Sum())
    model.u.__class__ = Scaled
    check(model)
    model.__class__ = Other
    check(model)


def test_another_method_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Sum()
    model.u = Scaled(D, D)
    made(model)
    monkeypatch.setattr(Scaled, "factor", lambda self: -1.0)
    check(model)


@pytest.fixture
def doubled() -> Iterator[None]:
    """All linear layers give twice what they compute."""
    hook = register_module_forward_hook(lambda module, args, out: 2 * out if isinstance(module, nn.Linear) else None)
    yield
    hook.remove()


def test_hooks_of_all_modules(request: pytest.FixtureRequest) -> None:
    model = made(Sum())
    request.getfixturevalue("doubled")
    with pytest.warns(weft.FallbackWarning, match=r"Sum: a module in it carries hooks \(Linear\)"):
        check(model)


def test_types_in_another_order() -> None:
    typed = weft.Graph.batch([weft.Graph([[], [], [0, 1]], types=[0, 0, 1])] * 2)
    model = weft.Typed({"a": Sum(), "b": Other()})
    for _ in range(3):
        model(typed, rows(typed))
    model.functions["a"] = model.functions.pop("a")
    assert [name for name, _ in model.vertex_functions()] == ["b", "a"]
    check(model, typed)


def replica(module: nn.Module) -> Any:
    """As `nn.DataParallel` makes it at every call, for another device."""
    made: Any = module._replicate_for_data_parallel()  # type: ignore[no-untyped-call]  # of torch
    for name, parameter in module._parameters.items():
        setattr(made, name, None if parameter is None else parameter * 1)
    for name, part in module._modules.items():
        made._modules[name] = None if part is None else replica(part)
    return made


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_replicas_keep_what_they_find_out_to_themselves() -> None:
    model, x = made(Sum()), rows(OTHER)
    for _ in range(2):
        with torch.no_grad():
            model.a.add_(1)
        one = replica(model)
        for _ in range(3):
            found = one(OTHER, x)
        assert torch.allclose(found, one(OTHER, x, backend="reference"), atol=1e-5)
        (ours,) = torch.autograd.grad(found.sum(), [one.a], retain_graph=True)
        (theirs,) = torch.autograd.grad(one(OTHER, x, backend="reference").sum(), [one.a], retain_graph=True)
        assert torch.allclose(ours, theirs, atol=1e-4)
    assert ModelCache.of(one) is not ModelCache.of(model)
    gone = weakref.ref(one)
    del one, found
    gc.collect()
    assert gone() is None


def test_every_parameter_takes_part_where_processes_train_together() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = Sum()
        model.unused = nn.Parameter(torch.ones(2))
        for _ in range(4):
            model.zero_grad()
            model(BATCH, rows(BATCH)).sum().backward()
            assert model.unused.grad is not None and model.unused.grad.tolist() == [0, 0]
    finally:
        torch.distributed.destroy_process_group()


class Count(weft.VertexFunction):
    """One number at each vertex."""

    def __init__(self) -> None:
        super().__init__(state={"n": ()})

    def forward(self, v: Any) -> None:
        n = v.pull() + v.gather().sum("n")
        v.scatter(n=n)
        v.push(n)


def test_rows_that_are_none() -> None:
    model = Count()
    for _ in range(3):
        model(OTHER, torch.ones(12))
    with pytest.raises(
        weft.ShapeError, match="Count: x: expected 12 rows, one for each of the graph's vertices, got a 0-d tensor"
    ):
        model(OTHER, torch.tensor(1.0))


class Complex(Sum):
    """Rows of complex numbers."""

    def forward(self, v: Any) -> None:
        x = v.pull()
        h = torch.tanh(x.real * self.a + x.imag + v.gather().sum("h"))
        v.scatter(h=h)
        v.push(h)


def test_numbers_that_are_not_as_they_are_stored() -> None:
    model = Complex()
    x = torch.complex(rows(OTHER), rows(OTHER).flip(0))
    for given in (x, x, x, x.conj(), x.conj()):
        check(model, x=given)
    check(made(Sum()), x=torch._efficientzerotensor((12, D)))


def test_a_buffer_that_is_negated_when_it_is_read() -> None:
    model = made(Sum())
    model.shift = torch._neg_view(torch.ones(D))
    with pytest.warns(
        weft.FallbackWarning, match=r"uses a tensor of shape \[3\] that is negated or conjugated when read; clone it"
    ):
        check(model)


def test_looking_at_code_leaves_no_mode_behind() -> None:
    def body(rows: Any) -> Any:
        torch.overrides.BaseTorchFunctionMode().__enter__()  # type: ignore[no-untyped-call]  # of torch
        raise ValueError("after that")

    before = torch._C._len_torch_function_stack()
    with pytest.raises(ValueError, match="after that"):
        discover(body, Spec((), None, (), 0, False, torch.float32, "cpu"))
    assert torch._C._len_torch_function_stack() == before
