"""Code whose path depends on values: run what is recorded so far, look, go on.

All examples are recorded together, and the items of a `Map` whose block looks at values as well; each stops where it must know
a value. When every one is finished or waits, everything that was recorded runs as one batch, and those that wait go on. What an
earlier batch computed and a later one needs is fed to it, with its gradient.

    example 0   record ── wait ────────── record ── wait ── ...
    example 1   record ───── wait ─────── record ─ end
                               └ one batch ┘          └ one batch
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.blocks.block import Block
from weft.blocks.building import Builder, Waiting
from weft.blocks.code import Code, leaves_of, surroundings
from weft.blocks.diagnose import explained, note_place
from weft.blocks.evaluate import noted
from weft.blocks.kinds import Kind
from weft.blocks.results import Results, empty_rows
from weft.blocks.types import TensorType
from weft.graph.program import Ints
from weft.graph.recording import OUTPUT_BITS, CallProgram, References, table
from weft.run.blaming import run_blaming
from weft.run.calls import Group
from weft.run.options import Options

LOW = (1 << OUTPUT_BITS) - 1


@dataclass(frozen=True, eq=False)
class _Batch:
    """What one batch computed: every output of its calls, and where it is."""

    first: int
    start: References
    """Number of the first output of each call."""
    groups: list[Group]
    group: Ints
    row: Ints


class History:
    """Runs what a builder has recorded, bit by bit, and remembers all values."""

    def __init__(self, root: Block, code: Code, builder: Builder, options: Options) -> None:
        self.root, self.code, self.builder, self.options = root, code, builder, options
        self.device, self.further = surroundings(code)
        self.batches: list[_Batch] = []
        self.firsts: list[int] = []
        """The first call of each of them."""
        self.done = {"calls": 0, "arguments": 0, "further": 0}
        self.rows_done: dict[tuple[int, int], int] = {}
        self.kinds: list[int] = []
        self.turns: list[tuple[int, int]] = []
        """The first call that an example recorded each time it went on, and the example."""

    def flush(self) -> None:
        """Compute the calls recorded since the last time."""
        builder, done = self.builder, self.done
        first = done["calls"]
        numbers = [
            *range(self.code.static),
            *(self.code.length_kind(name, lengths) for name, lengths in builder.extra),
        ]
        new = np.array(numbers, np.int32)[np.array(builder.type[first:], np.int64)]
        if not len(new):
            return
        self.kinds += new.tolist()
        arguments = np.array(builder.arguments[done["arguments"] :], np.int64)
        further = np.array(builder.further[done["further"] :], np.int32)
        data = self._new_data()
        done.update(calls=len(builder.type), arguments=len(builder.arguments), further=len(builder.further))
        before = np.unique(arguments[arguments >> OUTPUT_BITS < first])
        known, brought = self._bring(before, data)
        shift = len(brought) - first << OUTPUT_BITS
        new_arguments = arguments + shift
        old = arguments >> OUTPUT_BITS < first
        new_arguments[old] = known[np.searchsorted(before, arguments[old])]
        program = CallProgram(np.concatenate([brought, new]).astype(np.int32), new_arguments, further, data)
        counts = np.array([len(self._kind(number).outputs) for number in new.tolist()], np.int64)
        start = np.concatenate([[0], np.cumsum(counts)])
        calls = np.repeat(np.arange(len(new)) + len(brought), counts)
        outputs = np.arange(start[-1]) - np.repeat(start[:-1], counts)
        library = self.code.library(self.device, self.further, self.options.dedupe)

        def blame(call: int, error: Exception) -> None:
            at = call - len(brought) + first
            if at >= first:
                example = self.turns[bisect_right(self.turns, at, key=lambda turn: turn[0]) - 1][1] if self.turns else 0
                note_place(error, self._kind(self.kinds[at]), example)

        groups = run_blaming(library, [program], calls << OUTPUT_BITS | outputs, self.options, blame, final=False)
        group, row = np.empty(start[-1], np.int32), np.empty(start[-1], np.int32)
        for number, each in enumerate(groups):
            group[each.at], row[each.at] = number, np.arange(len(each.at))
        self.batches.append(_Batch(first, start, groups, group, row))
        self.firsts.append(first)

    def _kind(self, number: int) -> Kind:
        return self.code.kinds.known[number]

    def _new_data(self) -> dict[tuple[int, int], Any]:
        found = {}
        for (kind, place), rows in self.builder.data.items():
            seen = self.rows_done.get((kind, place), 0)
            if len(rows) > seen:
                found[kind, place] = table(rows[seen:], self._kind(kind).feeds[place].dtype)
                self.rows_done[kind, place] = len(rows)
        return found

    def _bring(self, before: References, data: dict[tuple[int, int], Any]) -> tuple[References, Ints]:
        """Calls that bring in values of earlier batches: their references, and their kinds."""
        kinds: dict[int, list[int]] = {}
        for at, ref in enumerate(before.tolist()):
            spec = self._kind(self.kinds[ref >> OUTPUT_BITS]).outputs[ref & LOW]
            kinds.setdefault(self.code.value_kind(TensorType(spec.shape, spec.dtype)), []).append(at)
        known = np.empty(len(before), np.int64)
        brought: list[int] = []
        for kind, places in kinds.items():
            known[places] = np.arange(len(brought), len(brought) + len(places)) << OUTPUT_BITS
            brought += [kind] * len(places)
            data[kind, 0] = self.rows(before[places])
        return known, np.array(brought, np.int32)

    def rows(self, refs: References) -> Tensor:
        """The values of references that have one shape and dtype, as rows of one tensor."""
        pieces: list[Tensor] = []
        places: list[Any] = []
        numbers, outputs = refs >> OUTPUT_BITS, refs & LOW
        source = np.searchsorted(np.array(self.firsts), numbers, "right") - 1
        for at in np.unique(source).tolist():
            batch, here = self.batches[at], np.flatnonzero(source == at)
            wanted = batch.start[numbers[here] - batch.first] + outputs[here]
            for group in np.unique(batch.group[wanted]).tolist():
                mine = batch.group[wanted] == group
                rows = batch.groups[group].rows
                chosen = torch.from_numpy(batch.row[wanted[mine]].astype(np.int64)).to(rows.device)
                pieces.append(rows.index_select(0, chosen))
                places.append(here[mine])
        whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        order = np.argsort(np.concatenate(places), kind="stable")
        return whole if (order == np.arange(len(order))).all() else whole[torch.from_numpy(order).to(whole.device)]

    def truths(self, refs: list[int]) -> list[bool]:
        """Whether values are other than zero."""
        if not refs:
            return []
        found: list[bool] = (self.rows(np.array(refs, np.int64)).detach().reshape(-1) != 0).tolist()
        return found

    def value(self, ref: int) -> Tensor:
        return self.rows(np.array([ref], np.int64))[0]


@dataclass(eq=False)
class Fiber:
    """One example, or one item of a sequence in it, on its way."""

    number: int
    example: Any
    going: Waiting
    notes: dict[str, list[Any]]
    parent: Fiber | None = None
    children: list[Fiber] = field(default_factory=list)
    unfinished: int = 0
    result: Any = None


def run_in_flushes(root: Block, code: Code, examples: Sequence[Any], options: Options) -> Results:
    """Evaluate examples whose path depends on values."""
    builder = Builder(code)
    history = History(root, code, builder, options)
    fibers = [Fiber(n, x, builder.record(x), no_notes(builder)) for n, x in enumerate(examples)]
    advance(root, builder, history, fibers)
    for fiber in fibers:
        for name, seen in fiber.notes.items():
            builder.notes[name] += seen
    program = builder.finish(len(examples))
    types = [*leaves_of(code.type)[0], *code.metrics.values()]
    rows: list[Any] = []
    for refs, type in zip([*program.outputs, *program.metrics], types, strict=True):
        if type.ragged:
            rows.append([history.value(ref) for ref in refs.tolist()])
        else:
            rows.append(history.rows(refs) if len(refs) else empty_rows(type, history.device))
    return noted(root, code, program, rows)


def advance(root: Block, builder: Builder, history: History, fibers: Sequence[Fiber]) -> None:
    """Let all fibers go on until none is left, with one batch whenever all of them wait."""
    ready: deque[tuple[Fiber, Any]] = deque((fiber, None) for fiber in fibers)
    while ready:
        waiting: list[tuple[Fiber, list[int]]] = []
        while ready:
            fiber, answer = ready.popleft()
            history.turns.append((len(builder.type), fiber.number))
            request = _resume(root, builder, fiber, answer)
            if request is None:
                _finished(fiber, ready)
            elif request[0] is None:
                waiting.append((fiber, request[1]))
            else:
                function, items = request[1]
                _fork(builder, fiber, function, items, ready)
        history.flush()
        answers = iter(history.truths([ref for _, refs in waiting for ref in refs]))
        ready.extend((fiber, [next(answers) for _ in refs]) for fiber, refs in waiting)


def _resume(root: Block, builder: Builder, fiber: Fiber, answer: Any) -> tuple[bool | None, Any] | None:
    """What the fiber asks for next; None where it has ended."""
    request = None
    try:
        request = fiber.going.send(answer)
    except StopIteration as end:
        fiber.result = end.value
    except Exception as error:
        raise explained(root, fiber.example, fiber.number, error, len(builder.type)) from None
    for name, rows in builder.notes.items():
        fiber.notes[name] += rows
        rows.clear()
    return request


def _fork(builder: Builder, fiber: Fiber, function: Any, items: list[Any], ready: deque[tuple[Fiber, Any]]) -> None:
    """A fiber for each item; the one that asked goes on when all have ended."""
    fiber.children = [
        Fiber(fiber.number, fiber.example, builder.drive(function, item), no_notes(builder), fiber) for item in items
    ]
    fiber.unfinished = len(items)
    ready.extend((child, None) for child in fiber.children)
    if not items:
        ready.append((fiber, []))


def _finished(fiber: Fiber, ready: deque[tuple[Fiber, Any]]) -> None:
    parent = fiber.parent
    if parent is None:
        return
    parent.unfinished -= 1
    if parent.unfinished == 0:
        for child in parent.children:
            for name, rows in child.notes.items():
                parent.notes[name] += rows
        ready.append((parent, [child.result for child in parent.children]))
        parent.children = []


def no_notes(builder: Builder) -> dict[str, list[Any]]:
    return {name: [] for name in builder.notes}
