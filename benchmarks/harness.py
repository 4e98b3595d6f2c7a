"""One harness for all workloads: equal first, then timed.

Variants of one workload share their parameters. Before anything is timed, every variant's loss, outputs and gradients are
compared with the first one's; a difference raises and nothing is reported. Timing is interleaved, round robin with a
rotating start, so that drift of the machine falls on all alike; medians are reported, minima beside them.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

Mode = Literal["train", "infer"]
Role = Literal["one by one", "hand", "library", "products", "weft", "planning", "peer"]

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


class Unequal(Exception):
    """Two variants do not compute the same numbers, so their times may not be compared."""


@dataclass(frozen=True)
class Variant:
    """One way to compute a workload. `train` does forward, loss and backward and returns the loss; `infer` the outputs.

    `prepare` runs before each call and is not timed. `rows` brings the outputs into the order common to all variants.
    """

    name: str
    role: Role
    train: Callable[[], Tensor | None]
    infer: Callable[[], Tensor | None]
    rows: Callable[[Tensor], Tensor] | None = None
    prepare: Callable[[], None] | None = None


@dataclass(frozen=True)
class Instance:
    """One input of a workload, with every variant bound to it."""

    variants: Sequence[Variant]
    parameters: Mapping[str, nn.Parameter]
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one variant: the median over instances of each one's median over rounds, and the smallest likewise."""

    median: float
    minimum: float
    rounds: int


def training(loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A training step without optimiser: the loss and its backward pass."""

    def step() -> Tensor:
        value = loss()
        value.backward()
        return value.detach()

    return step


def _forget_gradients(instance: Instance) -> None:
    for parameter in instance.parameters.values():
        parameter.grad = None


def _observe(instance: Instance, variant: Variant) -> dict[str, Tensor]:
    _forget_gradients(instance)
    if variant.prepare:
        variant.prepare()
    loss = variant.train()
    assert loss is not None
    seen = {"loss": loss}
    for name, parameter in instance.parameters.items():
        seen[f"gradient of {name}"] = torch.zeros(()) if parameter.grad is None else parameter.grad
    if variant.prepare:
        variant.prepare()
    with torch.inference_mode():
        out = variant.infer()
    assert out is not None
    seen["outputs"] = out if variant.rows is None else variant.rows(out)
    return seen


def difference(got: Tensor, wanted: Tensor) -> float:
    """Largest absolute difference, relative to the largest magnitude of what is wanted where that is above one."""
    if got.shape != wanted.shape:
        return float("inf")
    gap = (got - wanted).abs().max().item() / max(1.0, wanted.abs().max().item())
    return gap if gap == gap else float("inf")


def check(instances: Sequence[Instance], dtype: torch.dtype) -> float:
    """Compare all variants of all instances; the largest difference found, or `Unequal`."""
    worst = 0.0
    for instance in instances:
        variants = [v for v in instance.variants if v.role not in ("products", "planning", "peer")]
        wanted = _observe(instance, variants[0])
        for variant in variants[1:]:
            got = _observe(instance, variant)
            for name, tensor in wanted.items():
                gap = difference(got[name], tensor)
                if gap > TOLERANCE[dtype]:
                    raise Unequal(f"{variant.name}: {name} differs from {variants[0].name} by {gap:.2g} in {dtype}")
                worst = max(worst, gap)
        _forget_gradients(instance)
    return worst


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""The time that passes; or, where others use the machine too, the time for which this process had a processor."""


def _time(instance: Instance, variant: Variant, mode: Mode, clock: Callable[[], float]) -> float:
    _forget_gradients(instance)
    if variant.prepare:
        variant.prepare()
    if mode == "train":
        start = clock()
        variant.train()
        return clock() - start
    with torch.inference_mode():
        start = clock()
        variant.infer()
        return clock() - start


def measure(
    instances: Sequence[Instance], mode: Mode, repeat: int, warmup: int = 2, slow: int = 3, clock: str = "wall"
) -> dict[str, Timing]:
    """Interleaved timing. One by one, which is slow and whose ratio is large, runs `slow` rounds at most."""
    names = [variant.name for variant in instances[0].variants]
    samples: dict[str, list[list[float]]] = {name: [[] for _ in instances] for name in names}
    gc.collect()
    gc.disable()
    try:
        for turn in range(-warmup, repeat):
            for at, instance in enumerate(instances):
                shift = turn % len(names)
                for variant in [*instance.variants[shift:], *instance.variants[:shift]]:
                    if variant.role == "one by one" and not -1 <= turn < slow:
                        continue
                    seconds = _time(instance, variant, mode, CLOCKS[clock])
                    if turn >= 0:
                        samples[variant.name][at].append(seconds * 1e3)
            gc.collect()
    finally:
        gc.enable()
    return {
        name: Timing(
            median=statistics.median(statistics.median(per) for per in taken),
            minimum=statistics.median(min(per) for per in taken),
            rounds=len(taken[0]),
        )
        for name, taken in samples.items()
    }


def best_hand(instance: Instance, timings: Mapping[str, Timing]) -> str:
    """The fastest of the hand-batched forms: what "hand-batched" means in a report; one by one where nobody batched by hand."""
    hands = [variant.name for variant in instance.variants if variant.role == "hand"]
    hands = hands or [variant.name for variant in instance.variants if variant.role == "one by one"]
    return min(hands, key=lambda name: timings[name].median)
