"""Sharing the rows of a kernel among as many threads as torch uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch

WORTH = 1 << 17
"""Numbers to compute below which a second thread costs more than it saves."""

_pools: dict[int, ThreadPoolExecutor] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # threads do not survive a fork


def over_rows(kernel: Callable[..., None], numbers: int) -> Callable[..., None]:
    """Call `kernel(first, last, *pointers)` for all of n rows, of which each computes so many numbers."""
    enough = max(2, WORTH // max(numbers, 1))

    def run(n: int, *pointers: int) -> None:
        if n < enough or torch.get_num_threads() == 1:
            kernel(0, n, *pointers)
        else:
            _shared(kernel, n, enough, pointers)

    return run


def _shared(kernel: Callable[..., Any], n: int, enough: int, pointers: tuple[int, ...]) -> None:
    threads = min(torch.get_num_threads(), -(-n // enough) + 1)
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads - 1, "weft")
    share = -(-n // threads)
    others: list[Future[None]] = []
    try:
        last = _hand_out(_pools[threads], kernel, range(share, n, share), n, pointers, others)
        kernel(0, last, *pointers)
    finally:
        _finish(others)


def _hand_out(
    pool: ThreadPoolExecutor,
    kernel: Callable[..., Any],
    starts: range,
    n: int,
    pointers: tuple[int, ...],
    others: list[Future[None]],
) -> int:
    """Give other threads what begins at these rows, from the last on; how many rows are left."""
    for first in reversed(starts):
        try:
            others.append(pool.submit(kernel, first, n, *pointers))
        except RuntimeError as error:
            if "interpreter shutdown" not in str(error):
                raise
            break  # the main thread has ended: no others begin any more
        n = first
    return n


def _finish(others: Sequence[Future[None]]) -> None:
    """Wait, whatever comes in between: what they write into must not go away before."""
    error: BaseException | None = None
    for other in others:
        while not other.done():
            try:
                wait([other])
            except BaseException as interrupt:
                error = interrupt
    if error is not None:
        raise error
    for other in others:
        other.result()
