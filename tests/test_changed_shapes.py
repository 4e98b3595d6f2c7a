"""Shapes that change behind the engine's back, numpy numbers, interrupts: an error in words or the right numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import weft
import weft.blocks as wb
from weft.lazy import patches


@pytest.mark.parametrize("size", [0, 1, 5])
def test_a_weight_of_another_shape_raises(size: int) -> None:
    first = nn.Linear(3, 3)
    net = wb.compile(wb.Vector(3) >> wb.Function(first) >> wb.Function(nn.Linear(3, 2)))
    rows = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    for _ in range(2):
        net(rows)
    before = first.weight, first.bias
    first.weight, first.bias = nn.Parameter(torch.randn(size, 3)), nn.Parameter(torch.randn(size))
    expected = (
        f"Linear: expected a result of shape [3], as when it was first looked at, got [{size}]; after a change of shapes make "
        "the block, or the batched function, anew"
    )
    with pytest.raises(weft.ShapeError) as raised:
        net(rows)
    assert str(raised.value) == expected
    first.weight, first.bias = before
    assert net(rows).shape == (2, 2)


@pytest.mark.filterwarnings("ignore::weft.FallbackWarning")
def test_a_result_whose_shape_depends_on_values_raises() -> None:
    def positive(x: Tensor) -> Tensor:
        return x[x >= 0][:1] if x.abs().sum() > 0 else x

    net = wb.compile(wb.Vector(3) >> wb.Function(positive))
    with pytest.raises(weft.ShapeError) as raised:
        net([[1.0, -2.0, 3.0], [4.0, 5.0, 6.0]])
    assert str(raised.value) == (
        "positive gives a tensor of shape [3] for some rows and [1] for others; the shapes of its results may not depend on "
        "values"
    )


def test_the_module_of_a_function_can_be_replaced() -> None:
    block = wb.Vector(3) >> wb.Function(nn.Linear(3, 3))
    part = next(one for one in block.modules() if isinstance(one, wb.Function))
    part.fn = nn.Linear(3, 3)
    names = set(block.state_dict())
    assert any(name.endswith("weight") for name in names)
    rows = [[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]]
    torch.testing.assert_close(wb.compile(block)(rows), part.fn(torch.tensor(rows)))


def test_numpy_numbers_stand_on_either_side_of_a_value() -> None:
    weight = torch.randn(3, 3, requires_grad=True)

    def fn(x: Tensor) -> Tensor:
        h = torch.tanh(x @ weight)
        two: Any = np.float32(2)
        total: Tensor = h.sum() + np.float64(0.1) * (h * h).sum() - (two - h).sum() / np.int64(3)
        return total

    rows = torch.randn(4, 3)
    for _ in range(3):
        (found,) = torch.autograd.grad(weft.batched(fn)(rows).sum(), weight)
        (expected,) = torch.autograd.grad(torch.stack([fn(row) for row in rows]).sum(), weight)
        torch.testing.assert_close(found, expected)


def test_what_an_interrupt_leaves_is_gone_after_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopping(list[Any]):
        """Stops when the first exchanged function is to be put back."""

        stop = False

        def __iter__(self) -> Any:
            if Stopping.stop:
                Stopping.stop = False
                raise KeyboardInterrupt
            return super().__iter__()

    theirs = [getattr(where, name) for where, name, _, _ in patches.PATCHES]
    monkeypatch.setattr(patches, "PATCHES", Stopping(patches.PATCHES))

    def fn(x: Tensor) -> Tensor:
        Stopping.stop = interrupt
        return torch.tanh(x)

    interrupt = True
    with pytest.raises(KeyboardInterrupt):
        weft.batched(fn)(torch.ones(1, 2))
    interrupt = False
    weft.batched(fn)(torch.ones(1, 2))
    assert [getattr(where, name) for where, name, _, _ in patches.PATCHES] == theirs
