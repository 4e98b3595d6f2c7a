"""Recording examples: the loop that runs a root block's code, and the programs that come out.

The code is generators that call each other by handing over (function, argument); here they are stacked, so nesting in the data
is limited by memory alone. Code that needs the value of a tensor hands over (None, references) and waits.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from weft.blocks.code import Code, leaves_of
from weft.blocks.faults import Endless
from weft.blocks.types import PyObjectType
from weft.errors import StructureError
from weft.graph.recording import OUTPUT_BITS, CallProgram, References, Table, merge_calls, table

Counts = npt.NDArray[np.int64]
Waiting = Generator[tuple[bool | None, Any], Any, Any]
"""Yields (None, references) whose values must be known, and is sent whether they are non-zero; or (False, (function, items)),
work that may wait by itself, and is sent all results."""


WATCHED = 1 << 17
"""Calls inside each other from which on it is looked whether the data contains itself."""
WINDOW = 10_000
"""How many of them are looked at."""


@dataclass(frozen=True, eq=False)
class BlockProgram:
    """The recorded calls of one example or several, where their results are, and what came out as Python objects."""

    count: int
    made_by: int
    """The key of the code that recorded it."""
    calls: CallProgram
    sizes: Counts
    """How many calls each example made."""
    extra: tuple[tuple[str, tuple[int, ...]], ...]
    """Kinds that depend on lengths: their numbers in `calls` follow those that every program knows."""
    outputs: tuple[References, ...]
    lengths: tuple[Counts, ...]
    objects: tuple[list[Any], ...]
    metrics: tuple[References, ...]
    labels: tuple[list[Any], ...]

    def __len__(self) -> int:
        return self.count

    def to(self, device: torch.device | str) -> BlockProgram:
        """The program with its data on a device."""
        data: dict[tuple[int, int], Table] = {key: torch.as_tensor(rows).to(device) for key, rows in self.calls.data.items()}
        return replace(self, calls=replace(self.calls, data=data))


@dataclass(eq=False)
class Builder:
    """Lists that grow while examples are recorded, and the code bound to them."""

    code: Code
    type: list[int] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    further: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """How many calls there were after each example."""
    data: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    extra: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)
    notes: dict[str, list[Any]] = field(default_factory=dict)
    """What the examples give, by kind of leaf: W references, N lengths, O objects, M metrics, L their labels."""
    names: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        code = self.code
        tensors, sequences, objects = leaves_of(code.type)
        counts = {"W": len(tensors), "N": sequences, "O": objects, "M": len(code.metrics), "L": len(code.metrics)}
        self.notes = {f"{letter}{place}": [] for letter, count in counts.items() for place in range(count)}
        self.data = {(k, i): [] for k, kind in enumerate(code.kinds.known[: code.static]) for i in range(len(kind.feeds))}
        self.names = {
            **code.objects,
            **{name: notes.append for name, notes in self.notes.items()},
            **{f"F{kind}_{place}": rows.append for (kind, place), rows in self.data.items()},
            "t": self.type,
            "T": self.type.append,
            "A": self.arguments.append,
            "E": self.arguments.extend,
            "R": self.further.append,
            "KIND": self._kind,
        }
        exec(code.compiled, self.names)

    def _kind(self, name: str, *lengths: int) -> int:
        found = self.extra.get((name, lengths))
        if found is None:
            found = self.extra[name, lengths] = self.code.static + len(self.extra)
        return found

    def record(self, example: Any) -> Waiting:
        """Record one example."""
        return self.drive(self.names["MAIN"], example)

    def drive(self, function: Any, argument: Any) -> Waiting:
        """Run a function of the code, and all those that it calls; its result is returned."""
        stack: list[Any] = []
        watched = WATCHED
        send, value = function(argument).send, None
        while True:
            try:
                function, argument = send(value)
            except StopIteration as end:
                if not stack:
                    return end.value
                send, value = stack.pop(), end.value
                continue
            if not function:
                value = yield function, argument
                continue
            stack.append(send)
            if len(stack) == watched:
                watched *= 2
                self._check_ends(stack)
            send, value = function(argument).send, None

    def _check_ends(self, stack: list[Any]) -> None:
        """Data that contains itself would be followed until there is no memory left."""
        seen: set[tuple[str, int]] = set()
        for send in stack[-WINDOW:]:
            frame = send.__self__.gi_frame
            name, x = frame.f_code.co_name, frame.f_locals.get("x")
            unit = self.code.units.get(name)
            if unit is None or not isinstance(unit.input_type, PyObjectType) or hasattr(type(x), "__next__"):
                continue  # what an iterator leads to is another thing each time
            if (name, id(x)) in seen:
                kind = type(x).__name__
                got = f"a {kind} that contains itself" if isinstance(x, list | dict) else f"the same {kind} again"
                raise Endless(f"{unit._path()}: expected data that ends, got {got}")
            seen.add((name, id(x)))

    def finish(self, count: int) -> BlockProgram:
        """What was recorded, as arrays; the lists are empty afterwards."""
        kinds = self.code.kinds.known
        tables = {(k, i): table(rows, kinds[k].feeds[i].dtype) for (k, i), rows in self.data.items() if rows}
        calls = CallProgram(
            np.array(self.type, np.int32), np.array(self.arguments, np.int64), np.array(self.further, np.int32), tables
        )
        made = BlockProgram(
            count,
            self.code.key,
            calls,
            np.array(self.ends, np.int64) - np.array([0, *self.ends[:-1]], np.int64)[: len(self.ends)],
            tuple(self.extra),
            tuple(np.array(rows, np.int64) for rows in self._notes("W")),
            tuple(np.array(rows, np.int64) for rows in self._notes("N")),
            tuple(list(rows) for rows in self._notes("O")),
            tuple(np.array(rows, np.int64) for rows in self._notes("M")),
            tuple(list(rows) for rows in self._notes("L")),
        )
        self._clear()
        return made

    def _notes(self, letter: str) -> list[list[Any]]:
        return [rows for name, rows in self.notes.items() if name[0] == letter]

    def _clear(self) -> None:
        self.extra.clear()
        for rows in (self.type, self.arguments, self.further, self.ends, *self.data.values(), *self.notes.values()):
            rows.clear()


def numbered(code: Code, program: BlockProgram) -> BlockProgram:
    """The program with the numbers that kinds which depend on lengths have in this process."""
    if program.made_by != code.key:
        raise StructureError("a program was recorded by another network, or before its types changed; record the example again")
    if not program.extra:
        return program
    numbers = [*range(code.static), *(code.length_kind(name, lengths) for name, lengths in program.extra)]
    types = np.array(numbers, np.int32)[program.calls.type]
    return replace(program, calls=replace(program.calls, type=types, _cache={}), extra=())


def side_by_side(programs: Sequence[BlockProgram], calls: CallProgram) -> BlockProgram:
    """Programs as one, whose calls are `calls`: those of all programs, one after the other."""
    if len(programs) == 1:
        return programs[0]
    first = np.cumsum([0, *(len(program.calls.type) for program in programs)])[:-1] << OUTPUT_BITS

    def shifted(parts: Sequence[References]) -> References:
        return np.concatenate(parts) + np.repeat(first, [len(part) for part in parts])

    def columns(name: str) -> list[tuple[Any, ...]]:
        return list(zip(*(getattr(program, name) for program in programs), strict=True))

    return BlockProgram(
        sum(program.count for program in programs),
        programs[0].made_by,
        calls,
        np.concatenate([program.sizes for program in programs]),
        (),
        tuple(shifted(parts) for parts in columns("outputs")),
        tuple(np.concatenate(parts) for parts in columns("lengths")),
        tuple(list(chain.from_iterable(parts)) for parts in columns("objects")),
        tuple(shifted(parts) for parts in columns("metrics")),
        tuple(list(chain.from_iterable(parts)) for parts in columns("labels")),
    )


def merge(code: Code, programs: Sequence[BlockProgram]) -> BlockProgram:
    """Programs side by side, as one."""
    programs = [numbered(code, program) for program in programs]
    return side_by_side(programs, merge_calls([program.calls for program in programs]))
