"""How a twin is timed: for any interpreter, with nothing of weft."""

import statistics
from collections.abc import Callable
from typing import TypeVar

Group = TypeVar("Group")


def timed(step: Callable[[Group], object], groups: list[Group], repeat: int, clock: Callable[[], float]) -> dict[str, float]:
    """Median and smallest over the rounds, in milliseconds; over several batches the median of theirs."""
    medians, smallest = [], []
    for group in groups:
        samples = []
        for turn in range(-1, repeat):
            start = clock()
            step(group)
            if turn >= 0:
                samples.append((clock() - start) * 1e3)
        medians.append(statistics.median(samples))
        smallest.append(min(samples))
    return {"median": statistics.median(medians), "minimum": statistics.median(smallest), "rounds": repeat}
