"""`cache=`: recordings that are kept, their keys, and what cannot be kept."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import weft
import weft.testing
from lazy_parts import TREES, Grower, assert_equals_loop, inputs, tree_net


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
    assert_equals_loop(net, TREES)
    assert_equals_loop(net, [*TREES, (1, 1)])


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
    for draw in (lambda: torch.arange(3.0).clone().normal_(), lambda: torch.Tensor(3).uniform_()):
        with pytest.raises(
            weft.TraceError, match=r"^cache=: (normal_|uniform_) draws its numbers into a real tensor, and they"
        ):
            weft.batched(lambda i, draw=draw: draw() * torch.ones(3), cache=True)([1])
    for make in (lambda: torch.empty(3), lambda: torch.zeros_like(torch.arange(3.0))):
        net = weft.batched(lambda i, make=make: nn.init.normal_(make()), cache=True)
        assert not torch.equal(net([1]), net([1]))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, k: int) -> torch.Tensor:
        return self.layer(self.scale * k)  # type: ignore[no-any-return]


def test_buffers_are_looked_up_after_they_and_modules_were_replaced() -> None:
    torch.manual_seed(0)
    model = Scaled()
    net = weft.batched(model, cache=True)
    for step in range(6):
        assert torch.allclose(net([1, 2]), torch.stack([model(1), model(2)]), atol=1e-6), step
        if step % 2:
            model.layer = nn.Linear(3, 3)
        else:
            model.scale = torch.randn(3)


class Held:
    """An example that is an object of the user's own: its tensors are data, not Values."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


def test_what_is_made_like_data_can_be_written_into() -> None:
    linear = nn.Linear(3, 3).double()

    def fn(held: Held) -> Any:
        x, h = held.x, linear(held.x)
        made = [x.new_zeros(2, 3), x.new_ones(2, 3), x.new_full((2, 3), 4.0), torch.zeros_like(x), torch.full_like(x, 2.0)]
        for each in made:
            each[0] = h if each.dim() > 1 else h[0]
        copy = torch.zeros_like(x) + x
        copy[1] = h[1]
        places = torch.zeros_like(x, dtype=torch.int64)  # data, which can be read where a recording is kept
        places[1] = 2
        return (*made, copy, h[int(places[1])])

    examples = [Held(x) for x in inputs()]
    kept, plain = weft.batched(fn, cache=id), weft.batched(fn)
    for found in (plain(examples), kept(examples), kept(examples)):
        for at, example in enumerate(examples):
            assert all(torch.allclose(one[at], other) for one, other in zip(found, fn(example), strict=True))
