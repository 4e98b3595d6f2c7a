"""Where something went wrong, and what every step computed.

The fast code keeps no account of where it is. When it fails, the example is recorded again by code that does, and the error is
told in the user's words. The same code serves `block.trace`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from weft.blocks.block import Block
from weft.blocks.building import Builder
from weft.blocks.code import RECORDING, Code, code_of
from weft.blocks.faults import Endless
from weft.blocks.kinds import Kind
from weft.blocks.show import described, short_type, shortened, text_of
from weft.blocks.types import (
    BroadcastSequenceType,
    PyObjectType,
    ResultType,
    SequenceType,
    TensorType,
    TupleType,
)
from weft.errors import FROM_OUTSIDE, WeftError


@dataclass
class Step:
    """One block at work on one value."""

    block: Block
    path: str
    depth: int
    where: Any = field(repr=False, compare=False)
    """The steps into the example that lead to the value, the last one first: (the steps before it, key)."""
    given: Any
    value: Any = None

    @property
    def place(self) -> str:
        """Where in the example the value is: `.name[0]['odd key']`, nothing for the example itself."""
        return "".join(map(_step, self._keys(None)))

    @property
    def short_place(self) -> str:
        """The place; only its end where it is a long way."""
        keys = self._keys(LONGEST_PLACE + 1)
        if len(keys) <= LONGEST_PLACE:
            return "".join(map(_step, keys))
        return "..." + "".join(map(_step, keys[-10:]))

    def _keys(self, most: int | None) -> list[Any]:
        found: list[Any] = []
        rest = self.where
        while rest and (most is None or len(found) < most):
            rest, key = rest
            found.append(key)
        return found[::-1]


LONGEST_PLACE = 40
"""More steps into an example than this are not all shown."""


def _step(key: Any) -> str:
    return f".{str.__str__(key)}" if isinstance(key, str) and key.isidentifier() else f"[{text_of(key)}]"


@dataclass
class _Tracker:
    """Told by the code of every block that is entered and left."""

    root: Block
    code: Code
    steps: list[Step] = field(default_factory=list)
    open: list[Step] = field(default_factory=list)
    at: Any = None
    calls: Sequence[int] = ()
    most: float = math.inf
    """Far more calls than were recorded before the error: it came from elsewhere."""
    _paths: dict[Block, str] = field(default_factory=dict)

    def enter(self, number: int, value: Any, place: Any) -> None:
        if len(self.calls) > self.most:
            raise _Past
        block = self.code.blocks[number]
        where = place if place is not None else (self.open[-1].where if self.open else "")
        given = plain(value, block._known("input"))
        step = Step(block, self.path(block), len(self.open), where, given)
        self.steps.append(step)
        self.open.append(step)
        self.at = None

    def leave(self, value: Any) -> None:
        step = self.open.pop()
        step.value = plain(value, step.block._known("output"))
        self.at = None

    def note(self, at: Any) -> None:
        self.at = (at,)

    def path(self, block: Block) -> str:
        if not self._paths:
            self._paths = paths(self.root)
        return self._paths[block]


class _Past(Exception):
    """What failed goes on for longer this time."""


def paths(root: Block) -> dict[Block, str]:
    """The path of every block from the root, the first that leads to it."""
    found: dict[Block, str] = {}
    pending: list[tuple[str, Block]] = [("", root)]
    while pending:
        start, block = pending.pop()
        if block in found:
            continue
        found[block] = start + described(block)
        named = hasattr(block, "target")
        pending += [
            (start if named else f"{start}{block.name}[{label}]/", part) for label, part in reversed(list(block._labels()))
        ]
    return found


def plain(value: Any, type: ResultType) -> Any:
    """A value as the traced code packs it, without the places of Python objects."""
    if isinstance(type, TupleType):
        return tuple(plain(part, kind) for part, kind in zip(value, type, strict=True))
    if isinstance(type, BroadcastSequenceType):
        return plain(value, type.element_type)
    if isinstance(type, SequenceType):
        return [plain(item, type.element_type) for item in value]
    return value[0] if isinstance(type, PyObjectType) else value


def _tracked(root: Block) -> tuple[_Tracker, Builder]:
    code = code_of(root, traced=True)
    tracker = _Tracker(root, code)
    builder = Builder(code)
    builder.names.update(ENTER=tracker.enter, LEAVE=tracker.leave, AT=tracker.note)
    tracker.calls = builder.type
    return tracker, builder


def explained(root: Block, example: Any, number: int, error: Exception, calls: int) -> Exception:
    """The error of a failed recording of so many calls, with the block, the example and the place in it."""
    error = _users(error)
    if isinstance(error, Endless):
        return Endless(f"{error}, in example {number}")
    if isinstance(error, FROM_OUTSIDE):
        error.add_note(f"in example {number}")
        return error
    tracker, builder = _tracked(root)
    tracker.most = 1000 + 10 * calls  # the code that keeps account may record more
    from weft.blocks.evaluate import REFERENCE
    from weft.blocks.flushing import History

    history = History(root, tracker.code, builder, REFERENCE)
    going, answers = builder.record(example), None
    try:
        while True:
            _, refs = going.send(answers)
            history.flush()
            answers = history.truths(refs)
    except StopIteration:
        pass
    except Exception as failed:
        again = _users(failed)
        if type(again) is type(error) and tracker.open:
            return _worded(tracker, number, again)
        if "place" in again.__dict__:
            at = f" at {again.__dict__['place']}" if again.__dict__["place"] else ""
            return type(again)(f"{described(root)}: {again}, in example {number}{at}")
    error.add_note(f"in example {number}; recording it once more went well, so it is not known where")
    return error


def _users(error: Exception) -> Exception:
    """The error itself; or the user's StopIteration, of which a generator of the code has made a RuntimeError."""
    cause = error.__cause__
    if isinstance(error, RuntimeError) and isinstance(cause, StopIteration) and cause.__traceback__ is not None:
        if cause.__traceback__.tb_frame.f_code.co_filename.startswith(RECORDING):
            return cause
    return error


def _worded(tracker: _Tracker, number: int, error: Exception) -> Exception:
    step = tracker.open[-1]
    where = f"in example {number}" + (f" at {step.short_place}" if step.where else "")
    meaning = _meaning(tracker, step, error)
    if meaning is None:
        error.add_note(f"{step.path}: {where}")
        return error
    made = type(meaning)(f"{step.path}: {meaning}, {where}")
    made.__cause__ = None if isinstance(error, WeftError) else error
    return made


def _meaning(tracker: _Tracker, step: Step, error: Exception) -> Exception | None:
    try:
        if tracker.at is not None and hasattr(step.block, "_explain_key"):
            found: Exception | None = step.block._explain_key(tracker.at[0])
            return found
        return step.block._explain(error, step.given)
    except Exception:  # of the user's data, which is looked at once more
        return None


def note_place(error: Exception, kind: Kind, example: int) -> None:
    """An error that came up while computing: say in which block, for which example."""
    error.add_note(f"while computing {kind.where or kind.name}, in example {example}")


DEEPEST_INDENT = 40


@dataclass
class Trace:
    """What every block did to one example, in the order of evaluation. Prints as a tree."""

    steps: list[Step]

    def __str__(self) -> str:
        return "\n".join(self._line(step) for step in self.steps)

    def __repr__(self) -> str:
        return str(self)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, number: int) -> Step:
        return self.steps[number]

    def _line(self, step: Step) -> str:
        place = f" at {step.short_place}" if step.where else ""
        value = _brief(step.value)
        indent = "  " * step.depth if step.depth <= DEEPEST_INDENT else f"{'  ' * DEEPEST_INDENT}({step.depth}) "
        return f"{indent}{described(step.block)}{place}: {short_type(step.block._known('output'))} = {value}"


def _brief(value: Any) -> str:
    if isinstance(value, Tensor):
        value = value.tolist()
    return shortened(value, 80)


def trace(root: Block, x: Any) -> Trace:
    """Record and compute one example, and keep the value of every step."""
    from weft.blocks.evaluate import REFERENCE
    from weft.blocks.flushing import Fiber, History, advance, no_notes

    tracker, builder = _tracked(root)
    history = History(root, tracker.code, builder, REFERENCE)
    advance(root, builder, history, [Fiber(0, x, builder.record(x), no_notes(builder))])
    known = functools.cache(history.value)
    for step in tracker.steps:
        step.given = _computed(known, step.given, step.block._known("input"))
        step.value = _computed(known, step.value, step.block._known("output"))
    return Trace(tracker.steps)


def _computed(known: Callable[[int], Tensor], value: Any, type: ResultType) -> Any:
    """References replaced by what they refer to."""
    if isinstance(type, TupleType):
        return tuple(_computed(known, part, kind) for part, kind in zip(value, type, strict=True))
    if isinstance(type, BroadcastSequenceType):
        return itertools.repeat(_computed(known, value, type.element_type))
    if isinstance(type, SequenceType):
        return [_computed(known, item, type.element_type) for item in value]
    if isinstance(type, TensorType):
        return known(value[0] if type.ragged else value)
    return value
