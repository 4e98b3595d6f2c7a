"""Code that depends on the values of tensors: fibers, flushes, scopes, and recordings that are kept."""

from __future__ import annotations

import functools
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import weft
import weft.testing
from test_lazy import TREES, equivalent, tree_net
from weft.lazy import fibers


class Grower(nn.Module):
    """Goes on until its own score says stop; another path for large sums."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.step, self.score, self.other = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Any:
        h, steps = self.step(x), 0
        while self.score(h) < 0.5 and steps < 6:
            h = torch.tanh(self.step(h)) if h.sum().item() > 0 else self.other(h) + x
            steps += 1
        return h, steps


def inputs(n: int = 6) -> Tensor:
    return torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def test_branches_and_loops_on_values_equal_the_loop_with_gradients() -> None:
    equivalent(Grower().double(), inputs())


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

    equivalent(fn, inputs(3)[:, :2])


def test_gradients_flow_through_all_flushes_in_one_backward() -> None:
    linear = nn.Linear(3, 3).double()

    def fn(x: Tensor) -> Tensor:
        first = linear(x)
        second = linear(first) * first if first.sum() > 0 else first - linear(first * 2)
        if second.sum() > 1:
            return second * first
        return weft.value(second) + first

    equivalent(fn, inputs())


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

    equivalent(fn, inputs())


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
    monkeypatch.setattr(fibers, "greenlet", None)
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

    equivalent(fn, inputs(), [0, 3, 1, 2, 0, 4])
    weft.sync("nothing to wait for outside of a batched call")


def test_values_in_another_thread_raise() -> None:
    linear, seen = nn.Linear(3, 3).double(), []

    def fn(x: Tensor) -> Tensor:
        h = linear(x)

        def other() -> None:
            try:
                h.sum()
            except weft.TraceError as error:
                seen.append(str(error))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return h

    weft.batched(fn)(inputs(2))
    assert len(seen) == 2 and "another thread" in seen[0]


# The scope form


def test_a_scope_computes_at_its_end() -> None:
    model = tree_net()
    with weft.batching():
        outs = [model(tree) for tree in TREES]
        assert all(isinstance(out, weft.Value) for out in outs)
        total = torch.stack(outs).sum()
    expected = torch.stack([model(tree) for tree in TREES])
    assert torch.allclose(weft.value(torch.stack(outs)), expected)
    assert isinstance(outs[0] * 2, Tensor), "torch functions on values return tensors after the scope"
    total.backward()
    gradient = model.out.weight.grad.clone()
    model.zero_grad()
    expected.sum().backward()
    assert torch.allclose(gradient, model.out.weight.grad)


def test_a_scope_computes_when_a_number_is_needed() -> None:
    linear = nn.Linear(3, 1).double()
    x = inputs(1)[0]
    with weft.batching():
        h = linear(x)
        picked = h * 2 if h > 0 else h * 3
        later = picked + h
        assert isinstance(weft.value(h), Tensor)
    expected = linear(x)
    assert torch.allclose(weft.value(later), (expected * 2 if expected > 0 else expected * 3) + expected)


def test_after_an_error_in_a_scope_its_values_raise() -> None:
    linear = nn.Linear(3, 1)
    with pytest.raises(ZeroDivisionError), weft.batching():
        h = linear(torch.ones(3))
        1 / 0  # noqa: B018
    with pytest.raises(weft.TraceError, match="a recording that ended with an error"):
        h + 1
    with weft.batching():
        again = linear(torch.ones(3))
    assert torch.allclose(weft.value(again), linear(torch.ones(3)))


# Recordings that are kept


def test_kept_recordings_do_not_run_the_function_again() -> None:
    model, runs = tree_net(), []
    encode = model.encode
    model.encode = lambda tree: runs.append(tree) or encode(tree)  # type: ignore[func-returns-value, assignment]
    net = weft.batched(model, cache=True)
    first = net(TREES)
    count = len(runs)
    assert torch.allclose(net([TREES[2], TREES[0]]), first[[2, 0]]) and len(runs) == count
    with torch.no_grad():
        model.out.weight.mul_(2)
    assert not torch.allclose(net(TREES), first) and len(runs) == count, "parameters are looked up"
    model.eval()
    net(TREES)
    assert len(runs) == 2 * count, "training flags are part of the key"
    net.cache_clear()
    net(TREES)
    assert len(runs) == 3 * count


def test_kept_recordings_equal_the_loop() -> None:
    net = weft.batched(tree_net(), cache=str)
    equivalent(net, TREES)
    equivalent(net, [*TREES, (1, 1)])


def test_equal_keys_of_other_types_are_other_examples() -> None:
    weight = nn.Parameter(torch.ones(2))

    def fn(number: Any) -> Tensor:
        return weight * number + isinstance(number, float)

    found = weft.batched(fn, cache=True)([1, 1.0, True])
    assert torch.equal(found.detach(), torch.tensor([[1.0, 1.0], [2.0, 2.0], [1.0, 1.0]]))


def test_a_cache_refuses_what_it_cannot_keep() -> None:
    with pytest.raises(weft.TraceError) as error:
        weft.batched(Grower().double(), cache=lambda x: 1)(inputs())
    assert str(error.value).startswith("cache=: the code asked for the number in a Value") and error.value.__notes__ == [
        "in example 0"
    ]
    with pytest.raises(weft.TypeMismatch, match="cache=True: an example is not hashable"):
        weft.batched(lambda x: torch.zeros(2) + len(x), cache=True)([{"a": object()}, {"b": object()}])


def test_random_operations_are_kept_but_not_their_results() -> None:
    weight = nn.Parameter(torch.ones(40))
    net = weft.batched(lambda n: nn.functional.dropout(weight * n, 0.5), cache=True)
    assert not torch.equal(net([1, 2]), net([1, 2]))


def test_python_work_of_a_kept_step_does_not_grow_with_the_nodes() -> None:
    net = weft.batched(tree_net(), cache=True)
    small = [((1, 2), (3, 4)), ((5, 6), 7)]
    large: list[Any] = [small[0], small[1]]
    for _ in range(5):
        large = [(tree, tree) for tree in large]
    with torch.no_grad():
        for batch in (small, large):
            net(batch)
            net(batch)

    def calls(batch: list[Any]) -> int:
        seen = [0]
        sys.setprofile(lambda frame, event, arg: seen.__setitem__(0, seen[0] + (event == "call")))
        try:
            with torch.no_grad():
                net(batch)
        finally:
            sys.setprofile(None)
        return seen[0]

    levels = 5  # a deeper tree has more levels to sweep, each with a fixed number of calls
    assert calls(large) - calls(small) <= 12 * levels


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


def test_keys_of_different_functions_are_apart() -> None:
    lin = nn.Linear(3, 3)

    def f(pair: Any) -> Any:
        return lin(torch.full((3,), float(pair[0]) + 10 * pair[1]))

    first, second = weft.batched(f, cache=lambda p: p[0]), weft.batched(f, cache=lambda p: p[1])
    first([(1, 2)])
    torch.testing.assert_close(second([(2, 1)])[0], f((2, 1)))


def test_a_wrapper_keeps_its_own_recordings() -> None:
    lin = nn.Linear(3, 3)

    def f(i: int) -> Any:
        return lin(torch.full((3,), float(i)))

    @functools.wraps(f)
    def twice(i: int) -> Any:
        return f(i).sum() * 2

    weft.batched(f, cache=True)([1, 2])
    functools.update_wrapper(twice, f)
    torch.testing.assert_close(weft.batched(twice, cache=True)([1])[0], twice(1))
    assert weft.batched(twice)([]).shape == (0,)


def test_kept_recordings_follow_the_modules() -> None:
    model = nn.ModuleDict({"m": nn.Linear(3, 3)})

    def f(i: int) -> Any:
        return F.dropout(model["m"](torch.full((3,), float(i))), 1.0, model.training)

    net = weft.batched(f, cache=True)
    assert not net([1]).any()
    model.eval()
    torch.testing.assert_close(net([1])[0], f(1))
    for new in (nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 3)):
        model["m"] = new
        torch.testing.assert_close(net([1])[0], f(1))


def test_keys_tell_types_and_shapes() -> None:
    def f(a: Any) -> Any:
        return torch.tensor([1.0 if isinstance(a, bool) else 2.0 if isinstance(a, int) else 3.0]) * torch.ones(1)

    net = weft.batched(f, cache=int)
    assert [net([a]).item() for a in (True, 1, 1.0, True)] == [1.0, 2.0, 3.0, 1.0]
    message = (
        "cache=True: an example is not hashable, or holds a tensor; pass cache=key_fn, a function from an example to a key"
    )
    for example in (np.zeros((2, 3)), torch.zeros(3), [np.zeros(2)], (1, torch.zeros(()))):
        with pytest.raises(weft.TypeMismatch, match=f"^{message}"):
            weft.batched(lambda a: torch.ones(1) * 2, cache=True)([example])
    with pytest.raises(weft.TypeMismatch, match="cache: expected True or a function from an example to a key, got 5"):
        weft.batched(f, cache=5)


def test_no_drawn_numbers_are_kept() -> None:
    for draw in (lambda: torch.zeros_like(torch.arange(3.0)).normal_(), lambda: torch.Tensor(3).uniform_()):
        with pytest.raises(
            weft.TraceError, match=r"^cache=: (normal_|uniform_) draws its numbers into a real tensor, and they"
        ):
            weft.batched(lambda i, draw=draw: draw() * torch.ones(3), cache=True)([1])
    net = weft.batched(lambda i: nn.init.normal_(torch.empty(3)), cache=True)
    assert not torch.equal(net([1]), net([1]))


class Fivefold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 5


def test_functions_with_their_own_backward_keep_it() -> None:
    lin, alias = nn.Linear(3, 3), Fivefold.apply
    out = weft.batched(lambda x: lin(x) * 0 + Fivefold.apply(lin.bias))(torch.ones(2, 3))
    assert torch.autograd.grad(out.sum(), lin.bias)[0].tolist() == [10.0] * 3
    with pytest.raises(weft.TraceError, match=r"^autograd.Function on a Value would lose its backward; put the call into"):
        weft.batched(lambda x: alias(lin(x)))(torch.ones(2, 3))
    with pytest.raises(weft.TraceError, match=r"^apply of an autograd.Function, taken from its class before the recording"):
        weft.batched(lambda x: lin(x) + alias(lin.bias))(torch.ones(2, 3))


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


def test_tensors_of_the_model_are_not_changed_behind_the_recording() -> None:
    lin = nn.Linear(3, 3)
    model = nn.Module()
    model.register_buffer("seen", torch.zeros(3))

    def through_a_view(x: Any) -> Any:
        model.seen[1:].fill_(lin(x).sum())
        return lin(x)

    def count(x: Any) -> Any:
        model.seen += 1
        return lin(x)

    def used(x: Any) -> Any:
        model.seen += 1
        return lin(x) * model.seen

    with pytest.raises(
        weft.TraceError, match=r"^fill_: this Value is a view \(an index, slice or reshape\) of a tensor of the m"
    ):
        weft.batched(through_a_view)(torch.ones(2, 3))
    with pytest.raises(weft.TraceError, match=r"^add_ changed a tensor of the model of shape \[3\], which .* uses in the same"):
        weft.batched(used)(torch.ones(2, 3))
    model.seen.zero_()
    weft.batched(count)(torch.ones(2, 3))
    assert model.seen.tolist() == [2.0] * 3


class Keeps(nn.Module):
    """A module that puts its input where everybody can see it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        return self.layer(self.x)  # type: ignore[no-any-return]


def test_what_code_assigns_to_its_module_is_the_examples_own() -> None:
    model, xs = Keeps(), torch.randn(4, 3)
    for _ in range(3):
        one = torch.stack([model(x) for x in xs])
        torch.testing.assert_close(weft.batched(model)(xs), one)


def test_a_value_asked_for_without_gradients_leaves_those_of_the_scope() -> None:
    layer = nn.Linear(3, 3)
    with weft.batching():
        first = layer(torch.ones(3))
        with torch.no_grad():
            layer(first).sum().item()
    assert weft.value(first).requires_grad
