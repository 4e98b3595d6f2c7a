"""Processes that fork while a thread of theirs is inside a call, as loaders do beside somebody who evaluates."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import weft
from weft.graph.tracing import tracing
from weft.lazy.patches import PATCHES
from weft.lazy.state import state_of
from weft.run import spare
from weft.run.calls import Engine

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def status_of_child(work: Callable[[], bool]) -> int:
    """0: the work of a child was true; 1: it was not, or raised; otherwise the child was ended after some seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # later Pythons warn of forks beside threads, which is the subject here
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def first_call() -> bool:
    """A call of a fresh function is recorded, traced, planned and run."""
    layer = nn.Linear(2, 2)
    rows = torch.randn(3, 2)
    result = weft.batched(lambda row: layer(row).tanh() + row)(rows)
    return torch.allclose(result, layer(rows).tanh() + rows, atol=1e-5)


@contextmanager
def beside(work: Callable[[Callable[[], None]], object]) -> Generator[None, None, None]:
    """Inside, a thread is where its work, which is given a function, has called that."""
    there, over = threading.Event(), threading.Event()

    def stay() -> None:
        there.set()
        over.wait()

    other = threading.Thread(target=work, args=(stay,))
    other.start()
    there.wait()
    try:
        yield
    finally:
        over.set()
        other.join()


def test_a_child_has_the_functions_of_torch_while_a_thread_records() -> None:
    first_call()
    with beside(lambda stay: weft.batched(lambda x: (stay(), x * 2)[1])(torch.ones(1, 3))):
        assert any(vars(where)[name] is not theirs for where, name, theirs, _ in PATCHES)
        found = status_of_child(lambda: first_call() and all(vars(where)[name] is theirs for where, name, theirs, _ in PATCHES))
    assert found == 0


def test_a_fork_waits_while_a_thread_traces() -> None:
    """Tracing exchanges what torch does: a child would keep that."""
    first_call()
    is_over = []

    def trace(stay: Callable[[], None]) -> None:
        with tracing:
            begun.set()
            time.sleep(0.2)
            is_over.append(True)
        stay()

    begun = threading.Event()
    other = threading.Thread(
        target=lambda: begun.wait() and found.append(status_of_child(lambda: bool(is_over) and first_call()))
    )
    found: list[int] = []
    other.start()
    with beside(trace):
        other.join()
    assert found == [0]


def test_a_child_finds_locks_open_that_threads_held() -> None:
    model = nn.Linear(2, 2)
    net, rows = weft.batched(lambda row: model(row) + 1), torch.randn(3, 2)
    expected = net(rows)
    state = state_of(net.fn)
    locks = [state.lock, Engine.of(state.library).lock, spare._lock]

    def hold(stay: Callable[[], None]) -> None:
        with locks[0], locks[1], locks[2]:
            stay()

    with beside(hold):
        assert status_of_child(lambda: torch.equal(net(rows), expected)) == 0


def test_a_fork_inside_a_call_leaves_the_locks_of_its_own_thread_closed() -> None:
    """What the child goes on with still ends by opening them."""
    state = state_of(lambda row: row)
    with state.lock:
        assert status_of_child(lambda: _opens(state.lock)) == 0


def _opens(lock: threading.RLock) -> bool:
    lock.release()
    return lock.acquire(blocking=False)
