"""What surrounds a call: layouts of tensors, default devices, checkpoints, transforms, anomaly mode, threads."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import weft
import weft.nn
from kernel_parts import watch_recipes
from weft.api import modelcache
from weft.plan.schedule import PlanCache
from weft.run.cpu.execution import NativeExecution
from weft.testing import assert_equivalent

torch.set_num_threads(1)
D, F64 = 4, torch.float64
TREE = weft.Graph.from_parents([2, 2, 4, 4, -1])


class Gates(weft.VertexFunction):
    """Element-wise on what it pulls, so that rows are read where the caller has them."""

    def __init__(self) -> None:
        super().__init__(state={"h": (D,)})
        self.a, self.u = nn.Parameter(torch.linspace(-1, 1, D)), nn.Linear(D, D)
        self.double()

    def forward(self, v: Any) -> None:
        x = v.pull()
        h = torch.tanh(x * self.a + self.u(v.gather().sum("h")))
        v.scatter(h=h)
        v.push(h * torch.sigmoid(x))


def rows(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, D, dtype=F64, generator=torch.Generator().manual_seed(seed))


WIDE = torch.randn(40, 2 * D + 3, dtype=F64, generator=torch.Generator().manual_seed(0))

LAYOUTS: dict[str, Callable[[int], Tensor]] = {
    "a part of wider rows": lambda n: WIDE[:n, :D],
    "every other column": lambda n: WIDE[:n, ::2][:, :D],
    "every other row": lambda n: WIDE[: 2 * n : 2, :D],
    "one row for all": lambda n: WIDE[:1, :D].expand(n, D),
    "one number for each row": lambda n: WIDE[:n, :1].expand(n, D),
    "columns side by side": lambda n: WIDE[:D, :n].t(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_row_says_nothing_about_how_several_lie(layout: str) -> None:
    """A single row is dense whatever its strides are; what was done for it must not be done for more."""
    model = Gates()
    for n in (1, 1, 3, 3, 1, 5, 2):
        for graph in (weft.Graph([[]] * n), weft.Graph.chain(n)):
            x = LAYOUTS[layout](n)
            assert torch.allclose(model(graph, x), model(graph, x, backend="reference"), rtol=0, atol=1e-12), (n, graph)


def test_tensors_that_are_negated_by_a_flag_alone() -> None:
    """As imaginary parts of conjugates are: what lies in memory has the other sign."""
    model, leaves = Gates(), weft.Graph([[], []])
    for _ in range(3):
        x, weights = torch._neg_view(rows(2)).requires_grad_(), torch._neg_view(rows(2, 1))
        found, expected = (model(leaves, x, backend=backend) for backend in ("auto", "reference"))
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)
        results = [torch.autograd.grad(result, [x, model.a], weights) for result in (found, expected)]
        for gradient, wanted in zip(*results, strict=True):
            assert torch.allclose(gradient, wanted, rtol=0, atol=1e-12)


def test_no_rows_at_all_may_be_asked_for_again_and_again() -> None:
    model, x = Gates(), rows(5).requires_grad_()
    for _ in range(3):
        found = model(TREE, x, at=[])
        assert found.shape == (0, D)
        found.sum().backward()


@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_the_default_device_is_somebody_elses(backend: str) -> None:
    model, x, none = Gates(), rows(5).requires_grad_(), rows(0)
    expected = model(TREE, x, backend="reference")
    (wanted,) = torch.autograd.grad(expected.sum(), x)
    for _ in range(3):
        with torch.device("meta"):
            found = model(TREE, x, backend=backend)
            (gradient,) = torch.autograd.grad(found.sum(), x)
            nothing = model(weft.Graph([]), none, backend=backend)
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)
        assert torch.allclose(gradient, wanted, rtol=0, atol=1e-12)
        assert nothing.device.type == "cpu"


SAVING: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "saved on the CPU": save_on_cpu,
    "anomaly mode": lambda: torch.autograd.set_detect_anomaly(True),
}


@pytest.mark.filterwarnings("error::weft.FallbackWarning")
@pytest.mark.parametrize("saving", SAVING)
def test_what_is_traced_under_hooks_is_traced_all_the_same(saving: str) -> None:
    model, x = Gates(), rows(5).requires_grad_()
    (wanted,) = torch.autograd.grad(model(TREE, x, backend="reference").sum(), x)
    for _ in range(3):
        with SAVING[saving]():
            found = model(TREE, x).sum()
            (gradient,) = torch.autograd.grad(found, x)
        assert torch.allclose(gradient, wanted, rtol=0, atol=1e-12)


def test_hooks_on_saved_tensors_are_there_after_tracing() -> None:
    seen: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        Gates()(TREE, rows(5))
        before = len(seen)
        (torch.ones(2, requires_grad=True) ** 2).sum()
    assert 0 < before < len(seen)


CHECKPOINTED: dict[str, Callable[[], weft.VertexFunction]] = {
    "gates": Gates,
    "child sum": lambda: weft.nn.ChildSumTreeLSTM(D, D).double(),
    "gru": lambda: weft.nn.GRU(D, D).double(),
}


@pytest.mark.filterwarnings("error::weft.FallbackWarning")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_a_call_may_be_computed_again_in_the_backward_pass(name: str, reentrant: bool) -> None:
    """The first call goes the general way, the one in the backward pass by a recipe: both keep the same tensors."""
    model = CHECKPOINTED[name]()
    for graph in (TREE, weft.Graph.batch([TREE, weft.Graph.chain(3)])):
        x = rows(graph.num_vertices).requires_grad_()
        model(graph, x, backend="reference").sin().sum().backward()
        wanted = [x.grad, *(p.grad for p in model.parameters())]
        for _ in range(2):
            x.grad = None
            model.zero_grad()
            checkpoint(lambda t, g=graph: model(g, t), x, use_reentrant=reentrant).sin().sum().backward()
            for found, expected in zip([x.grad, *(p.grad for p in model.parameters())], wanted, strict=True):
                assert torch.allclose(found, expected, rtol=0, atol=1e-12)
        model.zero_grad()


class Written(nn.Module):
    """Written for one row; with `asks` it goes on until its own number says stop."""

    def __init__(self, asks: bool) -> None:
        super().__init__()
        self.w, self.scale, self.asks = nn.Linear(D, D), nn.Parameter(torch.ones(D)), asks
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h, steps = torch.tanh(self.w(x)), 0
        while self.asks and h.sum() < 1 and steps < 3:
            h, steps = torch.tanh(self.w(h)) + x, steps + 1
        return (h * self.scale).sum() * self.scale.sum()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("asks", [False, True])
def test_a_call_of_plain_code_may_be_computed_again_in_the_backward_pass(asks: bool, reentrant: bool) -> None:
    """Where the code asks for numbers the first call keeps other tensors than the next, so it is made before."""
    model, x = Written(asks), rows(4).requires_grad_()
    net = weft.batched(model)
    given = [x, *model.parameters()]
    wanted = torch.autograd.grad(torch.stack([model(row) for row in x]).sin().sum(), given)
    if asks:
        net(x)
    for _ in range(4):
        for tensor in given:
            tensor.grad = None
        checkpoint(net, x, use_reentrant=reentrant).sin().sum().backward()
        for tensor, expected in zip(given, wanted, strict=True):
            assert torch.allclose(tensor.grad, expected, rtol=0, atol=1e-12)


class Inside(weft.VertexFunction):
    """A checkpoint within the vertex function: it can be batched by vmap, but not differentiated then."""

    def __init__(self) -> None:
        super().__init__(state={"h": (D,)})
        self.w = nn.Linear(D, D)

    def forward(self, v: Any) -> None:
        h = checkpoint(lambda row: torch.tanh(self.w(row)), v.pull() + v.gather().sum("h"), use_reentrant=False)
        v.scatter(h=h)
        v.push(h)


def test_code_that_vmap_cannot_differentiate_runs_row_by_row() -> None:
    with pytest.warns(weft.FallbackWarning, match=r"^Inside: .*; it runs row by row$"):
        assert_equivalent(Inside().double(), TREE, rows(5))


class Looking(weft.VertexFunction):
    """Goes one of two ways, as its numbers are: such code is not traced."""

    def __init__(self) -> None:
        super().__init__(state={"h": (D,)})
        self.w = nn.Linear(D, D)

    def forward(self, v: Any) -> None:
        h = self.w(v.pull() + v.gather().sum("h"))
        h = h.tanh() if h.sum() > 0 else h.sin()
        v.scatter(h=h)
        v.push(h)


def test_code_that_is_not_traced_runs_on_graphs_with_types_too() -> None:
    graph = weft.Graph([[], [], [0, 1], [], [2, 3]], types=[0, 1, 0, 1, 1])
    with pytest.warns(weft.FallbackWarning, match=r"^Looking: what it does depends on the values of tensors"):
        assert_equivalent(Looking().double(), graph, rows(5))


class ByType(weft.VertexFunction):
    """Knows the types 1 and 2 only."""

    def __init__(self) -> None:
        super().__init__(state={"h": (D,)})
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, v: Any) -> None:
        h = torch.tanh({1: self.first, 2: self.second}[v.type](v.pull() + v.gather().sum("h")))
        v.scatter(h=h)
        v.push(h)


def test_code_is_only_asked_about_types_that_occur() -> None:
    graph = weft.Graph([[], [], [0, 1], [], [2, 3]], types=[1, 2, 1, 2, 2])
    assert_equivalent(ByType().double(), graph, rows(5))


REFUSED = (
    "Gates: a batched call cannot be inside torch.func transforms, tracing or forward-mode differentiation; "
    "use backend='reference' there"
)


Of = Callable[[Tensor], Tensor]


def dual(call: Of, x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(call(forward_ad.make_dual(x, torch.ones_like(x)))).tangent
        assert tangent is not None
        return tangent.clone()


def slope(call: Of, x: Tensor) -> Tensor:
    return (call(x + 1e-5) - call(x - 1e-5)) / 2e-5


TRANSFORMS: dict[str, tuple[Callable[[Of, Tensor], Any], Callable[[Of, Tensor], Tensor]]] = {
    "grad": (lambda call, x: torch.func.grad(lambda t: call(t).sum())(x), lambda call, x: slope(call, x)),
    "vmap": (lambda call, x: torch.func.vmap(call)(torch.stack([x, x]))[1], lambda call, x: call(x)),
    "jvp": (lambda call, x: torch.func.jvp(call, (x,), (torch.ones_like(x),))[1], slope),
    "dual numbers": (dual, slope),
    "make_fx": (lambda call, x: make_fx(lambda t: call(t))(torch.ones_like(x))(x), lambda call, x: call(x)),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # of torch's own forward-mode formulas
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_refused_and_work_one_by_one(name: str, trained: bool) -> None:
    model, leaves, x = Gates().requires_grad_(trained), weft.Graph([[], []]), rows(2)
    transform, plainly = TRANSFORMS[name]
    for backend in ("auto", "eager"):
        with pytest.raises(weft.TraceError, match="^" + re.escape(REFUSED) + "$"):
            transform(lambda t, b=backend: model(leaves, t, backend=b), x)
    found = transform(lambda t: model(leaves, t, backend="reference"), x)
    assert torch.allclose(found, plainly(lambda t: model(leaves, t), x), rtol=0, atol=1e-8)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_scripts_are_made_one_by_one() -> None:
    model, leaves, x = Gates().requires_grad_(False), weft.Graph([[], []]), rows(2)
    with pytest.raises(weft.TraceError, match="^" + re.escape(REFUSED) + "$"):
        torch.jit.trace(lambda t: model(leaves, t), x)
    script = torch.jit.trace(lambda t: model(leaves, t, backend="reference"), x * 2)
    torch.testing.assert_close(script(x), model(leaves, x), rtol=1e-12, atol=1e-12)


def test_in_inference_nothing_learns_whatever_the_grad_mode() -> None:
    model, layer, x = Gates(), nn.Linear(D, D).double(), rows(5)
    calls = [lambda: model(TREE, x), lambda: weft.batched(lambda row: layer(row) if row.sum() > 0 else layer(-row))(x)]
    for call in calls:
        with torch.inference_mode(), torch.enable_grad():
            found = call()
        assert found.is_inference() and not found.requires_grad
        torch.testing.assert_close(found, call(), rtol=1e-12, atol=1e-12)
        assert call().requires_grad


def test_kinds_of_input_that_come_once_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mean(weft.VertexFunction):
        def __init__(self) -> None:
            super().__init__(state={"h": ()})

        def forward(self, v: Any) -> None:
            v.scatter(h=v.pull().mean() + v.gather().sum())

    monkeypatch.setattr(modelcache, "KEPT_SPECS", 3)
    model, graph = Mean(), weft.Graph.chain(2)
    for width in (1, 2, 3, 4, 1, 5, 6, 1):
        assert model(graph, torch.ones(2, width))["h"].tolist() == [1, 2]
    cache = model.__dict__["_weft"]
    assert len(cache.specs) == 3 and len(cache.cells) <= 2 * 3


def test_threads_may_share_a_cache_of_plans() -> None:
    cache, errors = PlanCache(2), list[BaseException]()

    def work(start: int) -> None:
        try:
            for i in range(3000):
                key = (i + start) % 5
                assert cache.get(key, lambda key=key: key * 10) == key * 10
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and len(cache) == 2 and cache._held == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_inputs_of_another_dtype_fail_in_the_users_code(dtype: torch.dtype) -> None:
    model, x = weft.nn.ChildSumTreeLSTM(D, D).double(), rows(5).to(dtype)
    for backend in ("auto", "eager"):
        with pytest.raises(RuntimeError, match="same dtype") as caught:
            model(TREE, x, backend=backend)
        assert caught.value.__notes__ == ["in ChildSumTreeLSTM, vertex 0 of graph 0 (vertex 0 of the batch)"]
        assert "forward" in [entry.name for entry in caught.traceback]


def test_later_calls_went_by_a_recipe_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests above are about: without recipes they would show nothing."""
    seen = watch_recipes(monkeypatch, NativeExecution)
    model = Gates()
    for _ in range(2):
        model(TREE, rows(5))
    assert seen == [False, True]
