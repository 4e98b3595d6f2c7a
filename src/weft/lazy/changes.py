"""What the code writes into while it is recorded, and whether a recorded call would see it.

What is recorded runs later, with the tensors of the model, and those that it is fed, as they are then. So none of them may be
written into after a recorded call has used it. A write is known by the memory that it goes to, since `.data`, views and lists
of tensors all lead there. Arrays of numpy write unseen: those that share memory with a tensor are compared with what they were.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from weft.errors import TraceError
from weft.graph.capture import Surroundings, fetch

if TYPE_CHECKING:
    from weft.lazy.pools import Rows
    from weft.lazy.tape import Tape


class Change(NamedTuple):
    """A write: into what shape, by which function, and how many calls were recorded and how many tensors fed before it."""

    shape: torch.Size
    name: str
    calls: int
    fed: int


class Array(NamedTuple):
    """An array that shares memory with a tensor, and its numbers as they were when they were last looked at."""

    array: Any
    before: Any


class Changes:
    """Writes of one recording."""

    def __init__(self) -> None:
        self.written: dict[int, Change] = {}
        """Since the last flush, by the memory that was written into."""
        self.shown: list[tuple[int, Rows, int]] = []
        """Computed values whose tensors the code got: reference and row."""
        self.arrays: dict[int, list[Array]] = {}
        """By the memory that they share."""

    def note(self, tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A function is about to write into tensors."""
        targets = [target for target in _targets(func, args, kwargs) if target.numel()]  # others share no memory
        places = {memory(target) for target in targets}
        if tape.driver is not None and any(places & _used(tape, one.type.tolist()) for one in tape.left):
            tape.driver.complete()
        name = _name(func)
        for target in targets:
            self.written[memory(target)] = Change(target.shape, name, len(tape.type), len(tape.fed))

    def show_array(self, tensor: Tensor, array: Any) -> None:
        """The code gets an array that may share memory with this tensor."""
        self.arrays.setdefault(memory(tensor), []).append(Array(array, array.copy()))

    def look_at(self, tape: Tape, place: int, found: list[Array]) -> None:
        """Note whether some of these arrays were written into since they were looked at."""
        for at, (array, before) in enumerate(found):
            if array.tobytes() != before.tobytes():
                self.written[place] = Change(torch.Size(array.shape), "numpy", len(tape.type), len(tape.fed))
                found[at] = Array(array, array.copy())

    def feeds(self, tape: Tape, tensor: Tensor) -> None:
        """A tensor is about to be fed, with what was written into it so far."""
        place = memory(tensor)
        if place in self.arrays:
            self.look_at(tape, place, self.arrays[place])


def memory(tensor: Tensor) -> int:
    """Where the memory of a tensor begins; 0 where it has none of its own."""
    with torch._C.DisableTorchFunction():
        try:
            return tensor.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):  # sparse and the like
            return 0


def run_writing(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a function that writes into real tensors."""
    tape.changes.note(tape, func, args, kwargs)
    found = func(*args, **kwargs)
    if _is_assignment(func):  # `p.data = ...` gives it other memory
        tape.changes.note(tape, func, args, kwargs)
    return found


def _targets(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors that a function writes into, told by its name."""
    if kwargs.get("out") is not None:
        yield from _tensors((kwargs["out"],))
    elif not _is_assignment(func) or _name(func) in ("data =", "requires_grad ="):
        given = (*args, *kwargs.values())
        yield from _tensors(given if _name(func).startswith("_fused") else given[:1])


def _name(func: Any) -> str:
    """How a change is called in an error."""
    return f"{func.__self__.__name__} =" if _is_assignment(func) else str(getattr(func, "__name__", func)).partition(".")[0]


def _is_assignment(func: Any) -> bool:
    return getattr(func, "__name__", "") == "__set__"


def _tensors(items: Iterable[Any]) -> Iterator[Tensor]:
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, tuple | list):
            yield from _tensors(item)


def _used(tape: Tape, types: Sequence[int]) -> set[int]:
    """The memory of the model that calls of these types read."""
    ops = [tape.state.fines[number] for number in set(types)]
    return {memory(fetch(place)) for op in ops for place in Surroundings().add(*op.owners).tensors}


def check_unchanged(tape: Tape) -> None:
    """What was recorded since the last flush sees everything as it was when the code used it; an error where it does not."""
    changes = tape.changes
    for place, found in list(changes.arrays.items()):
        changes.look_at(tape, place, found)
        found[:] = [each for each in found if sys.getrefcount(each.array) > _UNHELD]
        if not found:
            del changes.arrays[place]
    for at, (tensor, version) in enumerate(tape.fed):
        change = changes.written.get(memory(tensor)) if changes.written else None
        if version_of(tensor) != version or (change is not None and at < change.fed):
            refuse_change(tensor.shape)
    if changes.written:
        _check_model(tape)
    _check_not_replaced(tape)


def version_of(tensor: Tensor) -> int:
    """How often torch has seen it written into."""
    return 0 if tensor.is_inference() else tensor._version


_alone = Array(object(), None)
_UNHELD = sys.getrefcount(_alone.array)
"""The count of references to an array that nobody else holds."""


def refuse_change(shape: Sequence[int]) -> NoReturn:
    raise TraceError(
        f"a tensor of shape {list(shape)} was written into after a recorded operation had used it; use .clone() before writing"
    )


def check_shown(tape: Tape, refs: Iterable[int]) -> None:
    """None of these results was written into through a tensor or an array that the code got of it, or of a view of it."""
    changes, views = tape.changes, tape.views
    lost = [ref for ref, rows, at in changes.shown if rows.is_changed(at)]
    changes.shown = [each for each in changes.shown if each[1].is_held(each[2])]
    if not lost:
        return
    views.update(tape)
    written = {views.origin(ref) for ref in lost}
    if not views.of_model.isdisjoint(written):
        raise TraceError(
            "what was taken of a tensor of the model (a view, .detach()) was written into as a tensor or an array of numpy, "
            "and the model would stay unchanged; use .clone() first, or write into the model itself before or after the call"
        )
    for ref in refs:
        if views.origin(ref) in written:
            refuse_change(tape.found(ref)[0].kind.shape)


def _check_model(tape: Tape) -> None:
    """What was recorded before a change of the model must not use what changed."""
    written = tape.changes.written
    last = max(change.calls for change in written.values())
    first = {number: at for at, number in reversed(list(enumerate(tape.type[:last])))}
    for number, at in first.items():
        op = tape.state.fines[number]
        for tensor in map(fetch, Surroundings().add(*op.owners).tensors):
            change = written.get(memory(tensor)) if isinstance(tensor, Tensor) else None
            if change is not None and at < change.calls:
                raise TraceError(
                    f"{change.name} changed a tensor of the model of shape {list(change.shape)}, which {op.name} uses in the "
                    "same recording and would see as it is at the end; change it before or after the batched call, or use "
                    ".clone()"
                )


def _check_not_replaced(tape: Tape) -> None:
    """Where the model keeps a tensor nothing else was put: calls that take it from there would get the wrong one."""
    replaced = tape.world.replaced()
    for number in dict.fromkeys(tape.type if replaced else ()):
        op = tape.state.fines[number]
        for key in tape.world.relied.get(op, ()):
            if key in replaced:
                (container, name), before = replaced[key]
                if not isinstance(fetch((container, name)), Tensor) and hasattr(container, "__setitem__"):
                    container[name] = before
                raise TraceError(
                    f"another tensor was put in the place of a tensor of the model ({name}, of shape {list(before.shape)}), "
                    f"which {op.name} uses in the same recording and would see as it is at the end; replace it before or after "
                    "the batched call, or keep what changes from example to example in a variable"
                )
