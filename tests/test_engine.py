"""The engine is a guest in autograd: gradients where PyTorch gives them, errors where PyTorch raises them."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.testing import assert_equivalent, random_structure

torch.set_num_threads(1)
POLICIES = ("condense", "depth")


class Net(weft.VertexFunction):
    """A recurrence with a projection before it, an output after it, a buffer, and a parameter that nothing uses."""

    def __init__(self, d: int = 3) -> None:
        super().__init__(state={"h": (d,)})
        self.w, self.u, self.out, self.unused = nn.Linear(2, d), nn.Linear(d, d, bias=False), nn.Linear(d, 2), nn.Linear(2, 2)
        self.register_buffer("shift", torch.zeros(d))
        self.double()

    def forward(self, v: Any) -> None:
        h = torch.tanh(self.w(v.pull()) + self.u(v.gather().sum("h")) + self.shift)
        v.scatter(h=h)
        v.push({"out": self.out(h), "norm": (h * h).sum()})


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def graph(n: int = 12, seed: int = 1) -> weft.Graph:
    return random_structure(seed, "dag", size=n)


def rows(g: weft.Graph, seed: int = 0) -> Tensor:
    return torch.randn(g.num_vertices, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def loss_of(result: dict[str, Tensor]) -> Tensor:
    return (result["out"] ** 2).sum() + result["norm"].sum()


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def assert_same_bits(first: dict[str, Tensor | None], second: dict[str, Tensor | None]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert (tensor is None) == (second[name] is None), name
        assert tensor is None or torch.equal(tensor, second[name]), name  # type: ignore[arg-type]


def test_backward_twice_with_retain_graph_doubles_the_gradients() -> None:
    model, g = net(), graph()
    loss = loss_of(model(g, rows(g)))
    loss.backward(retain_graph=True)
    once = gradients(model)
    loss.backward()
    for name, twice in gradients(model).items():
        assert once[name] is twice is None or torch.equal(2 * once[name], twice), name  # type: ignore[operator, arg-type]


def test_backward_twice_without_retain_graph_raises() -> None:
    model, g = net(), graph()
    loss = loss_of(model(g, rows(g)))
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("policy", POLICIES)
def test_without_gradients_the_numbers_are_the_same(mode: Any, policy: str) -> None:
    model, g = net(), graph()
    expected = model(g, rows(g), policy=policy)
    with mode():
        result = model(g, rows(g), policy=policy)
    for key, tensor in result.items():
        assert not tensor.requires_grad
        assert torch.equal(tensor, expected[key].detach())
    loss_of(model(g, rows(g))).backward()
    assert model.w.weight.grad is not None


def test_only_what_requires_a_gradient_gets_one() -> None:
    g, model = graph(), net()
    x = rows(g).requires_grad_()
    full = torch.autograd.grad(loss_of(model(g, x)), [x, *model.w.parameters()])
    frozen = net().requires_grad_(False)
    (alone,) = torch.autograd.grad(loss_of(frozen(g, x)), x)
    assert torch.equal(alone, full[0])
    without = torch.autograd.grad(loss_of(model(g, x.detach())), list(model.w.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(without, full[1:], strict=True))
    model.u.requires_grad_(False)
    loss_of(model(g, rows(g))).backward()
    assert model.u.weight.grad is None and model.w.weight.grad is not None
    assert not loss_of(frozen(g, rows(g))).requires_grad


def test_a_part_of_the_outputs_may_be_used() -> None:
    model, g = net(), graph()
    for part in ("out", "norm"):
        for backend in ("eager", "reference"):
            model.zero_grad()
            model(g, rows(g), backend=backend)[part].sum().backward()
            found = gradients(model)
            if backend == "eager":
                eager = found
        for name, gradient in found.items():
            if gradient is None:
                assert eager[name] is None or not eager[name].any(), name  # type: ignore[union-attr]
            else:
                torch.testing.assert_close(eager[name], gradient, rtol=1e-12, atol=1e-12)


def test_parameters_that_nothing_uses_have_no_gradient() -> None:
    for backend in ("eager", "reference"):
        model, g = net(), graph()
        loss_of(model(g, rows(g), backend=backend)).backward()
        assert model.unused.weight.grad is None and model.unused.bias.grad is None
        assert model.out.bias.grad is not None


def test_where_processes_train_together_every_parameter_takes_part_with_zeros() -> None:
    """As `DistributedDataParallel` needs it."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model, g = net(), graph()
        loss_of(model(g, rows(g))).backward()
        assert model.unused.weight.grad is not None and not model.unused.weight.grad.any()
        together = nn.parallel.DistributedDataParallel(net())
        for seed in (1, 2):
            g = graph(seed=seed)
            loss_of(together(g, rows(g))).backward()
        del together  # before its process group: one that outlives the others may wait for its own threads for ever
    finally:
        gc.collect()
        torch.distributed.destroy_process_group()


class Reader(weft.VertexFunction):
    def __init__(self, shared: nn.Linear) -> None:
        super().__init__(state={"h": (2,)})
        self.shared = shared

    def forward(self, v: Any) -> None:
        h = torch.tanh(self.shared(v.pull() + v.gather().sum("h")))
        v.scatter(h=h)
        v.push(h)


class Writer(Reader):
    def forward(self, v: Any) -> None:
        h = self.shared(v.gather(0)["h"]).sigmoid() * v.pull()
        v.scatter(h=h)
        v.push(h)


def test_parameters_shared_between_cells_get_the_sum_of_their_gradients() -> None:
    shared = nn.Linear(2, 2).double()
    model = weft.Typed({"reader": Reader(shared), "writer": Writer(shared)})
    g = random_structure(5, "dag", size=14, types=2)
    assert len(list(model.parameters())) == 2
    assert_equivalent(model, g, rows(g))


@pytest.mark.parametrize("policy", POLICIES)
def test_changing_a_parameter_in_place_before_backward_raises(policy: str) -> None:
    model, g = net(), graph()
    for parameter in (model.w.weight, model.u.weight, model.out.weight):
        loss = loss_of(model(g, rows(g).requires_grad_(), policy=policy))
        with torch.no_grad():
            parameter.mul_(1.5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    loss_of(model(g, rows(g), policy=policy)).backward()


def test_changing_the_result_in_place_never_gives_wrong_gradients() -> None:
    class Plain(Net):
        def forward(self, v: Any) -> None:
            h = torch.tanh(self.w(v.pull()) + self.u(v.gather().sum("h")))
            v.scatter(h=h)
            v.push(h)

    torch.manual_seed(0)
    model = Plain()
    for g in (weft.Graph.chain(5), weft.Graph([[]] * 5), graph()):
        (expected,) = torch.autograd.grad((model(g, rows(g), backend="reference") * 2).sum(), model.w.weight)
        result = model(g, rows(g))
        try:
            (found,) = torch.autograd.grad(result.mul_(2).sum(), model.w.weight)
        except RuntimeError as error:
            assert "inplace" in str(error) or "in-place" in str(error)
        else:
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", [loss_of, lambda result: result["out"].sum()])
def test_double_backward_raises_clearly(loss: Callable[[dict[str, Tensor]], Tensor]) -> None:
    model, g = net(), graph()
    x = rows(g).requires_grad_()
    (first,) = torch.autograd.grad(loss(model(g, x)), x, create_graph=True)
    assert first.requires_grad
    message = "double backward: a batched call can be differentiated once; for higher derivatives use backend='reference'"
    with pytest.raises(weft.WeftError, match=f"^{re.escape(message)}$"):
        first.square().sum().backward()


@pytest.mark.parametrize("granularity", ["auto", "cell", "operator"])
@pytest.mark.parametrize("policy", ["condense", "depth", "agenda"])
def test_no_gradient_comes_through_detach_under_any_policy(policy: str, granularity: str) -> None:
    before, scale = nn.Linear(3, 3), torch.ones(3, requires_grad=True)
    call = weft.batched(lambda x: before(x).detach() * scale, policy=policy, granularity=granularity)
    for _ in range(4):
        scale.grad = None
        call(torch.ones(4, 3)).sum().backward()
        assert before.weight.grad is None and before.bias.grad is None
        assert scale.grad is not None


def test_double_backward_works_one_by_one() -> None:
    model, g = net(), weft.Graph.chain(3)
    x = rows(g).requires_grad_()
    (first,) = torch.autograd.grad(loss_of(model(g, x, backend="reference")), x, create_graph=True)
    first.square().sum().backward()
    assert x.grad is not None and x.grad.any()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_call_twice_gives_the_same_bits(policy: str) -> None:
    model = net()
    g = random_structure(3, "repeated", size=40)
    found = []
    for _ in range(2):
        model.zero_grad()
        x = rows(g).requires_grad_()
        result = model(g, x, policy=policy)
        loss_of(result).backward()
        found.append({**gradients(model), "x": x.grad, "out": result["out"].detach()})
    assert_same_bits(*found)


def test_calls_may_overlap() -> None:
    model, first, second = net(), graph(seed=1), graph(seed=2)
    expected = []
    for g in (first, second):
        model.zero_grad()
        loss_of(model(g, rows(g))).backward()
        expected.append(gradients(model))
    a, b = loss_of(model(first, rows(first))), loss_of(model(second, rows(second)))
    for loss, wanted in ((b, expected[1]), (a, expected[0])):
        model.zero_grad()
        loss.backward()
        assert_same_bits(gradients(model), wanted)


@pytest.mark.parametrize(
    "make", [lambda x: x.t().contiguous().t(), lambda x: x.repeat(1, 2)[:, ::2][:, :2], lambda x: x[:1].expand_as(x)]
)
def test_inputs_may_have_any_strides(make: Any) -> None:
    g = graph()
    assert_equivalent(net(), g, make(rows(g)), policies=POLICIES)


@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_writing_into_a_pulled_row_leaves_the_input_alone(backend: str) -> None:
    class Writes(weft.VertexFunction):
        def forward(self, v: Any) -> None:
            x = v.pull()
            x[0] = 5.0
            v.scatter(h=v.gather().sum("h") + x)
            v.push(x)

    x = torch.zeros(3, 2)
    result = Writes(state={"h": (2,)})(weft.Graph.chain(3), x, backend=backend)
    assert torch.equal(result, torch.tensor([[5.0, 0.0]] * 3))
    assert not x.any()


def test_nan_and_infinity_are_data() -> None:
    g = weft.Graph.batch([weft.Graph.chain(3), weft.Graph.chain(4), graph()])
    x = rows(g)
    x[1, 0], x[4, 1] = float("nan"), float("inf")
    result = net()(g, x)["norm"]
    assert result[:3].isnan().tolist() == [False, True, True]
    assert not result[7:].isnan().any()
    assert_equivalent(net(), g, x)


def test_an_empty_graph_has_rows_of_the_right_shape_and_can_be_trained_on() -> None:
    model = net()
    result = model(weft.Graph([]), torch.zeros(0, 2, dtype=torch.float64))
    assert result["out"].shape == (0, 2) and result["norm"].shape == (0,)
    loss = loss_of(result)
    assert loss.item() == 0 and loss.requires_grad
    loss.backward()


def test_hooks_fire_once_per_call() -> None:
    model, g, fired = net(), graph(), []
    model.register_forward_hook(lambda *_: fired.append("forward"))
    model.w.weight.register_hook(lambda grad: fired.append("gradient"))
    loss_of(model(g, rows(g))).backward()
    assert fired == ["forward", "gradient"]


def test_training_goes_the_same_way_as_one_by_one() -> None:
    losses: dict[str, list[float]] = {"eager": [], "reference": []}
    for backend, mine in losses.items():
        model = net()
        optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
        for step in range(6):
            g = graph(seed=step)
            loss = loss_of(model(g, rows(g, step), backend=backend)) / max(1, g.num_vertices)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            mine.append(loss.item())
    assert losses["eager"] == pytest.approx(losses["reference"], rel=1e-9)
    assert losses["eager"][-1] != losses["eager"][0]


@pytest.mark.parametrize("backend", ["reference", "eager", "auto"])
@pytest.mark.parametrize("at", [[6], [6, 0, 3, 0], [], torch.tensor([2, 5])])
def test_at_returns_the_rows_of_some_vertices_only(backend: str, at: Any) -> None:
    torch.manual_seed(0)
    model = weft.nn.NaryTreeLSTM(3, 4, classes=2).double()
    graph = weft.Graph(FOREST, types=[int(bool(kids)) for kids in FOREST])
    x = torch.randn(graph.num_vertices, 3, dtype=torch.float64, requires_grad=True)
    for _ in range(3):  # later calls go by what earlier ones wrote down
        check_some_rows(model, graph, x, backend, at)


def check_some_rows(model: weft.VertexFunction, graph: weft.Graph, x: Tensor, backend: str, at: Any) -> None:
    some, everything = model(graph, x, at=at, backend=backend), model(graph, x, backend="reference")
    assert some.shape == (len(at), 2)
    expected = everything[torch.as_tensor(at, dtype=torch.int64)]
    torch.testing.assert_close(some, expected, rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(expected)
    if len(at):
        wanted = torch.autograd.grad((expected * weight).sum(), [x, *model.parameters()], allow_unused=True)
        for a, b in zip(
            torch.autograd.grad((some * weight).sum(), [x, *model.parameters()], allow_unused=True), wanted, strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


FOREST = [[], [], [0, 1], [], [], [3, 4], [2, 5]]


def test_at_works_with_rounds() -> None:
    model = weft.nn.TreeGRU(3, 4)
    ring = weft.Graph.from_edges([0, 1, 2], [1, 2, 0], 3)
    x = torch.randn(3, 3)
    torch.testing.assert_close(model(ring, x, rounds=2, at=[1]), model(ring, x, rounds=2)[1:2])


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ([7], "NaryTreeLSTM: at: expected vertices 0 to 6, got 7"),
        ([[0]], "NaryTreeLSTM: at: expected a list of vertex numbers, got [[0]]"),
        ([0.5], "NaryTreeLSTM: at: expected a list of vertex numbers, got [0.5]"),
    ],
)
def test_at_that_names_no_vertices(at: Any, message: str) -> None:
    model = weft.nn.NaryTreeLSTM(3, 4)
    graph = weft.Graph(FOREST, types=[int(bool(kids)) for kids in FOREST])
    with pytest.raises(weft.WeftError) as error:
        model(graph, torch.randn(7, 3), at=at)
    assert str(error.value) == message
