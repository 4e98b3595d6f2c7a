"""Where something went wrong, and what every step computed.

The fast code keeps no account of where it is. When it fails, the example is recorded again by code that does, and the error is
told in the user's words. The same code serves `block.trace`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from weft.blocks.block import Block
from weft.blocks.building import BlockProgram, Builder
from weft.blocks.code import Code, code_of
from weft.blocks.show import described, short_type
from weft.blocks.types import (
    BroadcastSequenceType,
    PyObjectType,
    ResultType,
    SequenceType,
    TensorType,
    TupleType,
)
from weft.errors import WeftError


@dataclass
class Step:
    """One block at work on one value."""

    block: Block
    path: str
    depth: int
    place: str
    given: Any
    value: Any = None


@dataclass
class _Tracker:
    """Told by the code of every block that is entered and left."""

    root: Block
    code: Code
    steps: list[Step] = field(default_factory=list)
    open: list[Step] = field(default_factory=list)
    at: Any = None
    _paths: dict[Block, str] = field(default_factory=dict)

    def enter(self, number: int, value: Any, place: str | None) -> None:
        block = self.code.blocks[number]
        where = place if place is not None else (self.open[-1].place if self.open else "")
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
    return tracker, builder


def explained(root: Block, example: Any, number: int, error: Exception) -> Exception:
    """The error of a failed recording, with the block, the example and the place in it."""
    tracker, builder = _tracked(root)
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
    except Exception as again:
        if type(again) is type(error) and tracker.open:
            return _worded(tracker, number, again)
    error.add_note(f"in example {number}")
    return error


def _worded(tracker: _Tracker, number: int, error: Exception) -> Exception:
    step = tracker.open[-1]
    where = f"in example {number}" + (f" at {step.place}" if step.place else "")
    meaning = step.block._explain(error, step.given)
    if tracker.at is not None and hasattr(step.block, "_explain_key"):
        meaning = step.block._explain_key(tracker.at[0])
    if meaning is None:
        error.add_note(f"{step.path}: {where}")
        return error
    made = type(meaning)(f"{step.path}: {meaning}, {where}")
    made.__cause__ = None if isinstance(error, WeftError) else error
    return made


def blamed(code: Code, programs: Sequence[BlockProgram], call: int, error: Exception) -> None:
    """An error that came up while computing: say in which block."""
    for program in programs:
        if call < len(program.calls.type):
            kind = code.kinds.known[int(program.calls.type[call])]
            error.add_note(f"while computing {kind.where or kind.name}")
            return
        call -= len(program.calls.type)


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
        place = f" at {step.place}" if step.place else ""
        value = _brief(step.value)
        return f"{'  ' * step.depth}{described(step.block)}{place}: {short_type(step.block._known('output'))} = {value}"


def _brief(value: Any) -> str:
    if isinstance(value, Tensor):
        value = value.tolist()
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def trace(root: Block, x: Any) -> Trace:
    """Record and compute one example, and keep the value of every step."""
    from weft.blocks.evaluate import REFERENCE
    from weft.blocks.flushing import Fiber, History, advance, no_notes

    tracker, builder = _tracked(root)
    history = History(root, tracker.code, builder, REFERENCE)
    advance(root, builder, history, [Fiber(0, x, builder.record(x), no_notes(builder))])
    for step in tracker.steps:
        step.given = _computed(history, step.given, step.block._known("input"))
        step.value = _computed(history, step.value, step.block._known("output"))
    return Trace(tracker.steps)


def _computed(history: Any, value: Any, type: ResultType) -> Any:
    """References replaced by what they refer to."""
    if isinstance(type, TupleType):
        return tuple(_computed(history, part, kind) for part, kind in zip(value, type, strict=True))
    if isinstance(type, BroadcastSequenceType):
        return itertools.repeat(_computed(history, value, type.element_type))
    if isinstance(type, SequenceType):
        return [_computed(history, item, type.element_type) for item in value]
    if isinstance(type, TensorType):
        return history.value(value[0] if type.ragged else value)
    return value
