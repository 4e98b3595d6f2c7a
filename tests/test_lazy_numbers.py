"""Python numbers among the arguments: a few are part of what is computed, many are fed, and none stays for ever."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import weft
from weft.lazy import state
from weft.lazy.state import state_of

EXAMPLES = 200

CALLS: dict[str, Callable[[Any, float], Any]] = {
    "clamp, min": lambda h, v: h.clamp(min=v),
    "clamp, both": lambda h, v: torch.clamp(h, -v, v),
    "clamp_max": lambda h, v: h.clamp_max(v),
    "where": lambda h, v: torch.where(h > 0, h, v),
    "where, first": lambda h, v: torch.where(h > v, v, h),
    "power": lambda h, v: (h * h + 0.5) ** v,
    "power of a number": lambda h, v: (v + 1.0) ** h,
    "torch.pow": lambda h, v: torch.pow(h.abs() + 0.5, v),
    "full_like": lambda h, v: h + torch.full_like(h, v),
    "full": lambda h, v: h + torch.full((3,), v),
    "masked_fill": lambda h, v: h.masked_fill(h > 0, v),
    "lerp": lambda h, v: torch.lerp(h, h * 2, v),
    "torch.mul": lambda h, v: torch.mul(h, v),
    "division": lambda h, v: h.div(v + 0.5),
    "remainder": lambda h, v: h % (v + 0.5),
    "comparison": lambda h, v: h * torch.lt(h, v),
    "whole numbers": lambda h, v: h * (h.argmax() + int(v * 1000)),
}


class Numbers(nn.Module):
    def __init__(self, call: Callable[[Any, float], Any]) -> None:
        super().__init__()
        self.linear, self.call = nn.Linear(3, 3), call

    def forward(self, x: Tensor, number: float) -> Any:
        return self.call(self.linear(x), number)


@pytest.mark.parametrize("name", CALLS)
def test_many_numbers_are_one_kind_of_call(name: str) -> None:
    torch.manual_seed(0)
    model = Numbers(CALLS[name]).double()
    x, numbers = torch.randn(EXAMPLES, 3, dtype=torch.float64), [0.01 + 0.004 * i for i in range(EXAMPLES)]
    with_default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        weft.testing.assert_equivalent(model, x, numbers, policies=["auto"], backends=["auto"])
        assert len(state_of(model).fines) < 40, "every number made a kind of call of its own"
    finally:
        torch.set_default_dtype(with_default)


INDICES: dict[str, Callable[[Any, Any, int], Any]] = {
    "a row of the model": lambda model, h, i: model.rows[i],
    "from the end": lambda model, h, i: model.rows[-1 - i],
    "a number of the model": lambda model, h, i: model.table[i % 3, i, 1] + model.rows[i, 0],
    "a column": lambda model, h, i: model.table[:, i],
    "behind whole dimensions": lambda model, h, i: model.table[:, :, i % 3].sum(1) + model.table[1, i, :],
    "an index that is a tensor": lambda model, h, i: model.rows[torch.tensor(i)] + model.table[1, torch.tensor(i)],
    "an index that is computed": lambda model, h, i: model.table[h.argmax(), i] + model.rows[h.argmax() + i % 2, 1],
    "a number of a Value": lambda model, h, i: torch.outer(h, model.rows.sum(1))[i % 3, i],
    "a column of a Value": lambda model, h, i: torch.outer(h, model.rows.sum(1))[:, i],
    "one that is written into": lambda model, h, i: _written(torch.outer(h, model.rows.sum(1)), h, i),
    "where rows are put": lambda model, h, i: _put(torch.zeros(EXAMPLES, 3, dtype=torch.float64), h, i),
}


def _written(m: Any, h: Any, i: int) -> Any:
    column, number = m[:, i], m.t()[i, 1]
    column.mul_(2.0)
    number.add_(h[1])
    return m.sum() + column


def _put(m: Any, h: Any, i: int) -> Any:
    before = m[i]
    m[i] = h
    m[i - 1, i % 3] = h[0].float()
    m[-1 - i, 1] = i / 7
    m[:, i % 3] += h[1]
    m[(i + 5) % EXAMPLES] = 1
    m[(i + 9) % EXAMPLES, 0] = 1e-300  # less than float32 holds
    flags = torch.zeros(EXAMPLES, dtype=torch.bool)
    flags[i] = True
    return m.sin().sum(0) + m[(i + 9) % EXAMPLES, 0] * 1e300 + before + flags.double().argmax()


class Indexed(nn.Module):
    def __init__(self, call: Callable[[Any, Any, int], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.rows, self.table = nn.Linear(3, 3), _random(EXAMPLES, 3), _random(3, EXAMPLES, 3)
        self.call = call
        self.double()

    def forward(self, x: Tensor, index: int) -> Any:
        return self.call(self, self.linear(x), index) * 2


def _random(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


@pytest.mark.parametrize("name", INDICES)
def test_many_indices_are_one_kind_of_call(name: str) -> None:
    model = Indexed(INDICES[name])
    x, indices = torch.randn(64, 3, dtype=torch.float64), [(7 * i) % EXAMPLES for i in range(64)]
    weft.testing.assert_equivalent(model, x, indices, policies=["auto"], backends=["auto"])
    assert len(state_of(model).fines) < 80, "every index made a kind of call of its own"
    loop = torch.stack([model(row, index) for row, index in zip(x, indices, strict=True)])
    kept = weft.batched(model, cache=lambda row, index: index)
    assert all(torch.allclose(kept(x, indices), loop) for _ in range(2))


def test_a_row_of_the_model_cannot_be_written_into() -> None:
    model = Indexed(lambda model, h, i: model.rows[i].add_(1.0))
    before = model.rows.detach().clone()
    with (
        torch.no_grad(),
        pytest.raises(weft.TraceError, match=r"is a view .* of a tensor of the model, which would stay unchanged"),
    ):
        weft.batched(model)(torch.randn(9, 3, dtype=torch.float64), list(range(9)))
    assert torch.equal(model.rows, before)


def test_an_index_outside_is_an_error_where_it_is_written() -> None:
    model = Indexed(lambda model, h, i: model.table[:, i])
    with pytest.raises(IndexError, match="index 200 is out of bounds for dimension 1 with size 200") as caught:
        weft.batched(model)(torch.randn(9, 3, dtype=torch.float64), [*range(8), EXAMPLES])
    assert caught.value.__notes__[0] == "in example 8"


@pytest.mark.parametrize("number", [0.0, -0.0, math.inf, -math.inf, math.nan])
def test_odd_numbers_are_what_they_are(number: float) -> None:
    model = Numbers(lambda h, v: h.clamp(min=v) + h * v)
    x = torch.randn(8, 3)
    got = weft.batched(model)(x, [number, 1.0, 2.0, 3.0, 4.0, 5.0, number, -number])
    numbers = [number, 1.0, 2.0, 3.0, 4.0, 5.0, number, -number]
    expected = torch.stack([model(row, each) for row, each in zip(x, numbers, strict=True)])
    torch.testing.assert_close(got, expected, equal_nan=True)


def test_nan_is_known_the_second_time() -> None:
    model = Numbers(lambda h, v: F.leaky_relu(h, v))
    net = weft.batched(model)
    for _ in range(3):
        net(torch.randn(4, 3), [float("nan")] * 4)
    (world,) = (world for worlds in state_of(model).worlds.values() for world in worlds)
    assert sum(len(tables.quick) for tables in world.tables.values()) < 10


def test_what_cannot_be_fed_does_not_stay_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MOST_TYPES", 40)
    model = Numbers(lambda h, v: F.leaky_relu(h, v))
    net = weft.batched(model, backend="reference")
    x, most = torch.randn(10, 3), 0
    for turn in range(60):
        numbers = [0.001 * (10 * turn + i) for i in range(10)]
        expected = torch.stack([model(row, each) for row, each in zip(x, numbers, strict=True)])
        torch.testing.assert_close(net(x, numbers), expected)
        most = max(most, len(state_of(model).fines))
    assert most <= 40 * state.MOST_DOUBLED + 20 < 600


@pytest.mark.parametrize("exponent", [0.5, -0.5, 0.25, 3.0])
def test_powers_at_the_ends_of_numbers_are_those_of_the_loop(exponent: float) -> None:
    """Where exponents vary, one that torch treats in its own way is not fed."""
    odd = torch.tensor([-math.inf, -0.0, 0.0, math.inf, -1.5, 2.0])
    exponents = [1.25, 2.5, 1.75, 2.25, exponent]

    def powers(v: float) -> Any:
        return (odd * 1) ** v

    expected = torch.stack([powers(v) for v in exponents])
    torch.testing.assert_close(weft.batched(powers)(exponents), expected, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("exponent", [True, False, 2**53 + 1, 2**62, 1e39, 16777217])
def test_odd_exponents_are_computed(exponent: Any) -> None:
    x = torch.tensor([[1.0, -1.0, 0.5], [0.25, 1.0, -0.5]], requires_grad=True)
    found = weft.batched(lambda row: (row * 1.0) ** exponent)(x)
    torch.testing.assert_close(found, (x * 1.0) ** exponent, equal_nan=True)


ODD = [0.5, 2.0, -3.0, 7.25, 1e39, float("inf"), float("nan"), 0.0, -0.0, 3, 0, 1 << 63, -(1 << 62)]


@pytest.mark.parametrize("name", ["__mul__", "__lt__", "__rsub__", "__pow__"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_odd_numbers_among_many_at_one_place_are_those_of_the_loop(name: str, dtype: torch.dtype) -> None:
    def fn(x: Tensor, number: Any) -> Tensor:
        return getattr(x, name)(number)

    numbers = [*(ODD if dtype is torch.float64 else [3, 0]), 5, 6, 7, 8]
    x = torch.arange(1, 4).to(dtype).expand(len(numbers), 3)
    net = weft.batched(fn, stack=False)
    for _ in range(3):
        for found, number in zip(net(x, numbers), numbers, strict=True):
            torch.testing.assert_close(found, fn(x[0], number), equal_nan=True)


@pytest.mark.parametrize("number", [1e-50, 1e-46, 1e39, 3.5e38, 1e-300])
@pytest.mark.parametrize("varies", [False, True])
def test_numbers_that_float32_does_not_hold_are_those_of_the_loop(number: float, varies: bool) -> None:
    scale = nn.Parameter(torch.tensor([0.7, -1.3, 2.0]))
    numbers = [number, 2.0, 3.0, 4.5, 5.5] if varies else [number] * 5

    def powers(v: float) -> Any:
        return (scale * 2) ** v, v ** (scale * 2), (scale * 2) * v

    expected = [torch.stack(part) for part in zip(*map(powers, numbers), strict=True)]
    for _ in range(2):
        found = weft.batched(powers)(numbers)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex128])
def test_calls_are_equal_where_all_bits_of_their_data_are(dtype: torch.dtype) -> None:
    rows = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [0.0, 1.0]]).to(dtype)
    found = weft.batched(lambda x: 1 / x.real.float(), dedupe=True)(rows)
    assert found[:, 0].tolist() == [math.inf, -math.inf, math.inf]
    numbers = weft.batched(lambda number: 1 / torch.tensor(number), dedupe=True)([0.0, -0.0, 0.0])
    assert numbers.tolist() == [math.inf, -math.inf, math.inf]
