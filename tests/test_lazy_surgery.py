"""Modules that are made of something else from one call to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from lazy_parts import inputs
from weft.lazy.ops import Op


def _sequence() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU()).double()


CHANGES: dict[str, Callable[[nn.Sequential], Any]] = {
    "a layer more, of another shape": lambda parts: parts.append(nn.Linear(3, 2).double()),
    "a layer more, of the same shape": lambda parts: parts.append(nn.Linear(3, 3).double()),
    "another layer": lambda parts: parts.__setitem__(0, nn.Linear(3, 4).double()),
    "a layer less": lambda parts: parts.__delitem__(1),
}
WAYS: dict[str, Callable[[nn.Sequential], Any]] = {
    "module": lambda parts: parts,
    "function": lambda parts: lambda x: parts(x) * 2,
    "cell": lambda parts: nn.Sequential(weft.cell(parts)),
    "asks": lambda parts: lambda x: parts(x) * 2 if parts(x).sum() > 0 else parts(x),
    "looks": lambda parts: lambda x: parts(x) * parts(x).shape[0],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_module_computes_what_it_is_now(change: str, way: str) -> None:
    parts = _sequence()
    fn = WAYS[way](parts)
    net = weft.batched(fn)
    net(inputs())
    CHANGES[change](parts)
    for batched in (net, weft.batched(fn), net):
        assert torch.allclose(batched(inputs()), torch.stack([fn(x) for x in inputs()]))


def test_a_setting_that_changes_a_shape() -> None:
    torch.manual_seed(0)
    layer = nn.Conv1d(1, 2, 3)
    net, rows = weft.batched(layer), torch.randn(3, 1, 8)
    net(rows)
    layer.padding = (1,)
    assert torch.allclose(net(rows), layer(rows), atol=1e-6)
    layer.padding = (0,)
    assert torch.allclose(net(rows), layer(rows), atol=1e-6)


def test_recordings_that_are_kept_are_made_anew() -> None:
    parts = _sequence()
    net = weft.batched(lambda k: parts(torch.ones(3, dtype=torch.float64) * k), cache=True)
    net([1, 2])
    parts.append(nn.Linear(3, 2).double())
    expected = torch.stack([parts(torch.ones(3, dtype=torch.float64) * k) for k in (1, 2)])
    assert torch.allclose(net([1, 2]), expected)


class Counting(nn.Linear):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


@pytest.mark.parametrize("kind", [nn.Linear, Counting])
def test_modes_and_counts_of_calls_are_no_reason_to_look_again(kind: type[nn.Linear], monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Op] = []
    gives_the_same = Op.gives_the_same
    monkeypatch.setattr(Op, "gives_the_same", lambda op: looks.append(op) or gives_the_same(op))
    net = weft.batched(nn.Sequential(weft.cell(kind(3, 3).double()), nn.Dropout(0.5)))
    for call in range(6):
        if call == 3:
            looks.clear()
        net.train(kind is Counting or call % 2 == 0)
        net(inputs())
    assert not looks
