"""Sharing the rows of a kernel among as many threads as torch uses."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
    others = [_pools[threads].submit(kernel, first, min(first + share, n), *pointers) for first in range(share, n, share)]
    kernel(0, share, *pointers)
    for other in others:
        other.result()
