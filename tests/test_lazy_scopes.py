"""`weft.batching`: the scope form."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.testing
from lazy_parts import TREES, inputs, tree_net


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


def test_a_value_asked_for_without_gradients_leaves_those_of_the_scope() -> None:
    layer = nn.Linear(3, 3)
    with weft.batching():
        first = layer(torch.ones(3))
        with torch.no_grad():
            layer(first).sum().item()
    assert weft.value(first).requires_grad


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
