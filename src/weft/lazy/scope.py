"""`weft.batching`: the scope form. Operations inside are recorded; they run when the scope ends or a number is needed."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any
from weakref import proxy

import torch
from torch._C._dynamo.eval_frame import set_eval_frame
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode

from weft.errors import TraceError, TypeMismatch
from weft.graph.transforms import is_transformed
from weft.lazy.flush import Flush
from weft.lazy.leftover import everything
from weft.lazy.mode import Recording
from weft.lazy.patches import UndoRecording, intercepted
from weft.lazy.refusals import explained
from weft.lazy.shortcuts import GUARDED, shortcut
from weft.lazy.state import State
from weft.lazy.tape import Tape, active
from weft.lazy.value import Value
from weft.run.options import Options


class batching:
    """A scope in which operations are recorded and run together: at its end, or when one of their numbers is needed.

    After the scope Values are as good as tensors: torch functions on them return tensors, `v.backward()` works,
    `weft.value(nest)` replaces them. After an exception in the scope they raise. Keywords are `granularity` and the options
    of every batched call.

    >>> import torch, weft
    >>> weight = torch.ones(3, requires_grad=True)
    >>> with weft.batching():
    ...     losses = [(weight * k).sum() for k in range(4)]
    ...     loss = torch.stack(losses).sum()
    >>> loss.backward()
    >>> weight.grad
    tensor([6., 6., 6.])
    """

    def __init__(self, *, granularity: str = "auto", device: str = "cpu", **options: Any) -> None:
        if granularity not in ("auto", "operator", "cell"):
            raise TypeMismatch(f"granularity: expected one of 'auto', 'operator', 'cell', got {granularity!r}")
        self.granularity, self.device, self.options = granularity, device, Options.of(options)
        self.tape: Tape | None = None

    def __enter__(self) -> batching:
        if self.tape is not None:
            raise TraceError("this weft.batching scope is in use; make another one")
        self.outer = active.tape
        if self.outer is None:
            self.frames = set_eval_frame(None)  # torch.compile would look at every function that runs in the scope
            self.undo = UndoRecording()
            try:
                if is_transformed():
                    set_eval_frame(self.frames)
                    return self
                with self.undo, UndoRecording():
                    self._begin()
            except BaseException:
                self._abandon()
                raise
        return self

    def _begin(self) -> None:
        self.tape = tape = Tape(_state(self.granularity), self.granularity, self.device)
        tape.driver, tape.records_data = proxy(self), True  # which the code around the scope alone has
        tape.track()
        tape.bound(0)
        self.patches = intercepted()
        self.patches.__enter__()
        self.mode = Recording(tape)
        self.mode.__enter__()  # type: ignore[no-untyped-call]  # torch has no types there
        tape.depth = torch._C._len_torch_function_stack()
        active.tape = tape

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        tape = self.tape
        if tape is None:
            return
        try:
            self._end() if error is None else self.undo.put_back()
            tape.ended = "failed"
            self.tape = None
        except BaseException:
            self._abandon()
            raise
        tape.fast, tape.quick = {}, {}
        try:
            if error is None:
                tape.ended = None
                with UndoRecording(), UndoRecording():
                    self._run(tape)
                tape.ended = "done"
            elif (meant := explained(error)) is not error:
                raise meant from error
        except BaseException:
            tape.ended = "failed"
            raise
        finally:
            set_eval_frame(self.frames)

    def __del__(self) -> None:
        """An interrupt may come when the scope has begun, and before the code around it knows that."""
        if getattr(self, "tape", None) is not None:
            self._abandon()

    def _abandon(self, *_: object) -> None:
        """Undo what is not undone yet, where the scope did not begin, or its end was interrupted."""
        if self.outer is None:
            set_eval_frame(self.frames)
        if self.tape is not None:
            self.undo.put_back()
            self.tape.ended = "failed"
            self.tape = None

    def _end(self) -> None:
        active.tape = None
        self.mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # nor there
        self.patches.__exit__()

    def need(self, value: Value) -> None:
        """Run what is pending now."""
        tape = value._tape
        stack = _get_current_function_mode_stack()
        ours = bool(stack) and stack[-1] is self.mode
        if ours:
            _pop_mode()
        try:
            with tape.pause():
                self._run(tape)
        finally:
            if ours:
                _push_mode(self.mode)

    def complete(self) -> None:
        """A scope leaves nothing for later."""

    def inner(self, count: int, start: Callable[[int], Any]) -> list[Any]:
        """A scope has no fibers: examples run one after the other."""
        return [start(number) for number in range(count)]

    def _run(self, tape: Tape) -> None:
        if tape.type:
            with torch.set_grad_enabled(tape.ambient_grad):  # the scope's own, wherever the value is asked for
                Flush(everything(tape)).run(self.options)
            tape.bound(0)


batching.__enter__ = torch.compiler.disable(  # type: ignore[method-assign]  # to torch.compile a graph break
    batching.__enter__, recursive=False, reason="weft.batching records what Python does"
)
batching.__exit__ = shortcut(GUARDED, None, batching._abandon, batching.__exit__)  # type: ignore[method-assign]  # in C

_states: dict[str, State] = {}


def _state(granularity: str) -> State:
    """Scopes have no function of their own; what they learn is kept for all of them."""
    found = _states.setdefault(granularity, State(None))
    if found.is_full():
        found = _states[granularity] = found.followed()
    return found
