"""Running the examples of a batch, each in its own fiber, so that any of them may wait for a number.

A worker runs one example after the other. When code needs the number behind a value, its worker stops there and another one
takes up the examples that are left. When every example is finished or waiting, one flush computes everything that is pending,
and the waiting ones go on. Torch keeps its function modes, grad mode and autocast per thread, not per fiber: they are put back
at every switch.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import _pop_mode, _push_mode

from weft.errors import TraceError
from weft.lazy.blame import name_example
from weft.lazy.boundary import bounded
from weft.lazy.flush import Flush, alive
from weft.lazy.leftover import left_over
from weft.lazy.mode import Recording
from weft.lazy.ops import PLAIN, Setting
from weft.lazy.patches import intercepted
from weft.lazy.refusals import explained
from weft.lazy.tape import Tape, active
from weft.lazy.value import Value
from weft.run.options import Options

try:
    import greenlet  # type: ignore[import-untyped]  # it ships none
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

    __slots__ = ("example", "modes", "name", "setting", "worker")

    def __init__(self, worker: Any, example: int, setting: Setting, modes: Sequence[Any], name: str | None) -> None:
        self.worker, self.example, self.setting, self.modes, self.name = worker, example, setting, modes, name


class Fibers:
    """One batch: `start(i)` runs example i and returns its result."""

    def __init__(self, tape: Tape, count: int, start: Callable[[int], Any], options: Options) -> None:
        self.tape, self.count, self.start, self.options = tape, count, start, options
        self.results: list[Any] = [None] * count
        self.waiting: list[Waiting] = []
        self.held: list[Waiting] = []
        """Examples that wait at a name."""
        self.needed: list[Value] = []
        """What the waiting examples ask for."""
        self.completes = False
        """The next flush leaves nothing for later."""
        self.todo = 0
        self.example = -1
        self.error: BaseException | None = None
        self.flushes = 0
        self.hub: Any = None
        tape.driver = self

    def run(self) -> list[Any]:
        """Run all examples; what is pending at the end is left to the caller."""
        with intercepted():
            try:
                self._phase(self._start_all)
                while self.waiting or self.held:
                    if self.waiting:
                        self._flush()
                    else:
                        self._release()
                    self._phase(self._resume_all)
            except BaseException:
                self.tape.ended = "failed"
                self._cancel()
                raise
        return self.results

    def _phase(self, run: Callable[[], None]) -> None:
        """Let user code run, recorded."""
        before = active.tape
        self.mode = Recording(self.tape)
        try:
            active.tape = self.tape
            with self.mode:
                self.depth = self.tape.depth = torch._C._len_torch_function_stack()
                run()
        finally:
            active.tape = before
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def _start_all(self) -> None:
        if greenlet is None:
            return self._work()
        self.hub = greenlet.getcurrent()
        while self.todo < self.count and self.error is None:
            worker = _pool.idle.pop() if _pool.idle else greenlet.greenlet(bounded(_worker))
            worker.parent = self.hub
            worker.gr_context = contextvars.copy_context()
            worker.switch(self)
        return None

    def _resume_all(self) -> None:
        waiting, self.waiting = self.waiting, []
        for number, stopped in enumerate(waiting):
            if self.error is not None:
                self.waiting += waiting[number:]
                return
            self.example = stopped.example
            self.tape.bound(stopped.example)
            if stopped.setting is not PLAIN or stopped.modes:
                self._restore(stopped)
            stopped.worker.switch()

    def _work(self) -> None:
        """Examples one after the other, for as long as there are any."""
        while self.todo < self.count and self.error is None:
            example = self.example = self.todo
            self.todo += 1
            self.tape.bound(example)
            try:
                self.results[example] = self.start(example)
            except BaseException as error:
                self.error = explained(error)
                name_example(self.error, example)

    # Stopping and going on

    def need(self, value: Value) -> None:
        """Stop this example until the value has been computed."""
        self.needed.append(value)
        self._stop(None)

    def complete(self) -> None:
        """Stop this example until everything that was recorded so far has been computed."""
        self.tape.put_back()
        self.completes = True
        self._stop(None)

    def sync(self, name: str) -> None:
        """Stop this example until every other one is finished or has arrived at this name, too."""
        self._stop(name)

    def _stop(self, name: str | None) -> None:
        if greenlet is None:
            raise TraceError("code that depends on the values of tensors needs fibers: install greenlet")
        worker, tape = greenlet.getcurrent(), self.tape
        if self.hub is None or worker is self.hub:
            raise TraceError("a value is needed outside of the function that is run batched")
        depth = torch._C._len_torch_function_stack()
        modes = () if depth == self.depth else self._set_aside(depth)
        stopped = Waiting(worker, self.example, tape.setting, modes, name)
        if tape.setting is not PLAIN:
            _set(tape, PLAIN)
        (self.waiting if name is None else self.held).append(stopped)
        self.hub.switch()

    def _set_aside(self, depth: int) -> Sequence[Any]:
        """Function modes that the example's code has pushed, or None where ours is not on the stack just now."""
        if depth < self.depth:
            _push_mode(self.mode)
            return [None]
        return [_pop_mode() for _ in range(depth - self.depth)]

    def _restore(self, stopped: Waiting) -> None:
        if stopped.setting is not PLAIN:
            _set(self.tape, stopped.setting)
        if stopped.modes == [None]:
            _pop_mode()
            return
        for mode in reversed(stopped.modes):
            _push_mode(mode)

    def _flush(self) -> None:
        tape = self.tape
        if tape.type:
            busy = {stopped.example for stopped in (*self.waiting, *self.held)}
            left = None if self.completes else left_over(tape, busy, self.needed)
            Flush(tape, alive(tape), left).run(self.options)
            self.flushes += 1
        self.needed, self.completes = [], False
        tape.state.kept["needs values"] = True
        tape.track()

    def _release(self) -> None:
        """All that are left wait at names: those at the name that was reached first go on."""
        name = self.held[0].name
        self.waiting = [stopped for stopped in self.held if stopped.name == name]
        self.held = [stopped for stopped in self.held if stopped.name != name]

    def _cancel(self) -> None:
        """End the examples that are waiting; their `finally` blocks run, and record nothing."""
        waiting, self.waiting, self.held = self.waiting + self.held, [], []
        before, active.tape = active.tape, None
        try:
            for stopped in waiting:
                stopped.worker.parent = greenlet.getcurrent()
                stopped.worker.throw(greenlet.GreenletExit)
        finally:
            active.tape = before


def _worker(batch: Fibers | None) -> None:
    """A worker's whole life: batch after batch, in the thread that made it."""
    while batch is not None:
        batch._work()
        if len(_pool.idle) >= _MOST_IDLE:
            return
        _pool.idle.append(greenlet.getcurrent())
        hub, batch = batch.hub, None
        batch = hub.switch()


def _set(tape: Tape, setting: Setting) -> None:
    """Put torch into the state of a setting."""
    grad = tape.ambient_grad and not setting.detached
    torch._C._set_grad_enabled(grad)
    kind = tape.autocast_kind
    enabled, dtype = tape.ambient_autocast if setting.autocast is None else (setting.autocast[2], setting.autocast[1])
    torch.set_autocast_enabled(kind, enabled)
    torch.set_autocast_dtype(kind, dtype)
    tape.set_context()
