"""Less memory from forward to backward, where pointwise work costs next to nothing: on a GPU, whose kernels wait for memory.

1. A pointwise value whose operands are there anyway (states, which live in arenas, or other values that are kept) is not
   kept: the backward piece that reads it computes it again. Of an LSTM that is `tanh(c)`.
2. Values that only the backward step reads, and reads first of all, are put side by side in rows as wide as a gradient that
   this step stores. The gradient is then written over them:

       forward    | i | f | o | u |        one row of memory for each node
       backward   |di |df |do |du |        the same memory, for the gradient in front of the gates

3. Where the forward step keeps such rows, and has read rows of the same width that nobody needs any more, what `before` put
   in front of the gates, it writes the ones over the others.

What is kept is decided once for each cell, so that every backward piece finds it, whatever gradients it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from weft.graph.tape import Name, Rows, Tape, Value, operands, replace
from weft.run.rowview import reads_in_place, row_width
from weft.run.views import bases, is_free

if TYPE_CHECKING:
    from weft.run.split import Split

aten = torch.ops.aten

BACKWARD = ("late", "back", "sums")


@dataclass(frozen=True)
class Kept:
    """Names of values that are computed again, and of those that share a row of memory, by the name of that row."""

    again: frozenset[str]
    rows: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Over:
    """A kept value over which a gradient is written, and who reads it before: these must be part of one kernel."""

    kept: str
    readers: frozenset[str]


class Thrift:
    """What one cell keeps. `exchanged` are outputs that live in arenas, `pointwise` tells what kernels compute in place."""

    def __init__(self, exchanged: frozenset[Name], pointwise: Callable[[Value], bool]) -> None:
        self.exchanged, self.pointwise = exchanged, pointwise
        self.kept: Kept | None = None

    def decide(self, cut: Split) -> Kept:
        """What to keep; said by the first cut, and so for all others."""
        if self.kept is None:
            again = self._again(cut)
            self.kept = Kept(frozenset(value.name for value in again), {})
            over: dict[str, tuple[str, ...]] = {}
            spare = [v for v in self._only_read_first(cut) if not any(v is one for one in again)]
            for number, gradient in enumerate(self._gradients(cut)):
                chosen = _that_fill(gradient, spare)
                spare = [value for value in spare if not any(value is one for one in chosen)]
                if len(chosen) > 1:
                    over[f"kept_row{number}"] = tuple(value.name for value in chosen)
            self.kept = Kept(self.kept.again, over)
        return self.kept

    def _again(self, cut: Split) -> list[Value]:
        there = {id(value) for name, value in cut.outputs.items() if name in self.exchanged}
        results = {id(base) for value in (*cut.outputs.values(), *cut.gradients.values()) for base in bases(value)}
        taken = [{id(value) for value in cut.pieces[stage].takes} for stage in BACKWARD]
        found = []
        for value in cut.tape.values:
            readers = [takes for takes in taken if id(value) in takes]
            if not readers or cut.home.get(id(value), "late") in BACKWARD or id(value) in there | results:
                continue
            needed = [base for operand in operands(value) for base in bases(operand) if not _same_for_all(base, cut)]
            if self.pointwise(value) and all(id(base) in there | takes for takes in readers for base in needed):
                found.append(value)
        return found

    def _only_read_first(self, cut: Split) -> list[Value]:
        """Values of the forward step that nobody but the backward step reads, by pointwise operations before any other."""
        others = {id(v) for stage in ("after", "late", "sums") for v in cut.pieces[stage].takes}
        others |= {id(base) for value in cut.outputs.values() for base in bases(value)}
        late = self._after_others(cut)
        found = []
        for value in cut.pieces["back"].takes:
            if cut.home.get(id(value)) == "during" and id(value) not in others and _plain_rows(value):
                if all(id(reader) not in late and reads_in_place(reader, value) for reader in _readers(cut, value)):
                    found.append(value)
        return found

    def _after_others(self, cut: Split) -> set[int]:
        """Values of the backward step that are no pointwise work within their columns, or come after such."""
        found: set[int] = set()
        inside = {id(value) for value in cut.pieces["back"].values}
        for value in cut.pieces["back"].values:
            needed = [base for operand in operands(value) for base in bases(operand) if id(base) in inside]
            across = any(row_width(base) != 1 and not reads_in_place(value, base) for base in needed)
            if across or any(id(base) in found for base in needed) or not self.pointwise(value):
                found.add(id(value))
        return found

    def _gradients(self, cut: Split) -> list[Value]:
        """What the backward step leaves for the sums, the widest first."""
        returned = {id(base) for value in cut.gradients.values() for base in bases(value)}
        found = [v for v in cut.pieces["sums"].takes if cut.home.get(id(v)) == "back" and _plain_rows(v)]
        return sorted((v for v in found if id(v) not in returned), key=lambda v: -_width(v))

    def overwritten(self, cut: Split) -> dict[str, Over]:
        """By the name of a gradient the kept value that it is written over."""
        found: dict[str, Over] = {}
        spare = self._only_read_first(cut)
        for gradient in self._gradients(cut):
            same = [value for value in spare if value.shape == gradient.shape and value.dtype == gradient.dtype]
            if same:
                spare.remove(same[0])
                readers = frozenset(reader.name for reader in _readers(cut, same[0]))
                found[gradient.name] = Over(same[0].name, readers | {gradient.name})
        return found

    def over_collected(self, cut: Split) -> dict[str, Over]:
        """By the name of a gradient that is written over nothing kept, a gradient of a state that only the backward step reads,
        and reads first of all: where that was put together in rows of its own, the one may be written over the other."""
        late, found = self._after_others(cut), dict[str, Over]()
        others = {id(v) for stage in ("late", "sums") for v in cut.pieces[stage].takes}
        others |= {id(v) for v in cut.pieces["back"].gives}
        collected = {id(v) for name, v in cut.tape.inputs.items() if name[0] == "ct" and name[1] in self.exchanged} - others
        states = [v for v in cut.pieces["back"].takes if id(v) in collected and _plain_rows(v)]
        spare = [v for v in states if all(id(one) not in late and reads_in_place(one, v) for one in _readers(cut, v))]
        for gradient in self._gradients(cut):
            same = [value for value in spare if value.shape == gradient.shape and value.dtype == gradient.dtype]
            if same and gradient.name not in cut.overwritten:
                spare.remove(same[0])
                readers = frozenset(reader.name for reader in _readers(cut, same[0]))
                found[gradient.name] = Over(same[0].name, readers | {gradient.name})
        return found

    def laid_over(self, cut: Split) -> dict[str, Over]:
        """By the name of what the forward step keeps, something that this step alone reads; if the step is one stage."""
        during, found = cut.pieces["during"], dict[str, Over]()
        inside = {id(value) for value in during.values}
        for value in during.values:
            if not self.pointwise(value) and any(id(base) in inside for one in operands(value) for base in bases(one)):
                return {}
        backward = {id(value) for stage in BACKWARD for value in cut.pieces[stage].takes}
        results = {id(base) for value in cut.outputs.values() for base in bases(value)}
        others = backward | results | {id(value) for value in cut.pieces["after"].takes}
        spare = [v for v in during.takes if cut.home.get(id(v)) == "before" and id(v) not in others and _plain_rows(v)]
        spare = [v for v in spare if all(self.pointwise(one) and reads_in_place(one, v) for one in _readers(cut, v, "during"))]
        for kept in during.gives:
            same = [value for value in spare if value.shape == kept.shape and value.dtype == kept.dtype]
            if same and id(kept) in backward - results and _plain_rows(kept):
                spare.remove(same[0])
                found[kept.name] = Over(same[0].name, frozenset(one.name for one in _readers(cut, same[0], "during")))
        return found


def _plain_rows(value: Value) -> bool:
    shape = value.shape or ()
    return not is_free(value) and len(shape) == 2 and shape[0] == Rows("n") and value.dtype is not None


def _same_for_all(value: Value, cut: Split) -> bool:
    """A number, or a tensor that the cell captures."""
    return value.constant is not None or (value.rows is None and id(value) not in cut.home)


def _width(value: Value) -> int:
    width = (value.shape or (0, 0))[1]
    assert isinstance(width, int)
    return width


def _that_fill(gradient: Value, spare: list[Value]) -> list[Value]:
    """Some of the values that together are as wide as a gradient; nothing where they do not fill it."""
    left, chosen = _width(gradient), list[Value]()
    for value in sorted(spare, key=lambda v: -_width(v)):
        if value.dtype == gradient.dtype and _width(value) <= left:
            chosen.append(value)
            left -= _width(value)
    return [] if left else chosen


def _readers(cut: Split, value: Value, stage: str = "back") -> Iterator[Value]:
    for reader in cut.pieces[stage].values:
        if any(base is value for operand in operands(reader) for base in bases(operand)):
            yield reader


def apply_thrift(tape: Tape, home: dict[int, str], kept: Kept) -> None:
    """Rewrite a tape so that its backward pieces read what is kept."""
    for stage in BACKWARD:
        _compute_again(tape, home, kept.again, stage)
    for name, parts in kept.rows.items():
        _put_side_by_side(tape, home, name, parts)


def _compute_again(tape: Tape, home: dict[int, str], again: frozenset[str], stage: str) -> None:
    """Give a piece its own copies of the values that it computes again."""
    instead: dict[int, Value] = {}
    values: list[Value] = []
    copies: list[Value] = []
    for value in tape.values:
        values.append(value)
        if value.name in again and home.get(id(value)) not in (None, *BACKWARD):
            args = replace(value.args, lambda one: _seen_now(one, instead))
            copy = Value(f"{value.name}_{stage}", value.target, args, value.kwargs, value.shape, value.dtype)
            instead[id(value)] = copy
            values.append(copy)
            copies.append(copy)
    tape.values = values
    _redirect(tape, home, instead, (stage,))
    needed = {id(base) for value in tape.values if home.get(id(value)) == stage for o in operands(value) for base in bases(o)}
    for copy in reversed(copies):
        if id(copy) in needed:
            home[id(copy)] = stage
            needed.update(id(base) for operand in operands(copy) for base in bases(operand))


def _put_side_by_side(tape: Tape, home: dict[int, str], name: str, names: tuple[str, ...]) -> None:
    by_name = {value.name: value for value in tape.values}
    parts = [by_name[one] for one in names]
    rows, width = (parts[0].shape or ())[0], sum(map(_width, parts))
    joined = Value(name, aten.cat.default, (parts, 1), {}, (rows, width), parts[0].dtype)
    instead, start = {}, 0
    for number, part in enumerate(parts):
        args = (joined, 1, start, start + _width(part))
        instead[id(part)] = Value(f"{name}_{number}", aten.slice.Tensor, args, {}, part.shape, part.dtype)
        start += _width(part)
    last = max(tape.values.index(part) for part in parts)
    tape.values.insert(last + 1, joined)
    home[id(joined)] = "during"
    _redirect(tape, home, instead, BACKWARD)


def _redirect(tape: Tape, home: dict[int, str], instead: dict[int, Value], stages: tuple[str, ...]) -> None:
    """Let the operations of some pieces read other values, through the same views."""
    seen = dict(instead)
    for value in tape.values:
        if home.get(id(value)) in stages and not is_free(value):
            value.args = replace(value.args, lambda one: _seen_now(one, seen))
            value.kwargs = replace(value.kwargs, lambda one: _seen_now(one, seen))


def _seen_now(value: Value, instead: dict[int, Value]) -> Value:
    """A value as it is read now: a view of something that was replaced is made anew."""
    if id(value) not in instead:
        instead[id(value)] = value
        if is_free(value):
            args = replace(value.args, lambda one: _seen_now(one, instead))
            if any(a is not b for a, b in zip(operands(value), operands(Value("", None, args)), strict=False)):
                instead[id(value)] = Value(f"{value.name}_now", value.target, args, value.kwargs, value.shape, value.dtype)
    return instead[id(value)]
