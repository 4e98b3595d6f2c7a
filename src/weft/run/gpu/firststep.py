"""A first step over leaves that hand on their input, in plans where no other step reads leaves: full trees, equal chains.

Such leaves need no rows in an arena. The first step takes their rows from where they are fed, and so does what adds up
gradients of weights; nothing is given back to them. What the other steps give back lies in the order of the rows that it is
given to, so that a gradient which a step leaves for those sums may be written over it:

    forward    | fed rows |            read by the first step, and gone
                          | states |   kept
    backward              | what is given back to the states, then the gradients in front of the weights |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.graph.tape import Name, Value, operands
from weft.plan.plan import Group, Read
from weft.run.code import CellCode
from weft.run.emit import Code, emit, needed_part
from weft.run.execution import Execution
from weft.run.gpu.apart import fits_apart
from weft.run.gpu.pointwise import emit_triton
from weft.run.indices import Indices
from weft.run.recipeforward import Saved, only_fed
from weft.run.recipetypes import TypeText
from weft.run.split import Piece, Split
from weft.run.views import bases

if TYPE_CHECKING:
    from weft.run.gpu.recipeforward import GpuForwardText

LEAST = 512
"""Rows of a first step that is worth launches of its own."""


@dataclass(frozen=True, eq=False)
class FirstStep:
    """Of one group: the type whose step it is, the type of the leaves, and what these are fed for each key of their state."""

    reader: int
    source: int
    read: Read
    feeds: dict[Name, Name]

    def rows(self, source: TypeText, by: int = 1) -> str:
        """How many rows the step has; or a part of that."""
        t, each = self.source, self.read.width * by
        return source.writer.fact(("part of rows", t, each), lambda indices: len(indices.plan.rows[t]) // each)

    def children(self, reader: TypeText, source: TypeText, value: Value, lo: str, hi: str) -> str:
        """What some rows of the step read, from where it is fed."""
        name: Any = reader.code.input_name[value.name]
        tensor = f"tensors[{source.inputs[source.type, self.feeds[name[-1]]]}]"
        which = f"0, {lo} * {self.read.width}, ({hi} - {lo}) * {self.read.width}"
        if source.in_order():
            rows = f"{tensor}.narrow({which})"
        else:
            rows = f"{tensor}.index_select(0, {source.fed_rows()}.narrow({which}))"
        return reader.writer.let(f"{rows}.view({self.shape(value, f'{hi} - {lo}')})")

    def shape(self, value: Value, rows: str) -> str:
        return ", ".join(map(str, [rows, *[size for size in (value.shape or ())[1:] if isinstance(size, int)]]))


def first_step(text: GpuForwardText, number: int, group: Group) -> FirstStep | None:
    """The first step of a group, where it is such a one in this plan and all plans of the recipe."""
    plan, reader = text.plan, text.types[group.types[0]]
    reads = [read for read in plan.reads if read.type == reader.type and read.recurrent]
    if len(group.types) > 1 or len(reads) != 1 or reads[0].kind != "slots":
        return None
    read = reads[0]
    members = dict(plan.classes[read.value_class].members)
    others = [type for type in members if type != reader.type]
    alone = sum(one.value_class == read.value_class for one in plan.reads) == 1
    if len(others) != 1 or len(plan.classes[read.value_class].members) != 2 or not alone:
        return None
    source = text.types[others[0]]
    feeds = _feeds(text, source)
    if feeds is None or not _suits(text, reader) or not all(one.class_range(members[one.type]) for one in (source, reader)):
        return None
    asked = partial(_reads_all_leaves, number, plan.reads.index(read), source.type, members[source.type])
    if not text.writer.ask(("first step", number), asked, by_rows=True):
        return None
    return FirstStep(reader.type, source.type, read, feeds)


def _feeds(text: GpuForwardText, source: TypeText) -> dict[Name, Name] | None:
    """What leaves hand on, by the key of their state; None where they do more, or somebody else asks for it."""
    code, cell = source.code, text.execution.call.cells[source.type]
    wanted = any(cell.own_name(one.name) in code.split.outputs for one in text.execution.call.wanted)
    fed = only_fed(source, code.codes["before"]) if [*code.codes] == ["before"] else None
    if fed is None or wanted or code.role.gradients or code.has_twins:
        return None
    return {name[1]: fed[value.name] for name, value in code.split.outputs.items() if name in code.role.exchanged}


def _suits(text: GpuForwardText, reader: TypeText) -> bool:
    """Whether states of children are read by the forward step and by sums over all rows, and by nobody else."""
    split, role = reader.code.split, reader.code.role
    states = {id(value) for name, value in split.tape.inputs.items() if name in role.recurrent_in}

    def reads(stage: str) -> bool:
        return any(id(value) in states for value in split.pieces[stage].takes)

    captured = {id(value) for name, value in split.gradients.items() if name[0] == "capture"}
    only_sums = all(id(value) in captured for value in split.pieces["sums"].gives)
    pieces = [split.pieces[stage] for stage in ("during", "back", "sums")]
    plain = all(value.rows is None or (value.row_dim == 0 and value.rows.times == 1) for value in pieces[2].takes)
    fits = all(fits_apart(text.writer, reader, piece) for piece in pieces[:2])
    return fits and only_sums and plain and not any(map(reads, ("before", "after", "late", "back")))


def _reads_all_leaves(number: int, read: int, source: int, output: int, indices: Indices) -> bool:
    """Whether the first step reads all leaves in order, and so no other step any."""
    plan, leaves = indices.plan, indices.class_rows(source, output)
    rows = int(plan.groups[number].step_hi[0])
    there = plan.reads[read]
    return (
        rows >= LEAST
        and not plan.classes[there.value_class].has_empty
        and leaves == (0, rows * there.width)
        and indices.read(there).whole_slice == 0
    )


def with_leaves(execution: Execution, about: Saved, tensors: Sequence[Tensor], saved: Sequence[Tensor]) -> list[Tensor]:
    """What a forward pass kept, as the general way back wants it: arenas with the rows of leaves, too."""
    found, inputs, fed = list(saved), execution.input_numbers(), execution.indices
    for first in about.first_steps.values():
        rows, many = fed.rows(first.source), len(fed.plan.rows[first.source])
        for at, (number, key) in enumerate(about.arenas, len(about.names)):
            if number == first.read.value_class:
                tensor = tensors[inputs[first.source, first.feeds[key]]]
                leaves = tensor[:many] if rows is None else tensor.index_select(0, rows)
                found[at] = torch.cat([leaves, saved[at]])
    return found


def say_sums(first: FirstStep, text: TypeText, source: TypeText, cut: Split, states: dict[Name, str]) -> None:
    """Sums over all rows: of rows of other steps, whose children are `states` in order; and of the first step's, in two parts,
    for which less memory is needed at a time."""
    writer, n, begin, half = text.writer, text.n, first.rows(source), first.rows(source, 2)
    over_children, rest = _in_two(text.code, cut)
    if rest is not None:
        text.run_whole(rest)
    if over_children is None:
        return

    def argument(value: Value, lo: str, hi: str) -> str:
        name: Any = text.code.input_name.get(value.name)
        if name not in text.code.role.recurrent_in:
            return f"{text.whole(value)}{f'.narrow(0, {lo}, {hi} - {lo})' * (value.rows is not None)}"
        if lo != begin:
            return first.children(text, source, value, lo, hi)
        rows = f"{states[name[-1]]}.narrow(0, 0, ({hi} - {lo}) * {first.read.width})"
        return writer.let(f"{rows}.view({first.shape(value, f'{hi} - {lo}')})")

    found: list[list[str]] = []
    for lo, hi in ((begin, n), ("0", half), (half, begin)):
        arguments = [argument(value, lo, hi) for value in over_children.takes]
        found.append([writer.fresh() for _ in over_children.returns])
        call = f"{writer.bind(over_children.run, 'piece')}({', '.join(arguments)}, {hi} - {lo}, 0, None, records)"
        writer.say(f"({', '.join(found[-1])},) = {call}")
    for value, *parts in zip(over_children.returns, *found, strict=True):
        text.store[value.name] = reduce(lambda one, other: writer.let(f"{one} + {other}"), parts)


def _in_two(code: CellCode, cut: Split) -> tuple[Code | None, Code | None]:
    """Sums over states of children, and the others."""
    piece = cut.pieces["sums"]
    found = {id(value) for name, value in cut.tape.inputs.items() if name in code.role.recurrent_in}
    for value in piece.values:
        if any(id(base) in found for operand in operands(value) for base in bases(operand)):
            found.add(id(value))
    over = [value for value in piece.gives if any(id(base) in found for base in bases(value))]
    return _only(piece, over), _only(piece, [value for value in piece.gives if not any(value is one for one in over)])


def _only(piece: Piece, gives: list[Value]) -> Code | None:
    """The part of a piece that makes some of what it gives."""
    if not gives:
        return None
    part = needed_part(piece, tuple(value for value in piece.gives if not any(value is one for one in gives)))
    used = {id(base) for value in (*part.values, *gives) for operand in operands(value) for base in bases(operand)}
    part.takes = [value for value in part.takes if id(value) in used]
    return emit_triton(part, ()) or emit(part, ())
