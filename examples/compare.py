"""Run an example: batched against a loop over its examples, forward and backward. `python -m examples.tree_lstm`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import weft
import weft.testing
from weft.lazy.nests import flatten


def total(result: Any) -> Tensor:
    """One number to differentiate: the sum of all floating-point results."""
    leaves: list[Any] = []
    flatten(result, leaves)
    return torch.stack([leaf.sum().double() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]).sum()


def seconds(step: Callable[[], Any], times: int = 5) -> float:
    """The shortest of some runs."""
    found = []
    for _ in range(times):
        started = time.perf_counter()
        step()
        found.append(time.perf_counter() - started)
    return min(found)


def compare(example: Callable[[], tuple[Any, ...]]) -> float:
    """Check that batched equals the loop, and print how long a training step takes each way; returns how much faster it is."""
    fn, *inputs = example()
    weft.testing.assert_equivalent(fn, *inputs, policies=["auto"], backends=["auto"], tolerance=1e-4)
    net = weft.batched(fn, stack=False)
    batched = seconds(lambda: total(net(*inputs)).backward())
    looped = seconds(lambda: sum(total(fn(*each)) for each in zip(*inputs, strict=True)).backward())  # type: ignore[union-attr]
    print(f"{type(fn).__name__}: {len(inputs[0])} examples, loop {looped * 1e3:.1f} ms, batched {batched * 1e3:.1f} ms", end="")
    print(f" ({looped / batched:.1f}x), outputs and gradients equal")
    return looped / batched
