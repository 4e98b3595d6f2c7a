"""Times on a GPU: wall time of back-to-back steps, time of the host alone, and time of the device's kernels."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile

import weft
from weft.api.repeat import Repeat
from weft.run.gpu.execution import GpuExecution
from weft.run.upload import Uploaded

T = TypeVar("T")


@contextmanager
def one_thread_on_a_quiet_core() -> Iterator[None]:
    """Steps run in one thread, backward passes too: the change of threads takes its time, and helps nobody here.

    And on the core on which Python is fastest at this moment: where cores are shared with others, some are half as fast.
    """
    every = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(every, key=_loop_on)})
        with torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        os.sched_setaffinity(0, every)


def _loop_on(core: int) -> float:
    """Seconds of a little Python on a core: of its own loop, which suffers more from a busy neighbour than one in C does."""
    os.sched_setaffinity(0, {core})
    found = []
    for _ in range(5):
        start, total = time.perf_counter(), 0
        for number in range(50_000):
            total += number
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def walls(steps: Mapping[str, Callable[[T], None]], batches: Sequence[T], rounds: int = 7) -> dict[str, float]:
    """Microseconds of one step of each kind: the median over rounds of steps that follow each other on changing batches.

    Rounds of the different kinds take turns, so that a slow moment of the machine meets all of them.
    """
    with one_thread_on_a_quiet_core():
        return _walls(steps, batches, rounds)


def _walls(steps: Mapping[str, Callable[[T], None]], batches: Sequence[T], rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        for batch in [*batches, *batches]:
            step(batch)
    torch.cuda.synchronize()
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            for batch in batches:
                step(batch)
            torch.cuda.synchronize()
            found[name].append((time.perf_counter() - start) / len(batches) * 1e6)
    return {name: statistics.median(times) for name, times in found.items()}


def host(
    step: Callable[[T], None], batches: Sequence[T], parameters: Sequence[torch.Tensor] = (), rounds: int = 3
) -> tuple[float, float]:
    """Microseconds that the host is busy with one step, the device being idle when it starts: the median of all rounds, and
    that of the quietest. Gradients of parameters, which optimisers let go of, are gone by then. Every round is on the core
    that is fastest by then: where machines are shared, neighbours come and go."""
    found = []
    for _ in range(rounds):
        with one_thread_on_a_quiet_core():
            step(batches[-1])
            found.append([_busy(step, batch, parameters) for batch in batches])
    return statistics.median([time for times in found for time in times]), min(map(statistics.median, found))


def _busy(step: Callable[[T], None], batch: T, parameters: Sequence[torch.Tensor]) -> float:
    for parameter in parameters:
        parameter.grad = None
    torch.cuda.synchronize()
    start = time.perf_counter()
    step(batch)
    return (time.perf_counter() - start) * 1e6


PARTS: dict[str, Sequence[tuple[type, str]]] = {
    "planning": [(weft.Graph, "batch"), (Repeat, "_plan")],
    "copy": [(Uploaded, "__init__")],
    "launches": [(GpuExecution, "_whole")],
}
"""Of the host's time, by the functions in which it is spent; launches with memory for their results."""


def host_parts(step: Callable[[T], None], batches: Sequence[T], rounds: int = 3) -> dict[str, float]:
    """Microseconds of each part in one step. The rest are torch's module call, its autograd, and what finds out that a call is
    one that came before."""
    spent = dict.fromkeys(PARTS, 0.0)
    found: dict[str, list[float]] = {name: [] for name in PARTS}
    with ExitStack() as patches:
        for name, functions in PARTS.items():
            for owner, attribute in functions:
                patches.enter_context(mock.patch.object(owner, attribute, _timed(owner, attribute, spent, name)))
        for _ in range(rounds):
            with one_thread_on_a_quiet_core():
                for batch in [batches[-1], *batches]:
                    torch.cuda.synchronize()
                    spent.update(dict.fromkeys(PARTS, 0.0))
                    step(batch)
                    for name, seconds in spent.items():
                        found[name].append(seconds * 1e6)
    return {name: statistics.median(times) for name, times in found.items()}


def _timed(owner: type, attribute: str, spent: dict[str, float], name: str) -> Any:
    """A function of a class that adds its time to what is spent."""
    function = getattr(owner, attribute)

    def timed(*given: Any, **named: Any) -> Any:
        start = time.perf_counter()
        result = function(*given, **named)
        spent[name] += time.perf_counter() - start
        return result

    return timed


def device(step: Callable[[T], None], batches: Sequence[T]) -> tuple[float, int, dict[str, float]]:
    """Microseconds of kernels in one step, how many there are, and the time of each kind, the longest first."""
    step(batches[0])
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], acc_events=True) as trace:
        for batch in batches:
            step(batch)
        torch.cuda.synchronize()
    kinds: dict[str, float] = {}
    count = 0
    for event in trace.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kinds[event.name] = kinds.get(event.name, 0.0) + event.device_time / len(batches)
            count += 1
    ordered = dict(sorted(kinds.items(), key=lambda item: -item[1]))
    return sum(kinds.values()), round(count / len(batches)), ordered


def launches(step: Callable[[T], None], batch: T, path: Path) -> dict[str, int]:
    """How often one step launches sweeps and waits for the device; its trace is written to a file."""
    step(batch)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], acc_events=True) as trace:
        step(batch)
    torch.cuda.synchronize()
    names = [event.name for event in trace.events()]
    trace.export_chrome_trace(str(path))
    waits = sum("Synchronize" in name and "cudaDeviceSynchronize" not in name for name in names)
    return {"sweep launches": names.count("sweep"), "waits": waits, "kernel launches": sum("LaunchKernel" in n for n in names)}


def memory(step: Callable[[T], None], batches: Sequence[T]) -> int:
    """Bytes of device memory at the highest point of a step, above what there was before: bytes that were asked for. What is
    counted as allocated depends on earlier steps, too: a block at hand that is up to 1 MB larger is used as a whole."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    for batch in batches:
        step(batch)
    torch.cuda.synchronize()
    return int(torch.cuda.memory_stats()["requested_bytes.all.peak"] - before)
