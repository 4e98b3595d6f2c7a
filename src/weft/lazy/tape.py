"""The tape: what a batched call has recorded so far, and where values that are needed come from."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor

from weft.errors import TraceError
from weft.graph.recording import OUTPUT_BITS
from weft.lazy.blame import Site
from weft.lazy.changes import Changes
from weft.lazy.gradients import Trained, requires_grad
from weft.lazy.kinds import Kind, kind_of
from weft.lazy.ops import PLAIN, Setting
from weft.lazy.pools import ROW, ROW_BITS, Pool, Rows
from weft.lazy.state import State, Tables, World
from weft.lazy.taken import Pending, segment
from weft.lazy.value import STEP, Value
from weft.lazy.views import Views


class _Active(threading.local):
    """The tape that records what this thread does."""

    tape: Tape | None = None


active = _Active()


class Driver(Protocol):
    """Who runs what is pending when a number is needed."""

    def need(self, value: Value) -> None: ...

    def complete(self) -> None: ...

    def inner(self, count: int, start: Callable[[int], Any]) -> list[Any]: ...


class Hot:
    """What every recorded call touches; `c/keys.c` knows these names, too."""

    __slots__ = (
        "arguments",
        "data",
        "depth",
        "driver",
        "ended",
        "fast",
        "floor",
        "next",
        "ones",
        "others",
        "paused",
        "quick",
        "results",
        "sources",
        "type",
        "values",
        "watchful",
    )


class Tape(Hot):
    """One recording. References grow from flush to flush; those below `floor` are of calls that have been run.

    The lists are those of `weft.graph.recording`, with types numbered by `State.fines`; references below zero are results of
    earlier flushes that are handed in again.
    """

    gave_out = False
    """Code has got results of flushes, with gradients: what it does with them is not known here."""

    has_shaped = False
    """Something was computed whose shape depends on numbers."""

    is_diverse = False
    """Most calls were of functions of many sizes, with little company each."""

    def __init__(self, state: State, granularity: str, device: str, is_portable: bool = False) -> None:
        self.state, self.device, self.is_portable = state, device, is_portable
        state.calls += 1
        self.sites = granularity == "auto"
        self.whole_modules = granularity != "operator"
        self.driver: Driver | None = None
        self.type: list[int] = []
        self.arguments: list[int] = []
        self.further: list[int] = []
        self.data: defaultdict[int, list[Any]] = defaultdict(list)
        self.next = 0
        self.floor = 0
        self.depth = -1
        """How many function modes are on torch's stack while the user's code runs: ours is the last."""
        self.last_given = -1
        self.bounds: list[tuple[int, int]] = []
        """(call, example) wherever other code went on: another example, or the same one after a flush."""
        self.changes = Changes()
        self.fed: list[tuple[Tensor, int]] = []
        self.results: dict[int, int] = {}
        """Where the tensor of each reference that was computed is: source and row, as `pools.py` writes them."""
        self.sources: list[Rows] = []
        self._pools: dict[Kind, Pool] = {}
        self.values: list[Value] | None = None
        self.past: list[Pending] = []
        """The calls of each flush so far, whether it ran them or not."""
        self.taken: Pending | None = None
        """Those since the last flush, as arrays."""
        self.left: list[Pending] = []
        """Those that wait for the last flush."""
        self.waits = bytearray()
        """For each call of the flushes so far, whether it is one of these."""
        self.views = Views()
        self.watchful = False
        """A view, or a value with views, was written into: every argument is looked at."""
        self.stacks: list[Any] = []
        """Weak references to the stacks that are lists."""
        self.handed: dict[int, Any] = {}
        """Rows of stacks that were given out, by their identity."""
        self.gone: list[Any] = []
        """The same of rows that nobody holds any more."""
        self.ended: str | None = None
        self.paused = False
        self.records_data = False
        """In a scope: operations on tensors that are neither values nor of the model are recorded, too."""
        self.others: dict[Any, bool] = {}
        """Modules of the user's own that are no cells: their code runs, and what it does is recorded."""
        self.trained = Trained()
        self.nodes: list[Any] = []
        """For each flush so far that is trained the node of torch's graph that differentiates it."""
        self.keeper = ""
        """Who keeps the recording, "cache=" or "collate": numbers that are drawn or read now would be kept."""
        self.ambient_grad = torch.is_grad_enabled()
        self.place = torch.device(device)
        kind = self.place.type
        self.autocast_kind = kind
        self.ambient_autocast = (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        self.world: World = state.world((granularity, is_portable, *self.ambient_autocast))
        self.set_context()

    def set_context(self) -> None:
        """Look up the tables that belong to the grad mode and autocast of this moment."""
        detached = self.ambient_grad and not torch.is_grad_enabled()
        if not self.ambient_grad and torch.is_grad_enabled():
            torch._C._set_grad_enabled(False)
            raise TraceError(
                "torch.enable_grad() inside a batched call that runs without gradients: call it with gradients enabled, "
                "and turn them off inside with torch.no_grad() where they are not wanted"
            )
        now = (torch.is_autocast_enabled(self.autocast_kind), torch.get_autocast_dtype(self.autocast_kind))
        autocast = None if now == self.ambient_autocast else (self.autocast_kind, now[1], now[0])
        self.setting = Setting(detached, autocast) if detached or autocast is not None else PLAIN
        tables = self.world.tables.get(self.setting)
        if tables is None:
            tables = self.world.tables.setdefault(self.setting, Tables())
        self.tables = tables
        self.fast = {} if self.watchful else tables.fast
        self.quick = {} if self.watchful else tables.quick
        self.calls, self.ones = tables.calls, tables.ones

    def track(self) -> None:
        """From now on know which values are alive, so that a flush computes no more than what may be asked for."""
        if self.values is None:
            self.values = []

    @staticmethod
    def make(tape: Tape, ref: int, kind: Kind) -> Value:
        """What a recorded call gives; noted where it is known which values are alive."""
        value = Value(tape, ref, kind)
        if tape.values is not None:
            tape.values.append(value)
        return value

    @property
    def num_calls(self) -> int:
        return len(self.type)

    def site(self, frame: FrameType) -> Site | None:
        """The place in the code, where kinds of calls are told apart by it."""
        return (frame.f_code, frame.f_lasti) if self.sites else None

    def bound(self, example: int) -> None:
        """The code of this example goes on from here."""
        self.bounds.append((len(self.type), example))

    def given(self, rows: Any, row: int) -> Value:
        """A value whose tensor is known: its reference is below all others, as if an earlier flush had computed it."""
        self.last_given -= 1
        self.results[self.last_given] = self._numbered(rows) << ROW_BITS | row
        return Value(self, self.last_given, rows.kind)

    def all_given(self, rows: Any) -> list[Value]:
        """The same for every row."""
        first, place, count = self.last_given - 1, self._numbered(rows) << ROW_BITS, len(rows.rows)
        refs = range(first, first - count, -1)
        self.last_given -= count
        self.results.update(zip(refs, range(place, place + count), strict=True))
        return [Value(self, ref, rows.kind) for ref in refs]

    def keep(self, refs: list[int], rows: Tensor, plain: bool) -> None:
        """What a flush gave for some references, all of one kind."""
        kind = kind_of(rows.shape[1:], rows.dtype)
        pool = self._pools.get(kind)
        if pool is None:
            pool = self._pools[kind] = Pool(kind, plain)
        first = self._numbered(pool.add(rows)) << ROW_BITS
        self.results.update(zip(refs, range(first, first + len(refs)), strict=True))

    def _numbered(self, rows: Rows) -> int:
        """Which source some rows are."""
        if rows.number < 0:
            rows.number = len(self.sources)
            self.sources.append(rows)
        return rows.number

    def found(self, ref: int) -> tuple[Rows, int]:
        """The results among which a computed reference is, and which row."""
        place = self.results[ref]
        return self.sources[place >> ROW_BITS], place & ROW

    def is_left(self, ref: int) -> bool:
        """Whether a reference is of a call that was left by a flush."""
        return 0 <= ref >> OUTPUT_BITS < len(self.waits) and bool(self.waits[ref >> OUTPUT_BITS])

    def advance(self) -> None:
        """Everything recorded so far has been run, or was taken off."""
        self.past.append(segment(self))
        self.taken = None
        self.floor = self.next
        self.type, self.arguments, self.further = [], [], []
        self.data = defaultdict(list)
        self.fed, self.bounds = [], []
        self.changes.written = {}
        if self.values is not None:
            self.values.clear()

    # What values ask for

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType, name: Any = None) -> Any:
        from weft.lazy.calls import record

        return record(self, func, args, kwargs, frame, name)

    def record_inplace(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
        from weft.lazy.inplace import record_inplace

        return record_inplace(self, func, args, kwargs, frame)

    def is_over(self) -> bool:
        return self.ended is not None

    def result(self, value: Value) -> tuple[Rows, int]:
        """What a flush gave for a value; what is pending runs first if it must."""
        if self.watchful:
            value = self.settled(value)
        place = self.results.get(value._ref)
        if place is None or self.ended is not None:
            self._compute(value)
            place = self.results[value._ref]
        return self.sources[place >> ROW_BITS], place & ROW

    def _compute(self, value: Value) -> None:
        """Let what is pending run, so that there is a result of this value."""
        if self.ended is None and (value._ref >= self.floor or self.is_left(value._ref)):
            if self.driver is None or active.tape is not self:
                raise TraceError("a Value of another thread's or another scope's recording was needed; return it instead")
            self.driver.need(value)
        if self.ended == "failed":
            raise TraceError("this Value belongs to a recording that ended with an error; nothing was computed")
        if value._ref not in self.results:
            raise TraceError(
                "this Value belongs to a call of weft.batched that is over; return what is needed later, do not keep it aside"
            )

    def tensor(self, value: Value) -> Tensor:
        if value.__class__ is not Value:
            value = value._plain()
            if isinstance(value, Tensor):
                return value
        group, row = self.result(value)
        with torch._C.DisableTorchFunction():  # nothing of this is recorded
            found: Tensor = group.row(row)
            if found.requires_grad and not self.requires_grad(value):
                found.detach_()  # the engine differentiates more than the loop would
            self.gave_out |= found.requires_grad and group.pool is not None
        if self.ended is None:
            self.changes.shown.append((self.settled(value)._ref, group, row))
        return found

    def part(self, value: Value) -> Tensor:
        """The tensor of a value, to be read now, and by nobody else."""
        if value.__class__ is not Value:
            value = value._plain()
            if isinstance(value, Tensor):
                return value
        group, row = self.result(value)
        with torch._C.DisableTorchFunction():
            found = group.part(row)
            if found.requires_grad and not self.requires_grad(value):
                found = found.detach()
        self.gave_out |= found.requires_grad and group.pool is not None
        return found

    def copy(self, value: Value) -> Tensor:
        """The same, for code that may write into it or give it on."""
        found = self.part(value)
        with torch._C.DisableTorchFunction():
            return found.clone()

    def numbers(self, value: Value) -> Any:
        if value.__class__ is not Value:
            tensor = self.tensor(value)
            with torch._C.DisableTorchFunction():
                return tensor.tolist()
        group, row = self.result(value)
        ready = group.ready()
        if ready is not None:
            return ready[row]
        with torch._C.DisableTorchFunction():
            return group.numbers(row)

    def requires_grad(self, value: Value) -> bool:
        return requires_grad(self, value)

    def watch(self) -> None:
        """From now on look at every argument, which may stand for something else by now."""
        if not self.watchful:
            self.watchful = True
            self.set_context()

    def settled(self, value: Value) -> Value:
        """What a value stands for now."""
        return self.views.current(self, value) if self.watchful and self.ended is None else value

    def settle_all(self) -> None:
        """Let every value that is known to be alive stand for what it is now."""
        if self.watchful and self.values is not None:
            before, active.tape = active.tape, self
            try:
                for value in [*(value for calls in self.left for value in calls.values), *self.values]:
                    if value.__class__ is Value:
                        value._ref = self.views.current(self, value)._ref
            finally:
                active.tape = before

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Torch functions run as usual inside."""
        paused, before = self.paused, active.tape
        self.paused, active.tape = True, None
        try:
            yield
        finally:
            self.paused, active.tape = paused, before

    def emitted(self, number: int, refs: list[int], feeds: list[Any]) -> int:
        """Append one call; the reference of its first output."""
        self.type.append(number)
        self.arguments += refs
        if feeds:
            self.data[number] += feeds
        ref = self.next
        self.next = ref + STEP
        return ref


Tape.tensor = torch.compiler.disable(Tape.tensor)  # type: ignore[method-assign]  # to torch.compile a graph break
