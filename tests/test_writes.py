"""Vertex functions that write into tensors of their own: planning changes none, and every vertex writes once, in order."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

import weft
from weft.graph.writes import Written
from weft.testing import assert_equivalent

GRAPH = weft.Graph.batch([weft.Graph.chain(3), weft.Graph([[], [], [1, 0]])])
IN_PLACE = "Writing: it changes a parameter, buffer or outside tensor in place"


class Writing(weft.VertexFunction):
    """A buffer `n`, two running tensors that are none, and layers that write in training."""

    def __init__(self, code: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__(state={"h": (4,)})
        self.register_buffer("n", torch.full((4,), 1.01))
        self.mean, self.var = torch.zeros(4), torch.ones(4)
        self.batch, self.instance = nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True)
        self.spectral, self.code = spectral_norm(nn.Linear(4, 4)), code

    def forward(self, v: Any) -> None:
        h = torch.tanh(self.code(self, v.pull() + v.gather().sum()))
        v.scatter(h=h)
        v.push(h)

    def written(self) -> list[Tensor]:
        return [tensor.detach().clone() for tensor in (self.mean, self.var, *self.buffers(), *self.parameters())]


def counts(m: Any, z: Tensor) -> Tensor:
    m.n += 1
    return z * m.n.clone()


def averages(m: Any, z: Tensor) -> Tensor:
    m.n.mul_(0.9).add_(z.detach(), alpha=0.1)
    return z * m.n.clone()


def raises_to_a_power(m: Any, z: Tensor) -> Tensor:
    m.n **= 2
    return z * m.n.clone()


def writes_one_place(m: Any, z: Tensor) -> Tensor:
    m.n[1] = m.n[1] + z[0].detach()
    return z * m.n.clone()


def writes_through_a_view(m: Any, z: Tensor) -> Tensor:
    part = m.n.view(2, 2)[1]
    part += 1
    return z * m.n.clone()


def writes_behind_autograd(m: Any, z: Tensor) -> Tensor:
    m.spectral.bias.data.add_(1)
    return z + m.spectral.bias


def replaces_memory(m: Any, z: Tensor) -> Tensor:
    m.n.data = m.n.data + 1
    return z * m.n.clone()


def writes_as_told(m: Any, z: Tensor) -> Tensor:
    torch.add(m.n, 1, out=m.n)
    return z * m.n.clone()


def writes_into_several(m: Any, z: Tensor) -> Tensor:
    torch._foreach_add_([m.mean, m.var], 1.0)
    return z * m.var.clone()


def trains_batch_norm(m: Any, z: Tensor) -> Tensor:
    return m.batch(torch.stack([z, 2 * z, m.n])).mean(0)


def normalises_by_a_function(m: Any, z: Tensor) -> Tensor:
    rows = torch.stack([z, 2 * z, m.n])
    return nn.functional.batch_norm(rows, m.mean, m.var, training=True).mean(0)


def trains_instance_norm(m: Any, z: Tensor) -> Tensor:
    return m.instance(torch.stack([z, 2 * z, m.n], 1))[:, 0]


def trains_spectral_norm(m: Any, z: Tensor) -> Tensor:
    return m.spectral(z)


def assigns(m: Any, z: Tensor) -> Tensor:
    m.n = m.n + 1
    return z * m.n.clone()


def writes_after_a_branch(m: Any, z: Tensor) -> Tensor:
    scale = 2 if z.sum() > 0 else 3
    m.n.add_(z.detach())
    return z * m.n.clone() * scale


CODES = {
    counts: f"{IN_PLACE} (add_)",
    averages: f"{IN_PLACE} (mul_)",
    raises_to_a_power: f"{IN_PLACE} (pow_)",
    writes_one_place: f"{IN_PLACE} (__setitem__)",
    writes_through_a_view: f"{IN_PLACE} (add_)",
    writes_behind_autograd: f"{IN_PLACE} (add_)",
    replaces_memory: f"{IN_PLACE} (.data)",
    writes_as_told: f"{IN_PLACE} (add with out=)",
    writes_into_several: f"{IN_PLACE} (_foreach_add_)",
    trains_batch_norm: f"{IN_PLACE} (add_)",
    normalises_by_a_function: f"{IN_PLACE} (native_batch_norm)",
    trains_instance_norm: f"{IN_PLACE} (copy_)",
    trains_spectral_norm: f"{IN_PLACE} (normalize with out=)",
    assigns: "Writing: it assigns a tensor to its module while it runs (n); make it in __init__",
    writes_after_a_branch: f"{IN_PLACE} (add_)",
}


@pytest.mark.filterwarnings("ignore::weft.FallbackWarning")
@pytest.mark.parametrize("code", CODES)
def test_planning_writes_nothing(code: Callable[[Any, Tensor], Tensor]) -> None:
    model, x = Writing(code), torch.randn(6, 4, requires_grad=True)
    before, versions = model.written(), [tensor._version for tensor in model.buffers()]
    weft.plan(model, GRAPH, x)
    assert all(torch.equal(one, other) for one, other in zip(before, model.written(), strict=True))
    assert versions == [tensor._version for tensor in model.buffers()]


@pytest.mark.parametrize("code", CODES)
def test_every_vertex_writes_once_and_in_order(code: Callable[[Any, Tensor], Tensor]) -> None:
    model, x = Writing(code), torch.randn(6, 4, requires_grad=True)
    truth = copy.deepcopy(model)
    truth.code = code
    for call in range(2):
        if call:
            found = model(GRAPH, x)
        else:
            with pytest.warns(weft.FallbackWarning) as told:
                found = model(GRAPH, x)
            assert [str(warning.message) for warning in told] == [f"{CODES[code]}; it runs row by row"]
        expected = truth(GRAPH, x, backend="reference")
        found.sum().backward()
        expected.sum().backward()
        assert torch.equal(found, expected)
        assert all(torch.equal(one, other) for one, other in zip(truth.written(), model.written(), strict=True))
        grads = zip(truth.parameters(), model.parameters(), strict=True)
        assert all((a.grad is None and b.grad is None) or torch.equal(a.grad, b.grad) for a, b in grads)


def test_what_code_writes_into_tensors_of_its_own_making_is_no_reason() -> None:
    def code(m: Any, z: Tensor) -> Tensor:
        zeros, one = torch.zeros(4), torch.tensor(1.0)
        zeros += z
        one.add_(2.0)
        return zeros * one if z.sum() > 0 else zeros

    with pytest.warns(weft.FallbackWarning, match="depends on the values of tensors"):
        assert_equivalent(Writing(code).eval(), GRAPH, torch.randn(6, 4))


def test_layers_that_only_read_their_statistics_are_no_reason() -> None:
    model = Writing(lambda m, z: m.spectral(z)).eval()
    assert_equivalent(model, GRAPH, torch.randn(6, 4))


def test_memory_that_was_written_and_is_gone_is_nobody_elses() -> None:
    """Addresses come again."""
    with Written() as written:
        for _ in range(20):
            torch.empty(3).bernoulli_()
    assert all(written.into([torch.zeros(3)]) is None for _ in range(20))
