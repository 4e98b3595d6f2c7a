"""`torch.stack` of a list of values stays a list for as long as it can.

What is done to every row alike is recorded row by row, and reductions over the rows are one kind of call for any length; so
attention over histories of different lengths batches across examples. What needs the stack as a whole gets it, and so does what
is done to a few rows, such as the children of a node: a kind of call for each of a few lengths takes far less time to record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from sys import _getframe
from types import FrameType
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import torch

from weft.errors import TraceError
from weft.lazy.calls import record
from weft.lazy.kinds import kind_of
from weft.lazy.reduce import reduce_values
from weft.lazy.tape import Tape
from weft.lazy.value import Value


class _Rows:
    """What a stack knows: its rows, the whole if it was made (of which rows), whether rows were given out, and its views."""

    __slots__ = ("given_out", "of", "rows", "source", "views", "whole")

    def __init__(self, rows: list[Value], given_out: bool) -> None:
        self.rows, self.given_out = rows, given_out
        self.whole: Any = None
        self.of: list[int] = []
        self.source: tuple[Stacked, _View] | None = None
        """The stack that this one is a view of."""
        self.views: list[_View] = []

    def is_made_of(self, ref: int) -> bool:
        """Whether this is the reference of the whole, or of that of a view."""
        return (self.whole is not None and self.whole._ref == ref) or any(ref in view.wholes for view in self.views)


class _View:
    """A slice or columns of a stack, which is a stack itself: how it is taken of the whole, and what was made of its rows."""

    __slots__ = ("stack", "take", "wholes")

    def __init__(self, stack: Stacked, take: Callable[[Any], Any]) -> None:
        self.stack, self.take = ref(stack), take
        self.wholes: list[int] = []


class GivenOut(NamedTuple):
    """A row that code has got from a stack, and when; its reference is that of what was stacked."""

    row: ReferenceType[Value]
    stack: Callable[[], Stacked | None]
    when: int
    ref: int


_LINKED = object()
"""What a row knows that is a view of something else than its stack by now, and follows it."""


class Stacked(Value):
    """A stack along a new first dimension, kept as the list of its rows. Written into, it becomes a plain value."""

    __slots__ = ()
    _known: Any

    def __init__(self, tape: Tape, parts: Sequence[Value], copies: bool = True, fresh: bool = False) -> None:
        """`copies`: the rows are the stack's own, as torch's are; `fresh`: nobody else has these."""
        kind = parts[0]._kind
        super().__init__(tape, -1, kind_of((len(parts), *kind.shape), kind.dtype))
        own = [tape.make(tape, part._ref, part._kind) for part in parts] if copies and not fresh else list(parts)
        self._known = _Rows(own, not copies)
        if tape.watchful and copies:
            for part in self.parts:
                make_own(tape, part)
        tape.stacks.append(ref(self))

    @property
    def parts(self) -> list[Value]:
        """The rows; this object's own, so that what is written into one of them is seen here."""
        rows: list[Value] = self._known.rows
        return rows

    def _plain(self) -> Any:
        known = self._known
        refs = [part._ref for part in known.rows]
        if known.whole is None or known.of != refs:
            known.whole, known.of = _whole(self._tape, known.rows, _getframe(1)), refs
            if known.source is not None:
                known.source[1].wholes.append(known.whole._ref)
        return known.whole

    def __iter__(self) -> Iterator[Any]:
        return iter([self._given_out(part) for part in self.parts])

    def tolist(self) -> Any:
        return [part.tolist() for part in self.parts]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int) and not isinstance(index, bool):
            return self._given_out(self.parts[index])
        if isinstance(index, slice) and self.parts[index]:
            self._known.given_out = True
            return self._viewed(Stacked(self._tape, self.parts[index], copies=False), lambda whole: whole[index])
        rest = index[1:] if isinstance(index, tuple) else ()
        if rest and index[0] in (slice(None), ...) and (index[0] != ... or rest == (None,)):
            found = self.mapped(lambda part: part[(..., *rest) if index[0] is ... else rest])
            return self._viewed(found, lambda whole: whole[index])
        return self._plain()[index]

    def _viewed(self, found: Any, take: Callable[[Any], Any]) -> Any:
        """What was found row by row, as a view; `take` gives it of the whole."""
        if isinstance(found, Stacked):
            view = _View(found, take)
            found._known.source = self, view
            self._known.views.append(view)
        return found

    def mapped(self, fn: Callable[[Any], Any]) -> Any:
        """The stack of what any function gives for every row."""
        return stacked(self._tape, [fn(part) for part in self.parts], fresh=True)

    def _each(self, func: Any, *rest: Any, before: tuple[Any, ...] = (), **more: Any) -> Any:
        """The same for a function that is recorded; what else it takes is the same for all."""
        other = [[one._plain() if one.__class__ is Stacked else one for one in some] for some in (before, rest)]
        return func.each(*other[0], self, *other[1], **more)

    def _reduced(self, how: str) -> Any:
        return reduce_values(self._tape, how, self.parts, _getframe(2))

    # Writing

    def _given_out(self, part: Value) -> Value:
        self._known.given_out = True
        tape = self._tape
        known = tape.handed.get(id(part))
        if known is None or known.row() is not part:
            if known is not None:
                tape.gone.append(known)  # its views may be there still
            stack = ref(self) if self._known.source is None else lambda: self  # what it is a view of is needed still
            tape.handed[id(part)] = GivenOut(ref(part), stack, tape.next, part._ref)
        return part

    def settle(self) -> None:
        """Become a plain value, of which the rows that were given out are views, or a view of one."""
        source = self._known.source
        if source is None:
            self._become(self._plain())
        else:
            source[0].settle()

    def _become(self, whole: Any) -> None:
        tape, known = self._tape, self._known
        if known.given_out:
            for part in known.rows:
                _check_handed(tape, part)
        self.__class__, self._ref, self._known = Value, whole._ref, None  # type: ignore[assignment]  # another class
        if tape.values is not None:
            tape.values.append(self)
        if known.given_out:
            rows = _with_gradients(tape, lambda: [self[at] for at in range(len(known.rows))])
            for part, row in zip(known.rows, rows, strict=True):
                part._ref, part._known = row._ref, _LINKED
        for view in known.views:
            _follow(tape, self, view)


def _follow(tape: Tape, whole: Value, view: _View) -> None:
    """What was made of a view row by row is a view of the whole from now on."""
    found, taken = view.stack(), _with_gradients(tape, lambda: view.take(whole))
    tape.views.update(tape)
    for made in view.wholes:
        if tape.views.viewed.get(made):
            tape.watch()
            tape.views.moved[made] = taken
    if isinstance(found, Stacked):
        found._become(taken)


def _whole(tape: Tape, rows: list[Value], frame: FrameType) -> Any:
    """The rows as one value."""
    return _with_gradients(tape, lambda: record(tape, torch.stack, (rows,), {}, frame))


def _with_gradients(tape: Tape, make: Callable[[], Any]) -> Any:
    """What is made of a stack. That was made with gradients, so it has them, wherever it is needed first."""
    if not tape.setting.detached:
        return make()
    torch._C._set_grad_enabled(True)
    try:
        tape.set_context()
        return make()
    finally:
        torch._C._set_grad_enabled(False)
        tape.set_context()


def settle_owner(tape: Tape, part: Value) -> None:
    """A row of a stack is written into: it is the row alone, and where the whole was made, that and its views follow."""
    found = _owner(tape, part)
    if found is not None:
        known = found._known
        if known.whole is not None or known.source is not None or known.views:
            found.settle()
        make_own(tape, part)


def settle_whole(tape: Tape, root: int) -> bool:
    """A view of what was made of a stack as a whole is written into: from now on the stack is that whole. Is there one?"""
    made = [found for entry in tape.stacks if isinstance(found := entry(), Stacked) and found._known.is_made_of(root)]
    for found in made:
        if isinstance(found, Stacked):  # still: it may be a view of one before
            found.settle()
    return bool(made)


def _owner(tape: Tape, part: Value) -> Stacked | None:
    """The stack that has given out this row, if it is still one."""
    entry = tape.handed.get(id(part))
    found = None if entry is None or entry.row() is not part else entry.stack()
    return found if isinstance(found, Stacked) else None


def freeze_rows(tape: Tape, root: int) -> None:
    """Before something is written into: rows of stacks are copies of it."""
    tape.stacks = [entry for entry in tape.stacks if isinstance(entry(), Stacked)]
    rows = [part for entry in tape.stacks for part in entry().parts]
    for entry in (*tape.handed.values(), *tape.gone):
        row = entry.row()
        if row is not None:
            rows.append(row)
        elif tape.views.root(tape, entry.ref) == root:
            _check_no_views(tape, entry)
    for row in rows:
        if tape.views.root(tape, row._ref) == root:
            make_own(tape, row)


def make_own(tape: Tape, row: Value) -> None:
    """Give a row a reference of its own; until then it has that of the value that was stacked."""
    if getattr(row, "_known", None) is _LINKED:
        return
    _check_handed(tape, row)
    row._ref, row._known = row.clone()._ref, _LINKED


def _check_handed(tape: Tape, row: Value) -> None:
    entry = tape.handed.get(id(row))
    if entry is not None and entry.row() is row and getattr(row, "_known", None) is not _LINKED:
        tape.views.update(tape)
        _check_no_views(tape, entry)


def _check_no_views(tape: Tape, entry: GivenOut) -> None:
    """Views of a row cannot be told from views of what was stacked."""
    if tape.views.last.get(entry.ref, -1) >= entry.when:
        raise TraceError(
            "a row of a torch.stack is written into, or what was stacked is, after views of one of them were taken; use "
            ".clone() before torch.stack"
        )


def stacked(tape: Tape, parts: list[Any], fresh: bool = False) -> Any:
    """A stack of these values, as a list where they are all of one kind; `fresh`: nobody else has them."""
    kind = parts[0]._kind if isinstance(parts[0], Value) else None
    for part in parts:
        if part.__class__ is not Value or part._tape is not tape or part._kind is not kind:
            return torch.stack([part._plain() if isinstance(part, Value) else part for part in parts])
    return Stacked(tape, parts, fresh=fresh)


def stack(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    """`torch.stack` while recording."""
    parts = args[0] if args else kwargs.get("tensors")
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if isinstance(parts, list | tuple) and parts and dim == 0 and kwargs.get("out") is None and not tape.setting.detached:
        first = parts[0]
        if all(part.__class__ is Value and part._tape is tape and part._kind is first._kind for part in parts):
            return Stacked(tape, parts)
    from weft.lazy.mode import ordinary

    return ordinary(tape, func, args, kwargs, frame)
