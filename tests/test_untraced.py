"""Code that cannot be traced: it is looked at with the tensors of the first example, and gives what the loop gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.blocks as wb
from lazy_parts import assert_equals_loop
from weft.testing import assert_equivalent

pytestmark = pytest.mark.filterwarnings("ignore::weft.FallbackWarning")


def grows(h: Tensor) -> Tensor:
    for _ in range(50):
        if h.norm() >= 10:
            return h
        h = h * 2
    raise AssertionError("zeros never grow")


def divides(h: Tensor) -> Tensor:
    return h / (1 / int(h.detach().abs().sum() * 1000))


def insists(h: Tensor) -> Tensor:
    assert h.abs().sum() > 0
    return h * 2


def inverts(h: Tensor) -> Tensor:
    return torch.linalg.inv(torch.diag(h) * float(h.detach().abs().max()))


def picks(h: Tensor) -> Tensor:
    return h[torch.nonzero(h)[0, 0]]


def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 3).double()


X = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.1, -0.7], [2.0, 2.0, 1.0]], dtype=torch.float64)


@pytest.mark.parametrize("fn", [grows, divides, insists, inverts, picks])
def test_a_cell_that_depends_on_values_never_sees_zeros(fn: Callable[[Tensor], Tensor]) -> None:
    linear, cell = layer(), weft.cell(fn)
    assert_equals_loop(lambda x: cell(linear(x)), X)


def masked(h: Tensor, out: Tensor) -> Tensor:
    out[h > 0] = h[h > 0]
    return out


def leaky(h: Tensor, out: Tensor) -> Tensor:
    h = h * 1
    h[h < 0] *= 0.1
    return h + out


def counted(h: Tensor, out: Tensor) -> Tensor:
    out[h > 0] += 1.0
    return out * h


@pytest.mark.parametrize("fn", [masked, leaky, counted])
def test_parts_chosen_by_a_mask_are_written(fn: Callable[[Tensor, Tensor], Tensor]) -> None:
    linear = layer()
    assert_equals_loop(lambda x: fn(linear(x), torch.zeros(3, dtype=torch.float64)), X)


def test_where_nothing_may_run_a_cell_is_looked_at_with_zeros() -> None:
    linear, cell = layer(), weft.cell(lambda h: h * 2 if h.sum() > 0 else h - 1)
    net = weft.batched(lambda row: cell(linear(X[row])), cache=True)
    for _ in range(2):
        assert torch.allclose(net([0, 1, 2]), torch.stack([cell(linear(x)) for x in X]))


def unlike(x: Tensor, linear: nn.Linear) -> Tensor:
    return nn.functional.soft_margin_loss(linear(x), x.sign())


def unlike_itself(x: Tensor, linear: nn.Linear) -> Tensor:
    return nn.functional.soft_margin_loss(linear(x), linear(x).detach().sign())


def stepped(x: Tensor, linear: nn.Linear) -> Tensor:
    return torch.heaviside(linear(x).detach(), x) + linear(x)


@pytest.mark.parametrize("fn", [unlike, unlike_itself, stepped])
def test_row_by_row_only_that_is_differentiated_by_which_needs_it(fn: Callable[[Tensor, nn.Linear], Tensor]) -> None:
    linear = layer()
    expected, found = torch.stack([fn(x, linear) for x in X]), weft.batched(lambda x: fn(x, linear))(X)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for one, other in zip(*(torch.autograd.grad(each.sum(), linear.parameters()) for each in (expected, found)), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)


def test_parameters_that_no_row_used_have_no_gradient_again() -> None:
    scale, weight = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)

    @weft.cell
    def gated(a: Tensor, times: int) -> Tensor:
        return a * scale * times if a.sum() > 0 else a * 2 * times

    net = weft.batched(lambda a, times: gated(a * weight, times))
    for first, second in [(1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0), (-1.0, -1.0), (1.0, 1.0)]:
        rows = [torch.full((3,), first), torch.full((3,), second)]
        expected = torch.autograd.grad(
            sum(gated(a * weight, times).sum() for a, times in zip(rows, (1, 2), strict=True)),
            [scale, weight],
            allow_unused=True,
        )
        found = torch.autograd.grad(net(rows, [1, 2]).sum(), [scale, weight], allow_unused=True)
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one, other)


def test_warnings_name_the_line_that_led_to_them() -> None:
    """Whatever of weft and torch lies between."""
    rows = torch.ones(3, 2)

    def sparse(x: Any) -> Any:
        return x.to_sparse().to_dense()

    class Vertex(weft.VertexFunction):
        def __init__(self) -> None:
            super().__init__(state={"h": (2,)})

        def forward(self, v: Any) -> None:
            v.scatter(h=sparse(v.pull()) + v.gather().sum())

    inside, block = weft.cell(sparse), weft.batched(wb.Vector(2) >> wb.Function(sparse))
    net, model = weft.batched(nn.Sequential(weft.cell(SparseModule()))), Vertex()
    calls: list[Callable[[], Any]] = [
        lambda: weft.batched(lambda x: inside(x) * 2)(rows),
        lambda: net(rows),
        lambda: model(weft.Graph.chain(3), rows),
        lambda: block([[1.0, 2.0]]),
    ]
    for call in calls:
        with pytest.warns(weft.FallbackWarning, match="to_sparse") as told:
            call()
        assert [(each.filename, each.lineno) for each in told] == [(__file__, call.__code__.co_firstlineno)]


class SparseModule(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to_sparse().to_dense()


class Growing(weft.VertexFunction):
    """Looks at its numbers, of which zeros never grow."""

    def __init__(self) -> None:
        super().__init__(state={"h": (2,)})
        self.layer = nn.Linear(2, 2)

    def forward(self, v: Any) -> None:
        kids = v.gather()
        h = grows(v.pull() + kids.sum() + kids.map(lambda k: k["h"] * (2 if k.edge.sum() > 1 else 1)).sum())
        h = torch.tanh(self.layer(h)) + (grows(v.gather(0)["h"]) if kids.count > 0 else 0)
        v.scatter(h=h)
        v.push(h)


class Rounds(weft.VertexFunction):
    def __init__(self) -> None:
        super().__init__(state={"h": (2,)})

    def forward(self, v: Any) -> None:
        h = grows(v.state["h"]) + v.gather().sum()
        v.scatter(h=h)
        v.push(h)


def test_vertex_functions_are_looked_at_with_the_tensors_of_a_vertex() -> None:
    torch.manual_seed(0)
    graph = weft.Graph.batch([weft.Graph([[], [], [0, 1], [2]]), weft.Graph.chain(3)])
    x, edges = torch.randn(7, 2) + 2, torch.rand(graph.num_edges, 1) + 0.5
    model, typed = Growing(), weft.Typed({"one": Growing(), "other": Growing()})
    kinds = weft.Graph([[], [], [0, 1], [2]], types=["one", "other", "other", "one"])
    rounds, init = Rounds(), {"h": torch.rand(7, 2) + 1}
    calls: list[Callable[[str], Any]] = [
        lambda backend: model(graph, x, edges=edges, backend=backend),
        lambda backend: typed(kinds, x[:4], edges=edges[:3], backend=backend),
        lambda backend: rounds(graph, rounds=2, init=init, backend=backend),
    ]
    for call in calls:
        torch.testing.assert_close(call("auto"), call("reference"))


def test_a_cycle_is_told_where_the_code_must_be_looked_at_with_real_numbers() -> None:
    with pytest.raises(weft.StructureError, match=r"^Growing: graph 0: cycle: "):
        Growing()(weft.Graph([[], [0, 2], [1]]), torch.ones(3, 2), edges=torch.ones(3, 1))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("laid_out", [Tensor.to_sparse, Tensor.to_sparse_csr], ids=["coo", "csr"])
def test_code_may_use_a_sparse_matrix(laid_out: Callable[[Tensor], Tensor]) -> None:
    matrix = laid_out(X * (X > 0.4))

    class Spread(weft.VertexFunction):
        def __init__(self) -> None:
            super().__init__(state={"h": (3,)})

        def forward(self, v: Any) -> None:
            h = torch.tanh(matrix @ v.pull() + v.gather().sum("h"))
            v.scatter(h=h)
            v.push(h)

    cell = weft.cell(lambda x: matrix @ x)
    for fn in (lambda x: torch.tanh(matrix @ x), lambda x: torch.tanh(cell(x))):
        assert_equals_loop(fn, X)
    said = rf"^Spread: it uses a tensor of shape \[3, 3\] and layout {matrix.layout}; it runs by plain vmap$"
    with pytest.warns(weft.FallbackWarning, match=said):
        assert_equivalent(Spread(), weft.Graph.chain(3), X)
