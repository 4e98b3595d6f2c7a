"""Hooks of modules in batched code: forward ones in a cell fire once per batch, backward ones once per example."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from lazy_parts import assert_equals_loop, inputs


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


@pytest.mark.filterwarnings("ignore::weft.FallbackWarning")
@pytest.mark.parametrize("where", ["first", "second"])
def test_backward_hooks_after_forward_hooks(where: str) -> None:
    """A trace that was made for forward hooks is none for backward ones."""
    found, expected = Two().double(), Two().double()
    net = weft.batched(weft.cell(found))
    net(inputs(4))
    handle = found.first.register_forward_hook(lambda module, given, out: out * 2)
    net(inputs(4))
    handle.remove()
    net(inputs(4))
    fired: list[int] = []
    _after(getattr(found, where), fired)
    _after(getattr(expected, where), [])
    given = inputs(4).requires_grad_()
    net(given).sum().backward()
    torch.stack([expected(x) for x in given]).sum().backward()
    assert len(fired) == 4
    for one, other in zip(found.parameters(), expected.parameters(), strict=True):
        assert one.grad is not None and torch.allclose(one.grad, other.grad)


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize("count", [1, 2, 20])
def test_forward_hooks_in_a_cell_fire_once_per_batch(count: int, backend: str) -> None:
    seen: list[str] = []
    model = Two().double()
    model.first.register_forward_hook(lambda module, given, out: seen.append("after"))
    model.second.register_forward_pre_hook(lambda module, given: seen.append("before"))
    cell = weft.cell(model)
    net = weft.batched(lambda x: cell(cell(x)), backend=backend)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            net(inputs(count)).sum().backward()
            assert seen == ["after", "before"] * 2
            seen.clear()
    assert [str(each.message) for each in told] == ["Two+Two: a module in it carries hooks (Linear); it runs by plain vmap"]


@pytest.mark.filterwarnings("ignore::weft.FallbackWarning")
def test_hooks_of_all_modules_fire_once_per_batch() -> None:
    seen: list[str] = []
    cell = weft.cell(Two().double())
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, out: seen.append(type(module).__name__))
    try:
        weft.batched(lambda x: cell(x))(inputs(4))
    finally:
        handle.remove()
    assert seen == ["Linear", "Linear", "Two"]


@pytest.mark.filterwarnings("ignore::weft.FallbackWarning")
def test_forward_hooks_change_what_a_cell_gives() -> None:
    model = Two().double()
    model.first.register_forward_hook(lambda module, given, out: out * 2)
    model.second.register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    assert_equals_loop(weft.cell(model), inputs(4))


def test_hooks_that_need_numbers_run_row_by_row() -> None:
    seen: list[float] = []
    model = Two().double()
    model.first.register_forward_hook(lambda module, given, out: seen.append(out.sum().item()))
    net = weft.batched(weft.cell(model))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        net(inputs(4))
    assert all(str(each.message).startswith("Two: a") and each.filename == __file__ for each in told)
    assert [str(each.message).partition("; ")[2] for each in told] == ["it runs by plain vmap", "it runs row by row"]
    found, expected = list(seen), []
    seen.clear()
    for x in inputs(4):
        model.first(x)
    expected += seen
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_hooks_that_change_shapes_are_told_the_way_out() -> None:
    model = Two().double()
    model.second.register_forward_hook(lambda module, given, out: out.repeat(2))
    message = (
        "Two: a hook in it changes what comes out, from a tensor of shape [3] to a tensor of shape [6]; hooks of modules in a "
        "cell may change numbers, not shapes: let the code of the cell do that"
    )
    for backend in ("auto", "reference"):
        with warnings.catch_warnings(), pytest.raises(weft.TraceError) as told:
            warnings.simplefilter("ignore")
            weft.batched(weft.cell(model), backend=backend)(inputs(2))
        assert str(told.value) == message
