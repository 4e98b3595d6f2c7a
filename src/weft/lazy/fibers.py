"""Running the examples of a batch, each in its own fiber, so that any of them may wait for a number.

A worker runs one example after the other. When code needs the number behind a value, its worker stops there and another one
takes up the examples that are left. When every example is finished or waiting, one flush computes everything that is pending,
and the waiting ones go on. Torch keeps its function modes, grad mode and autocast per thread, not per fiber: they are put back
at every switch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import _pop_mode, _push_mode

from weft.errors import TraceError
from weft.lazy.flush import Flush
from weft.lazy.leftover import everything, selected
from weft.lazy.mode import Recording
from weft.lazy.ops import PLAIN, Setting
from weft.lazy.patches import intercepted
from weft.lazy.tape import Tape, active
from weft.lazy.value import Value
from weft.lazy.workers import Examples, Waiting, greenlet
from weft.run.options import Options

_depth = torch._C._len_torch_function_stack


class Fibers:
    """One batch: `start(i)` runs example i and returns its result."""

    def __init__(self, tape: Tape, count: int, start: Callable[[int], Any], options: Options) -> None:
        self.tape, self.options = tape, options
        self.examples = self.running = Examples(count, start)
        """All examples, and those among which the running one is: the same, or those of a call inside one."""
        self.waiting: list[Waiting] = []
        self.held: list[Waiting] = []
        """Examples that wait at a name."""
        self.needed: list[Value] = []
        """What the waiting examples ask for."""
        self.completes = False
        """The next flush leaves nothing for later."""
        self.resuming: deque[Waiting] = deque()
        """Those that go on in this phase, one after the other."""
        self.example = -1
        self.flushes = 0
        self.hub: Any = None
        """Who goes on when the running example stops."""
        tape.driver = self

    def run(self) -> list[Any]:
        """Run all examples; what is pending at the end is left to the caller."""
        with intercepted():
            try:
                self._phase(self._start_all)
                while self.waiting or self.held or self.resuming:
                    if self.waiting:
                        self._flush()
                    elif not self.resuming:
                        self._release()
                    self._phase(self._resume_all)
            except BaseException:
                self.tape.ended = "failed"
                self._cancel()
                raise
        return self.examples.results

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
        if self.examples.error is not None:
            error, self.examples.error = self.examples.error, None
            raise error

    def _start_all(self) -> None:
        self.hub = None if greenlet is None else greenlet.getcurrent()
        self.examples.start_all(self)

    def _resume_all(self) -> None:
        self.resuming.extend(self.waiting)
        self.waiting = []
        resuming, examples = self.resuming, self.examples
        while resuming and examples.error is None:
            stopped = resuming.popleft()
            self.go_on(stopped)
            stopped.worker.switch()

    def go_on(self, stopped: Waiting) -> None:
        """Put everything into the state in which an example stopped."""
        self.running, self.example, tape = stopped.running, stopped.example, self.tape
        tape.bounds.append((len(tape.type), stopped.example))
        if stopped.setting is not PLAIN or stopped.modes:
            self._restore(stopped)

    # Examples of calls inside an example

    def inner(self, count: int, start: Callable[[int], Any]) -> list[Any]:
        """The results of examples inside the running one; other examples go on while some of these wait."""
        if greenlet is None:
            return [start(number) for number in range(count)]
        here, hub = self.set_aside(), self.hub
        examples = Examples(count, start, here)
        self.hub = here.worker
        try:
            examples.start_all(self)
        finally:
            self.hub = hub
        if examples.open and examples.error is None:
            examples.is_awaited = True
            hub.switch()
        else:
            self.go_on(here)
        if examples.error is not None:
            self._drop(examples)
            raise examples.error
        return examples.results

    def finished(self, examples: Examples) -> None:
        """All examples of an inner call are finished, or one has failed: who waits for them goes on in this phase."""
        if examples.is_awaited and examples.within is not None:
            examples.is_awaited = False
            self.resuming.append(examples.within)

    def _drop(self, examples: Examples) -> None:
        """End those examples of an inner call that still wait after one has failed."""
        here, hub = self.set_aside(), self.hub
        self.hub = here.worker
        try:
            while found := [each for each in (*self.waiting, *self.held, *self.resuming) if each.is_of(examples)]:
                for queue in (self.waiting, self.held, self.resuming):
                    if found[0] in queue:
                        queue.remove(found[0])
                self.go_on(found[0])
                self._end(found[0])
        finally:
            self.hub = hub
        self.go_on(here)

    # Stopping and going on

    def need(self, value: Value) -> None:
        """Stop this example until the value has been computed."""
        self.waiting.append(self.set_aside())
        self.needed.append(value)
        self.hub.switch()

    def complete(self) -> None:
        """Stop this example until everything that was recorded so far has been computed."""
        self.waiting.append(self.set_aside())
        self.completes = True
        self.hub.switch()

    def sync(self, name: str) -> None:
        """Stop this example until every other one is finished or has arrived at this name, too."""
        self.held.append(self.set_aside(name))
        self.hub.switch()

    def set_aside(self, name: str | None = None) -> Waiting:
        """What the running example needs to go on later; torch is as if none were running."""
        if greenlet is None:
            raise TraceError("code that depends on the values of tensors needs fibers: install greenlet")
        worker, tape, depth = greenlet.getcurrent(), self.tape, _depth()
        if self.hub is None or worker is self.hub:
            raise TraceError("a value is needed outside of the function that is run batched")
        modes = () if depth == self.depth else self._modes_aside(depth)
        stopped = Waiting(worker, self.running, self.example, tape.setting, modes, name)
        if tape.setting is not PLAIN:
            _set(tape, PLAIN)
        return stopped

    def _modes_aside(self, depth: int) -> Sequence[Any]:
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
        if tape.type or tape.left:
            busy = [stopped.example for stopped in (*self.waiting, *self.held)]
            chosen = everything(tape) if self.completes else selected(tape, busy, self.needed)
            Flush(chosen).run(self.options)
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
        before, active.tape = active.tape, None
        try:
            while waiting := [*self.waiting, *self.held, *self.resuming]:
                self.waiting, self.held, self.resuming = [], [], deque()
                for stopped in waiting:
                    self._end(stopped)
        finally:
            active.tape = before

    @staticmethod
    def _end(stopped: Waiting) -> None:
        stopped.worker.parent = greenlet.getcurrent()
        stopped.worker.throw(greenlet.GreenletExit)


def _set(tape: Tape, setting: Setting) -> None:
    """Put torch into the state of a setting."""
    grad = tape.ambient_grad and not setting.detached
    torch._C._set_grad_enabled(grad)
    kind = tape.autocast_kind
    enabled, dtype = tape.ambient_autocast if setting.autocast is None else (setting.autocast[2], setting.autocast[1])
    torch.set_autocast_enabled(kind, enabled)
    torch.set_autocast_dtype(kind, dtype)
    tape.set_context()
