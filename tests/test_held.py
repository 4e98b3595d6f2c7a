"""The cells of a call are looked at together: a call like the last one finds all of them at once, and notices every change."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.graph.capture import Surroundings
from weft.graph.cell import Trace

torch.set_num_threads(1)

SCALE = 1.0


class Part(weft.VertexFunction):
    """Reads parameters, a buffer, a setting, a list, a global; shares a module with the other part."""

    def __init__(self, shared: nn.Linear) -> None:
        super().__init__(state={"h": (3,)})
        self.shared, self.own = shared, nn.Linear(2, 3)
        self.register_buffer("shift", torch.zeros(3))
        self.scale, self.sizes = 1.0, [1.0]

    def forward(self, v: Any) -> None:
        h = torch.tanh(self.own(v.pull()) * self.scale + self.shared(v.gather().sum("h")) * self.sizes[0] + self.shift) * SCALE
        v.scatter(h=h)
        v.push(h)


def model() -> weft.Typed:
    torch.manual_seed(0)
    shared = nn.Linear(3, 3)
    return weft.Typed({"leaf": Part(shared), "node": Part(shared)})


GRAPH = weft.Graph([[], [], [0, 1], [2, 1], [3]], types=[0, 0, 1, 1, 0])
ROWS = torch.randn(5, 2, generator=torch.Generator().manual_seed(1))


def results(net: nn.Module, backend: str) -> dict[str, Tensor | None]:
    net.zero_grad()
    out = net(GRAPH, ROWS, backend=backend)
    if out.requires_grad:
        out.square().sum().backward()
    return {"out": out.detach(), **{name: p.grad for name, p in net.named_parameters()}}


def assert_same(net: nn.Module) -> None:
    found, expected = results(net, "auto"), results(net, "reference")
    for name, tensor in expected.items():
        if tensor is None:
            assert found[name] is None, name
        else:
            now = found[name]
            assert now is not None, name
            assert float((now - tensor).abs().max()) <= 1e-5 * max(1.0, float(tensor.abs().max())), name


def test_a_call_like_the_last_one_asks_no_trace_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model()
    for _ in range(2):
        net(GRAPH, ROWS)
    monkeypatch.setattr(Trace, "holds", lambda trace: pytest.fail("one by one"))
    assert_same(net)


CHANGES: dict[str, Any] = {
    "another parameter": lambda part: setattr(part.own, "weight", nn.Parameter(torch.ones(3, 2))),
    "another shared parameter": lambda part: setattr(part.shared, "bias", nn.Parameter(torch.ones(3))),
    "two parameters become one": lambda part: setattr(part.own, "bias", part.shared.bias),
    "a parameter that needs no gradient": lambda part: part.own.weight.requires_grad_(False),
    "no gradients at all": lambda part: part.requires_grad_(False),
    "another setting": lambda part: setattr(part, "scale", 0.5),
    "a list changed in place": lambda part: part.sizes.__setitem__(0, 3.0),
    "another buffer": lambda part: setattr(part, "shift", torch.ones(3)),
    "another module": lambda part: setattr(part, "own", nn.Sequential(nn.Linear(2, 3), nn.Tanh())),
    "a parameter that is not there": lambda part: setattr(part.own, "bias", None),
    "a module that is not there": lambda part: setattr(part, "shared", nn.Identity()),
}


@pytest.mark.parametrize("kind", ["leaf", "node"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_any_of_the_cells_is_honoured(change: str, kind: str) -> None:
    net = model()
    for _ in range(2):
        assert_same(net)
    CHANGES[change](net.functions[kind])
    for _ in range(2):
        assert_same(net)


def test_another_function_for_a_type_is_honoured() -> None:
    net = model()
    assert_same(net)
    net.functions["node"] = Part(nn.Linear(3, 3))
    assert_same(net)
    before = net.functions["node"]
    net.functions["node"] = Part(nn.Linear(3, 3))
    assert_same(net)
    net.functions["node"] = before
    assert_same(net)


def test_a_replaced_function_lives_as_long_as_its_trace() -> None:
    """Cells are known by the address of their function: another one at the same address would be taken for it."""
    net = model()
    assert_same(net)
    old = weakref.ref(net.functions["node"])
    for _ in range(3):
        net.functions["node"] = Part(nn.Linear(3, 3))
        assert_same(net)
    gc.collect()
    assert old() is not None


def test_a_global_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model()
    assert_same(net)
    monkeypatch.setitem(globals(), "SCALE", 0.25)
    assert_same(net)


def test_hooks_on_a_module_within_are_run() -> None:
    net, seen = model(), list[int]()
    assert_same(net)
    own = net.functions["node"].own
    with pytest.warns(weft.FallbackWarning, match="carries hooks"):
        own.register_forward_hook(lambda module, args, out: seen.append(1))
        net(GRAPH, ROWS)
    assert seen


def test_the_library_itself_is_not_looked_through() -> None:
    """A batched function that another one uses brings along what its user gave it, and not all of what weft is made of."""
    scale = [2.0]
    inner = weft.batched(lambda x: x * scale[0])

    def outer(x: Tensor) -> Tensor:
        return inner(x).sum()

    found = Surroundings().add(outer)
    places = [*found.settings, *found.objects, *found.tensors]
    assert len(places) < 100
    assert any(container is scale for container, _ in places)
    assert not any(container is sys.modules for container, _ in places)
