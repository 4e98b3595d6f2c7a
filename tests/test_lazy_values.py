"""Code that depends on the values of tensors: fibers and flushes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.testing
from lazy_parts import TREES, Grower, assert_equals_loop, inputs, tree_net
from weft.lazy import fibers, workers


def test_branches_and_loops_on_values_equal_the_loop_with_gradients() -> None:
    assert_equals_loop(Grower().double(), inputs())


def test_waiting_examples_run_together() -> None:
    model = Grower().double()
    flushes: list[int] = []
    count = fibers.Fibers._flush

    def counted(self: Any) -> None:
        flushes.append(len(self.waiting))
        count(self)

    fibers.Fibers._flush = counted  # type: ignore[method-assign]
    try:
        _, steps = weft.batched(model)(inputs())
    finally:
        fibers.Fibers._flush = count  # type: ignore[method-assign]
    assert flushes[0] == 6, "all examples wait for their first score together"
    assert len(flushes) <= 2 * (int(steps.max()) + 1), "one flush for all that wait, not one for each"


@pytest.mark.parametrize(
    "ask", ["bool", "float", "int", "item", "tolist", "format", "index", "nonzero", "mask", "numpy", "equal"]
)
def test_every_way_to_ask_for_a_number(ask: str) -> None:
    weight = nn.Parameter(torch.tensor([2.0, 1.0], dtype=torch.float64))

    def fn(x: Tensor) -> Any:
        v = x * weight
        total = v.sum().detach()
        if ask == "bool":
            return v * 2 if total > 0 else v
        if ask == "nonzero":
            return v * (v > 0).nonzero().sum()
        if ask == "mask":
            return v[v > 0].sum() * total
        if ask == "numpy":
            return v * float(v.detach().numpy().sum())
        if ask == "equal":
            return v * (2 if torch.equal(v, v) else 3)
        if ask == "tolist":
            return v * v.tolist()[0]
        if ask == "index":
            return v[(total > 0).long()] * [1, 2][(total > 0).long()]
        return v * {"float": float, "int": int, "item": Tensor.item, "format": lambda t: len(f"{t:.2f}")}[ask](
            weft.value(total) if ask == "item" else total
        )

    assert_equals_loop(fn, inputs(3)[:, :2])


def test_gradients_flow_through_all_flushes_in_one_backward() -> None:
    linear = nn.Linear(3, 3).double()

    def fn(x: Tensor) -> Tensor:
        first = linear(x)
        second = linear(first) * first if first.sum() > 0 else first - linear(first * 2)
        if second.sum() > 1:
            return second * first
        return weft.value(second) + first

    assert_equals_loop(fn, inputs())


def test_no_grad_in_one_example_does_not_leak_into_another() -> None:
    linear = nn.Linear(3, 1).double()

    def fn(x: Tensor, quiet: bool) -> Any:
        if quiet:
            with torch.no_grad():
                a = linear(x)
                a.item()
                inside = torch.is_grad_enabled()
                b = linear(x)
            return b, inside
        a = linear(x)
        a.item()
        inside = torch.is_grad_enabled()
        return linear(x) * a, inside

    results = weft.batched(fn, stack=False)(inputs(4), [True, False, True, False])
    assert [inside for _, inside in results] == [False, True, False, True]
    assert [row.requires_grad for row, _ in results] == [False, True, False, True]
    assert torch.is_grad_enabled()


def test_autocast_in_one_example_does_not_leak_into_another() -> None:
    linear = nn.Linear(3, 1)

    def fn(x: Tensor, low: bool) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
            linear(x).item()
            return torch.is_autocast_enabled("cpu"), linear(x).dtype == torch.bfloat16

    on, low = weft.batched(fn)(inputs(3).float(), [True, False, True])
    assert on.tolist() == low.tolist() == [True, False, True] and not torch.is_autocast_enabled("cpu")


def test_function_modes_of_an_example_stay_with_it() -> None:
    linear = nn.Linear(3, 1)

    def fn(x: Tensor, meta: bool) -> str:
        h = linear(x)
        if meta:
            with torch.device("meta"):
                h.item()
                return str(torch.arange(2).device)
        h.item()
        return str(torch.arange(2).device)

    assert weft.batched(fn)(inputs(3).float(), [False, True, False]) == ["cpu", "meta", "cpu"]
    assert str(torch.arange(2).device) == "cpu"


def test_generators_and_exceptions_of_the_users_code_work() -> None:
    linear = nn.Linear(3, 3).double()

    def grown(x: Tensor) -> Iterator[Tensor]:
        for _ in range(3):
            if x.sum() < 3:
                x = linear(x) + 1
                yield x

    def fn(x: Tensor) -> Any:
        try:
            total = sum(grown(linear(x)), start=linear(x))
            if total.sum() > 4:
                raise KeyError("large")
            return total
        except KeyError:
            return total * 2

    assert_equals_loop(fn, inputs())


def test_an_error_cancels_the_others_cleanly() -> None:
    linear, ended = nn.Linear(3, 1).double(), []

    def fn(x: Tensor, bad: bool) -> Tensor:
        try:
            if linear(x) > -100 and bad:
                raise LookupError("bad")
            return linear(x) * linear(x).item()
        finally:
            ended.append(bad)

    net = weft.batched(fn)
    with pytest.raises(LookupError) as error:
        net(inputs(4), [False, False, True, False])
    assert error.value.__notes__ == ["in example 2"] and sorted(ended) == [False, False, False, True]
    assert net(inputs(4), [False] * 4).shape == (4, 1)


def test_an_interrupt_leaves_no_state() -> None:
    linear = nn.Linear(3, 1).double()

    def fn(x: Tensor, stop: bool) -> Tensor:
        if linear(x) > -100 and stop:
            raise KeyboardInterrupt
        return linear(x)

    with pytest.raises(KeyboardInterrupt):
        weft.batched(fn)(inputs(3), [False, True, False])
    assert weft.batched(fn)(inputs(3), [False] * 3).shape == (3, 1)
    assert isinstance(linear(inputs(1)[0]), Tensor)


def test_without_greenlet_only_asking_for_numbers_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fibers, workers):
        monkeypatch.setattr(module, "greenlet", None)
    assert weft.batched(tree_net())(TREES).shape == (4, 3)
    with pytest.raises(weft.TraceError, match="needs fibers: install greenlet"):
        weft.batched(Grower().double())(inputs())


def test_sync_lets_examples_meet_again() -> None:
    linear = nn.Linear(3, 3).double()

    def fn(x: Tensor, n: int) -> Tensor:
        h = linear(x)
        for _ in range(n):
            h = linear(h) * (h.sum() > 0).item()
        weft.sync("grown")
        return h * 2 if h.sum() > 0 else h

    assert_equals_loop(fn, inputs(), [0, 3, 1, 2, 0, 4])
    weft.sync("nothing to wait for outside of a batched call")


def test_a_call_leaves_no_tensors_behind_for_the_garbage_collector() -> None:
    model = Grower().double()
    net = weft.batched(model)
    net(inputs())
    gc.collect()
    gc.disable()
    try:
        rows = [row.clone() for row in inputs()]
        fed = [weakref.ref(row) for row in rows]
        out, _ = net(rows)
        graph = weakref.ref(out)
        out.sum().backward()
        del rows, out
        assert [ref() for ref in fed] == [None] * 6 and graph() is None
    finally:
        gc.enable()


def test_inference_mode_inside_an_example() -> None:
    lin = nn.Linear(3, 3)

    def f(x: Any) -> Any:
        with torch.inference_mode():
            inner = lin(x)
            if inner.sum() > 0:
                inner = inner + 1
        return lin(x), inner

    outer, inner = weft.batched(f)(torch.randn(5, 3))
    assert outer.requires_grad
    assert not inner.requires_grad
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    with torch.inference_mode():
        assert torch.is_inference_mode_enabled()
