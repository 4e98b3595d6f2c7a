"""Backward hooks of modules in batched code: they fire once per example with the gradients of the loop, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from lazy_parts import inputs


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(self.first(x)))


def _after(module: nn.Module, seen: list[int]) -> None:
    module.register_full_backward_hook(lambda module, inner, outer: (seen.append(1), (inner[0] * 2,))[1])


def _before(module: nn.Module, seen: list[int]) -> None:
    module.register_full_backward_pre_hook(lambda module, outer: (seen.append(1), (outer[0] * 2,))[1])


WAYS: dict[str, Callable[[Two], Any]] = {
    "module": lambda model: model,
    "function": lambda model: lambda x: model(x) * 1,
    "cell": weft.cell,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hook", [_after, _before])
@pytest.mark.filterwarnings("ignore::weft.FallbackWarning")
def test_hooks_that_change_gradients_are_called_as_in_the_loop(hook: Callable[..., None], way: str) -> None:
    found, expected = Two().double(), Two().double()
    fired: list[int] = []
    net = weft.batched(WAYS[way](found))
    net(inputs(4)).sum().backward()
    found.zero_grad()
    hook(found.second, fired)  # layers that were recorded before have none yet
    hook(expected.second, [])
    net(inputs(4)).sum().backward()
    torch.stack([expected(x) for x in inputs(4)]).sum().backward()
    assert len(fired) == 4
    for one, other in zip(found.parameters(), expected.parameters(), strict=True):
        assert one.grad is not None and torch.allclose(one.grad, other.grad)


def test_the_fallback_is_announced() -> None:
    model = Two().double()
    _after(model.second, [])
    message = r"Linear\+Linear\+tanh: a module in it carries hooks \(Linear\); it runs row by row"
    with pytest.warns(weft.FallbackWarning, match=message):
        found = weft.batched(model)(inputs(2))
    assert torch.allclose(found, torch.stack([model(x) for x in inputs(2)]))


@pytest.mark.parametrize("hook", [_after, _before])
def test_hooks_on_code_of_ones_own_ask_for_a_cell(hook: Callable[..., None]) -> None:
    model = Two().double()
    hook(model, [])
    with pytest.raises(weft.TraceError) as caught:
        weft.batched(model)(inputs(2))
    assert str(caught.value).splitlines()[0] == (
        "Two carries backward hooks, which see the gradients of single calls; put the module into a weft.cell, which then runs "
        "row by row, or register the hooks on what weft.batched gives"
    )


def test_hooks_on_the_batched_module_see_the_batch() -> None:
    net, seen = weft.batched(Two().double()), []
    net.register_full_backward_hook(lambda module, inner, outer: seen.append(outer[0].shape))
    net(inputs(4).requires_grad_()).sum().backward()
    assert seen == [(4, 3)]
