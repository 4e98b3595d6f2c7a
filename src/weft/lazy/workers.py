"""Workers: fibers that run examples one after the other, until one of these stops.

Examples of a call inside an example are run the same way. The example that makes the call is the one to go on whenever such a
worker stops, so it starts the next one; when all are started and some wait, it waits for them.

    hub       starts example 0, which calls            hub: flush, goes on with a, b, then with 0
    example 0    starts a  ... stops                        a ... finished
                 starts b  ... stops                        b ... finished: 0 may go on
                 waits for both                             0 ... finished
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from weft.lazy.blame import name_example, name_path
from weft.lazy.boundary import bounded
from weft.lazy.ops import Setting
from weft.lazy.refusals import explained

if TYPE_CHECKING:
    from weft.lazy.fibers import Fibers

try:
    import greenlet as greenlet  # type: ignore[import-untyped]  # it ships none
except ImportError:  # everything but asking for numbers works without
    greenlet = None


class _Pool(threading.local):
    """Idle workers of this thread: a new one costs as much as twenty switches."""

    def __init__(self) -> None:
        self.idle: list[Any] = []


_pool = _Pool()
_MOST_IDLE = 4096


class Waiting:
    """An example that stopped, and the state of torch that its code had made."""

    __slots__ = ("example", "modes", "name", "running", "setting", "worker")

    def __init__(
        self, worker: Any, running: Examples, example: int, setting: Setting, modes: Sequence[Any], name: str | None
    ) -> None:
        self.worker, self.running, self.example = worker, running, example
        self.setting, self.modes, self.name = setting, modes, name

    def is_of(self, examples: Examples) -> bool:
        """Whether it is one of these, or inside one of them."""
        running = self.running
        while running is not examples and running.within is not None:
            running = running.within.running
        return running is examples


class Examples:
    """The examples of one call: `start(i)` runs example i. `within`: the example in which the call is made, stopped there."""

    def __init__(self, count: int, start: Callable[[int], Any], within: Waiting | None = None) -> None:
        self.count, self.start, self.within = count, start, within
        self.results: list[Any] = [None] * count
        self.todo = 0
        self.open = count
        """How many are not finished."""
        self.is_awaited = False
        self.error: BaseException | None = None

    def start_all(self, fibers: Fibers) -> None:
        """Let workers run them, until each is finished or has stopped."""
        if greenlet is None:
            self.work(fibers)
            return
        hub = greenlet.getcurrent()
        while self.todo < self.count and self.error is None:
            worker = _pool.idle.pop() if _pool.idle else greenlet.greenlet(bounded(_worker))
            worker.parent = hub
            worker.gr_context = contextvars.copy_context()
            worker.switch((fibers, self))

    def work(self, fibers: Fibers) -> None:
        """Run examples one after the other, for as long as there are any."""
        while self.todo < self.count and self.error is None:
            number = self.todo
            self.todo += 1
            self._begin(fibers, number)
            try:
                self.results[number] = self.start(number)
            except BaseException as error:
                if self.error is None:  # those that are ended because of the first error come by here, too
                    self.error = error if self.within is not None else explained(error)
                if self.within is None:
                    name_example(self.error, number)
                    name_path(self.error, error, next(iter(fibers.tape.state.roots), None))
            self.open -= 1
            if self.within is not None and fibers.tape.ended is None:
                fibers.set_aside()
        if self.error is not None or not self.open:
            fibers.finished(self)

    def _begin(self, fibers: Fibers, number: int) -> None:
        if self.within is not None:
            fibers.go_on(self.within)
        else:
            fibers.example = number
            fibers.tape.bound(number)
        fibers.running = self


def _worker(batch: tuple[Fibers, Examples] | None) -> None:
    """A worker's whole life: batch after batch, in the thread that made it."""
    while batch is not None:
        fibers, examples = batch
        examples.work(fibers)
        if len(_pool.idle) >= _MOST_IDLE:
            return
        _pool.idle.append(greenlet.getcurrent())
        hub = fibers.hub
        batch = fibers = examples = None  # type: ignore[assignment]  # an idle worker holds nothing
        batch = hub.switch()
