"""Which values are views of which, and what they stand for after one of them was written into.

A tensor shares memory with its views; values do not. So writing into a view records a new whole in which that part is
replaced, and a view that is read after its whole was written into is taken again. A value keeps its reference; `moved` says
what a reference stands for now. Nothing of this happens before the first write into something that is a view or has views.

    m          5 --- row = m[0] --- 6                row += 1:  7 = 6 + 1,  8 = 5 with 7 in the place of 6
    moved      5 → 8,  and 6 → 8[0] when it is read
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from sys import _getframe
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from weft.errors import TraceError
from weft.graph.recording import OUTPUT_BITS
from weft.lazy.ops import Op
from weft.lazy.taken import segment
from weft.lazy.value import LOW, STEP, Value, picked

if TYPE_CHECKING:
    from weft.lazy.tape import Tape


class View(NamedTuple):
    """How a view is taken: `take(base, *rest)`. `take` is None where it cannot be taken again."""

    base: int
    take: Callable[..., Any] | None
    rest: tuple[Any, ...]


FACTORIES = frozenset(("zeros", "ones", "full"))
"""Names of functions that make tensors of nothing."""


class Views:
    """Which references are views of which, found by reading the tape where writing makes it matter."""

    def __init__(self) -> None:
        self.known: dict[int, View] = {}
        self.viewed: defaultdict[int, int] = defaultdict(int)
        """How many views each reference has."""
        self.last: dict[int, int] = {}
        """After which reference the last view of each was taken."""
        self.of_model: set[int] = set()
        """References that are views of a tensor of the model."""
        self.moved: dict[int, Value] = {}
        self.made: dict[int, int] = {}
        """References of what was made of nothing since the last flush, and how many arguments were on the tape then."""
        self.drafts: dict[int, Any] = {}
        """The same with numbers written into it (`lazy/drafts.py`)."""
        self.segment = self.call = self.argument = self.many = 0
        self.fed: defaultdict[int, int] = defaultdict(int)

    def note(self, ref: int, base: int, take: Callable[..., Any] | None, rest: tuple[Any, ...], when: int) -> None:
        self.known[ref] = View(base, take, rest)
        self.viewed[base] += 1
        self.last[base] = when

    def update(self, tape: Tape) -> None:
        """Read what was recorded since the last time."""
        if self.segment == len(tape.past) and self.call == len(tape.type):
            return
        while self.segment < len(tape.past):
            calls = tape.past[self.segment]
            floor = int(calls.number[0]) << OUTPUT_BITS if len(calls.number) else 0
            self._read(tape, floor, calls.type.tolist(), calls.arguments.tolist(), calls.further.tolist(), calls.data)
            self.segment += 1
            self.call = self.argument = self.many = 0
            self.fed.clear()
            self.made.clear()
        self._read(tape, tape.floor, tape.type, tape.arguments, tape.further, tape.data)

    def _read(
        self, tape: Tape, floor: int, types: list[int], arguments: list[int], further: list[int], data: Mapping[int, list[Any]]
    ) -> None:
        """Read some calls from where it was read up to; the lists are the tape's own, for every write comes here."""
        fines = tape.state.fines
        for call in range(self.call, len(types)):
            op, number = fines[types[call]], types[call]
            if op.name in FACTORIES and not (op.args or op.feeds or op.owners) and op.setting.is_plain:
                self.made[floor + call * STEP] = self.argument
            if op.views_model:
                self.of_model.update(range(floor + call * STEP, floor + call * STEP + len(op.outs)))
            for output, base in enumerate(op.views):
                if base >= 0:
                    refs = arguments[self.argument : self.argument + len(op.args)]
                    at, width = self.fed[number], len(op.feeds)
                    feeds = data[number][at * width : (at + 1) * width] if width else []
                    rest = (*_others(tape, op, refs, base), *(_fed(tape, *pair) for pair in zip(feeds, op.feeds, strict=True)))
                    ref = floor + call * STEP + output
                    self.note(ref, refs[base], _taker(op, output, base), rest, ref)
            if op.feeds:
                self.fed[number] += 1
            self.argument += len(op.args)
            if op.many is not None:
                self.argument += further[self.many]
                self.many += 1
        self.call = len(types)

    def view(self, tape: Tape, ref: int) -> View | None:
        """How a reference is a view; None if it is not, or if nothing else is left of what it is a view of."""
        found = self.known.get(ref)
        if found is None or self._is_there(tape, found.base):
            return found
        if self.view(tape, found.base) is not None:  # a view itself, that nobody held when numbers were asked for
            tape.watch()
            self.moved[found.base] = self._taken(tape, found.base, self._latest(self.known[found.base].base))
            return found
        if self.viewed[found.base] > 1:
            raise TraceError(
                "a view of a Value is written into, the Value itself is gone since numbers were asked for, and there may be "
                "other views of it; use .clone() first"
            )
        return None

    def _is_there(self, tape: Tape, ref: int) -> bool:
        """Whether there is something that a reference stands for, or will be."""
        return ref >= tape.floor or ref in tape.results or ref in self.moved or tape.is_left(ref)

    def origin(self, ref: int) -> int:
        """What a reference is a view of, in the end, whether that is still there or not."""
        while ref in self.known:
            ref = self.known[ref].base
        return ref

    def root(self, tape: Tape, ref: int) -> int:
        """What a reference is a view of, in the end."""
        while (view := self.view(tape, ref)) is not None:
            ref = view.base
        return ref

    def current(self, tape: Tape, value: Value) -> Value:
        """What a value stands for now: a view of something that was written into is taken again."""
        self.update(tape)
        ref, stale = self._latest(value._ref), []
        while ref in self.known:
            stale.append(ref)
            ref = self._latest(self.known[ref].base)
        for old in reversed(stale):
            if ref == self.known[old].base:
                ref = old
                continue
            self.moved[old] = taken = self._taken(tape, old, ref)
            ref = taken._ref
        return value if ref == value._ref else tape.make(tape, ref, value._kind)

    def _latest(self, ref: int) -> int:
        found = self.moved.get(ref)
        while found is not None and found._ref in self.moved:
            self.moved[ref] = found = self.moved[found._ref]
        return ref if found is None else found._ref

    def _taken(self, tape: Tape, old: int, base: int) -> Value:
        view = self.known[old]
        if view.take is None:
            raise TraceError(
                "a view of a Value (what a module or a cell gave of it) is used after the Value was written into; "
                "in PyTorch it would show the change: take the view again, or .clone() it before writing"
            )
        taken: Value = tape.record(view.take, (Value(tape, base, _kind_at(tape, base)), *view.rest), {}, _getframe())
        self.update(tape)
        return taken

    def whole_with(self, tape: Tape, ref: int, new: Value) -> Value:
        """The root of a view, with a new part in its place."""
        while (view := self.view(tape, ref)) is not None:
            if view.take is None:
                raise TraceError(
                    "writing into this view of a Value (what a module or a cell gave of it) would change the Value, "
                    "too; use .clone() first"
                )
            if view.take is Tensor.detach and new.requires_grad:
                raise TraceError(
                    "what requires gradients is written through .detach() or .data, where one name would get them and the "
                    "other would not; use .clone() first, or write inside torch.no_grad()"
                )
            base = Value(tape, view.base, _kind_at(tape, view.base))
            new = tape.record(_putter(view.take), (base, new, *view.rest), {}, _getframe())
            ref = view.base
        return new


def _kind_at(tape: Tape, ref: int) -> Any:
    """The kind of a reference: of a call in the tape, or of what an earlier flush gave."""
    if ref in tape.results:
        return tape.found(ref)[0].kind
    for calls in (segment(tape), *reversed(tape.past)):
        if calls.holds(ref):
            return tape.state.fines[int(calls.type[(ref >> OUTPUT_BITS) - int(calls.number[0])])].outs[ref & LOW]
    raise AssertionError("a reference that no call gave")


def _others(tape: Tape, op: Op, refs: list[int], base: int) -> list[Value]:
    return [Value(tape, ref, kind) for at, (ref, kind) in enumerate(zip(refs, op.args, strict=True)) if at != base]


def _fed(tape: Tape, fed: Any, kind: Any) -> Any:
    from weft.lazy.constants import Constant

    return fed if isinstance(fed, Tensor) else Constant(tape, fed, kind)


_takers: dict[tuple[Op, int, int], Callable[..., Any]] = {}


def _taker(op: Op, output: int, position: int) -> Callable[..., Any] | None:
    """The function that takes this view again: of the whole and of the operation's other arguments."""
    if op.owners or op.random:
        return None
    if op.name == "detach":
        return Tensor.detach
    if op.func is picked or op.func in _putters:
        return op.func
    found = _takers.get((op, output, position))
    if found is None:
        count = len(op.args) - 1

        def take(base: Tensor, *rest: Any) -> Tensor:
            args = list(rest[:count])
            args.insert(position, base)
            return op.run(args, rest[count:])[output]

        take.__name__ = op.name
        found = _takers.setdefault((op, output, position), take)
        if len(op.outs) > 1:
            _putters.setdefault(found, _one_of_many(found))
        _putter(found)
    return found


_putters: dict[Any, Callable[..., Any]] = {}


def _putter(take: Callable[..., Any]) -> Callable[..., Any]:
    """The function that puts a new part into the place of a view."""
    found = _putters.get(take)
    if found is None:

        def put(base: Tensor, new: Tensor, *rest: Any) -> Tensor:
            whole = own_copy(base, (new, *rest))
            take(whole, *rest).copy_(new)
            return whole

        put.__name__ = f"put_{getattr(take, '__name__', 'view').strip('_')}"
        found = _putters.setdefault(take, put)
    return found


def _one_of_many(take: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a view that is one of several: torch does not let such a one be written into."""

    def put(base: Tensor, new: Tensor, *rest: Any) -> Tensor:
        places = take(torch.arange(base.numel(), device=base.device).view(base.shape), *rest)
        return base.reshape(-1).index_copy(0, places.reshape(-1), new.reshape(-1)).view(base.shape)

    put.__name__ = f"put_{getattr(take, '__name__', 'view').strip('_')}"
    return put


def _put_picked(base: Tensor, new: Tensor, index: Tensor) -> Tensor:
    at = torch.where(index < 0, index + base.shape[0], index)
    chosen = torch.arange(base.shape[0], device=base.device) == at
    return torch.where(chosen.reshape(-1, *[1] * (base.dim() - 1)), new, base)


def straight_through(old: Tensor, new: Tensor) -> Tensor:
    """The new numbers with the gradients of the old ones: what was written without gradients, or through `.detach()`."""
    nothing = old - old.detach()
    return new.detach() + torch.where(torch.isfinite(nothing), nothing, 0.0)


_putters[picked] = _put_picked
_putters[Tensor.detach] = straight_through


def own_copy(target: Tensor, others: tuple[Any, ...]) -> Tensor:
    """A copy to write into; one per row where what is written differs from row to row while the target does not."""
    for other in others:
        if isinstance(other, Tensor) and _is_batched(other) and not _is_batched(target) and other.numel():
            everywhere = torch.ones_like(other.detach().reshape(-1)[0], dtype=torch.bool)
            return torch.where(everywhere, target, target)
    return target.clone()


_is_batched = torch._C._functorch.is_batchedtensor
