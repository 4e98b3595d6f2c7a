"""The short way to a call that was seen before: one pass over its arguments, one look-up, a few integers appended.

It knows values, stacks of them, constants, parameters, Python numbers and strings, and lists and tuples of values; everything
else, and every first call, goes the long way through `calls.record`, which leaves an entry here.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any

from torch import nn

from weft.lazy.constants import Constant
from weft.lazy.kinds import Kind
from weft.lazy.nests import build
from weft.lazy.ops import holes_filled
from weft.lazy.state import Entry
from weft.lazy.tape import Tape
from weft.lazy.value import MISS, SHORT, STEP, Value


class Quick:
    """What the short way appends and returns. `kinds` is None where the result is no flat tuple of tensors."""

    __slots__ = ("entry", "held", "kinds", "number", "single")

    def __init__(self, entry: Entry, held: tuple[Any, ...]) -> None:
        op = entry.op
        self.entry, self.number, self.single, self.held = entry, entry.number, entry.single, held
        flat = op.structure is not None and op.structure[0] is tuple and not any(op.structure[2:])
        whole = len(op.constants) == len(op.outs)
        self.kinds: tuple[Kind, ...] | None = (
            op.outs if flat and whole and len(op.structure or ()) - 2 == len(op.outs) else None
        )


def signature(tape: Tape, head: Any, args: Any, frame: FrameType, refs: list[int], feeds: list[Any]) -> Any:
    """The key of the short way, references and fed numbers on the way; None if the call must go the long way."""
    key = [head, id(frame.f_code), frame.f_lasti]
    for item in args:
        cls = item.__class__
        if cls is Value:
            if item._tape is not tape:
                return None
            key.append(item._kind)
            refs.append(item._ref)
        elif cls is tuple or cls is list:
            key.append(cls)
            for part in item:
                if part.__class__ is nn.Parameter:
                    key += (nn.Parameter, id(part))
                    continue
                if part.__class__ is int:
                    key += (int, part)
                    continue
                if part.__class__ is not Value or part._tape is not tape:
                    return None
                key.append(part._kind)
                refs.append(part._ref)
            key.append(len(item))
        elif cls is int or cls is str or cls is bool or item is None:
            key.append(cls)
            key.append(item)
        elif cls is float:
            key.append(cls)
            key.append(item if item and item == item else repr(item))
        elif cls is Constant:
            key.append(Constant)
            key.append(item._kind)
            feeds.append(item._known)
        elif cls is nn.Parameter:
            key.append(cls)
            key.append(id(item))
        elif cls is slice and _is_simple(item):
            key += (slice, item.start, item.stop, item.step)
        elif isinstance(item, nn.Module):
            key += (nn.Module, id(item), item.training)
        elif isinstance(item, Value) and (whole := item._plain()).__class__ is Value and whole._tape is tape:
            key.append(whole._kind)
            refs.append(whole._ref)
        else:
            return None
    return tuple(key)


def _is_simple(item: slice) -> bool:
    return all(part is None or part.__class__ is int for part in (item.start, item.stop, item.step))


def known(tape: Tape, head: Any, args: Any, frame: FrameType, refs: list[int], feeds: list[Any]) -> Quick | None:
    """The entry of a call that can go the short way; references and fed numbers on the way."""
    key = signature(tape, head, args, frame, refs, feeds) if tape.quick else None
    return None if key is None else tape.quick.get(key)


def short(tape: Tape, head: Any, args: Any, frame: FrameType) -> Any:
    """Record the call the short way; MISS if it has to go the long way."""
    refs: list[int] = []
    feeds: list[Any] = []
    found = known(tape, head, args, frame, refs, feeds)
    return MISS if found is None else quick_call(tape, found, refs, feeds)


SHORT[0] = short


def quick_call(tape: Tape, found: Quick, refs: Sequence[int], feeds: Sequence[Any]) -> Any:
    """Append the call and return its values."""
    ref = tape.next
    tape.next = ref + STEP
    tape.type.append(found.number)
    tape.arguments += refs
    if feeds:
        tape.data[found.number] += feeds
    make = tape.make
    if found.single is not None:
        return make(tape, ref, found.single)
    if found.kinds is not None:
        if len(found.kinds) == 2:
            return make(tape, ref, found.kinds[0]), make(tape, ref + 1, found.kinds[1])
        values = []
        for kind in found.kinds:
            values.append(make(tape, ref, kind))
            ref += 1
        return tuple(values)
    op = found.entry.op
    values = [make(tape, ref + output, kind) for output, kind in enumerate(op.outs)]
    return build(op.structure, holes_filled(op, values))


def remember(tape: Tape, head: Any, args: Any, frame: FrameType, entry: Entry) -> None:
    """Leave an entry for the short way, if the call is one for it and gives tensors."""
    if not entry.op.outs or tape.watchful:
        return
    key = signature(tape, head, args, frame, [], [])
    if key is not None:
        parts = [part for item in args for part in (item if isinstance(item, tuple | list) else (item,))]
        held = tuple(part for part in parts if isinstance(part, nn.Parameter | nn.Module))
        tape.tables.quick[key] = Quick(entry, held)
