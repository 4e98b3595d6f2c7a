"""What was found out about an operation once is not looked for again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from lazy_parts import assert_equals_loop, inputs
from weft.lazy.ops import Op
from weft.lazy.state import MOST_ALIKE

torch.manual_seed(0)
LAYER = nn.Linear(3, 3).double()
ASKING: dict[str, Callable[[Tensor], Any]] = {
    "mask of what was given": lambda x: LAYER(x)[x > 0].sum(),
    "mask of a value": lambda x: (lambda h: h[h > 0].sum())(LAYER(x)),
    "nonzero": lambda x: torch.nonzero(LAYER(x) > 0).sum(),
    "masked_select": lambda x: torch.masked_select(LAYER(x), LAYER(x) > 0).sum(),
    "unique": lambda x: torch.unique(LAYER(x).round().detach()).sum(),
}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Op]:
    """The operations that were looked at."""
    found: list[Op] = []
    explore = Op._explore
    monkeypatch.setattr(Op, "_explore", lambda op: found.append(op) or explore(op))
    return found


@pytest.mark.parametrize("name", ASKING)
def test_operations_that_need_values_are_looked_at_once(name: str, looks: list[Op]) -> None:
    net = weft.batched(ASKING[name])
    net(inputs(5))
    assert len(looks) < 5, "once, not once for each example"
    looks.clear()
    net(inputs(9))
    assert not looks
    assert_equals_loop(ASKING[name], inputs(5))


def test_other_numbers_in_a_list_are_no_other_operation(looks: list[Op]) -> None:
    def fn(x: Tensor, index: list[int]) -> Any:
        h = LAYER(x)
        return h[index], torch.outer(h, h)[index, 1]

    net = weft.batched(fn)
    net(inputs(3), [[0, 1], [1, 1], [2, -1]])
    looks.clear()
    net(inputs(3), [[1, 0], [2, 2], [-3, 0]])
    assert not looks
    assert_equals_loop(fn, inputs(3), [[1, 0], [2, 2], [-3, 0]])


def test_writing_at_a_list_of_numbers() -> None:
    def fn(x: Tensor, index: list[int]) -> Tensor:
        h = LAYER(x)
        h[index] = 5.0
        return h

    assert_equals_loop(fn, inputs(3), [[0, 1], [1], [2, 0]])


def _scaled(layer: nn.Module, scale: float, **options: Any) -> Any:
    """A function that is made anew with every call."""
    return weft.batched(lambda x: layer(x) * scale * FACTOR, **options)


FACTOR = 2.0


def test_a_function_that_is_made_anew_is_known(looks: list[Op], monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(3, 3).double()
    _scaled(layer, 3.0)(inputs())
    looks.clear()
    assert torch.allclose(_scaled(layer, 3.0)(inputs()), layer(inputs()) * 6)
    assert not looks
    assert torch.allclose(_scaled(layer, 4.0)(inputs()), layer(inputs()) * 8)
    other = nn.Linear(3, 3).double()
    assert torch.allclose(_scaled(other, 3.0)(inputs()), other(inputs()) * 6)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert torch.allclose(_scaled(layer, 3.0)(inputs()), layer(inputs()) * 15)


def test_a_function_that_is_made_anew_with_another_number_is_known_soon(looks: list[Op]) -> None:
    """As with a temperature that goes down from step to step."""
    layer = nn.Linear(3, 3).double()
    for step in range(12):
        if step == 6:
            looks.clear()
        assert torch.allclose(_scaled(layer, 3.5 + step)(inputs()), layer(inputs()) * (3.5 + step) * FACTOR)
    assert not looks


def test_variables_that_are_bound_anew_are_seen(looks: list[Op]) -> None:
    layer = nn.Linear(3, 3).double()

    def step() -> Any:
        return weft.batched(lambda x: layer(x) * 2)(inputs())

    step()
    looks.clear()
    step()
    assert not looks
    layer = nn.Linear(3, 3).double()
    assert torch.allclose(step(), layer(inputs()) * 2)
    layer.weight = nn.Parameter(torch.ones(3, 3, dtype=torch.float64))
    step().sum().backward()
    assert torch.allclose(step(), layer(inputs()) * 2) and layer.weight.grad is not None


@pytest.mark.parametrize("marked", [False, True])
def test_a_function_may_close_over_itself(marked: bool) -> None:
    layer = nn.Linear(3, 3).double()

    def down(count: int, x: Tensor) -> Tensor:
        return x if not count else down(count - 1, layer(x))

    fn = weft.cell(down) if marked else down
    assert torch.allclose(weft.batched(lambda x: fn(2, x))(inputs()), layer(layer(inputs())))
    assert torch.allclose(weft.batched(fn)([1, 2], inputs(2))[1], layer(layer(inputs(2)[1])))


def test_recordings_of_examples_belong_to_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(3, 3).double()
    key: dict[str, Any] = {"cache": lambda x: 0}
    assert torch.allclose(_scaled(layer, 3.0, **key)(inputs(1)), layer(inputs(1)) * 6)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert torch.allclose(_scaled(layer, 3.0, **key)(inputs(1)), layer(inputs(1)) * 15)


def test_what_is_known_of_them_is_bounded_and_goes_with_the_module() -> None:
    layer = nn.Linear(3, 3).double()
    for scale in range(20):
        _scaled(layer, scale)(inputs(1))
    states = list(layer.__dict__["_weft_recorded"].values())
    assert len(states) == MOST_ALIKE
    alive = weakref.ref(layer)
    del layer, states
    gc.collect()
    assert alive() is None
