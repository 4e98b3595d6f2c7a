"""A first step over leaves that hand on their input, in plans where no other step reads leaves: full trees, equal chains.

Such leaves need no rows in an arena: the first step takes their rows from where they are fed. And the states of the others, if
these are what the caller receives, backward takes from there (`firstback.py`), so that nothing else is kept.

    forward    | fed rows |            read by the first step, and gone
                          | states |   read by the others, and copied to the result
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.graph.tape import Name, Value
from weft.plan.plan import Group, Read
from weft.run.execution import Execution
from weft.run.gpu.apart import fits_apart
from weft.run.indices import Indices
from weft.run.recipeforward import Saved, only_fed
from weft.run.recipetypes import TypeText
from weft.run.views import bases

if TYPE_CHECKING:
    from weft.run.gpu.recipeforward import GpuForwardText

LEAST = 512
"""Rows of a first step that is worth launches of its own."""


@dataclass(frozen=True, eq=False)
class FirstStep:
    """Of one group: the type whose step it is and the type of the leaves; what these are fed, and which result are the states
    of the others."""

    reader: int
    source: int
    read: Read
    feed: Name
    state: str
    """The name of the value that is the state."""
    result: int

    def rows(self, source: TypeText, by: int = 1) -> str:
        """How many rows the step has; or a part of that."""
        t, each = self.source, self.read.width * by
        return source.writer.fact(("part of rows", t, each), lambda indices: len(indices.plan.rows[t]) // each)

    def leaves(self, source: TypeText, value: Value, lo: str, hi: str) -> str:
        """What some rows of the step read, from where it is fed."""
        tensor = f"tensors[{source.inputs[source.type, self.feed]}]"
        which = f"0, {lo} * {self.read.width}, ({hi} - {lo}) * {self.read.width}"
        if source.in_order():
            rows = f"{tensor}.narrow({which})"
        else:
            rows = f"{tensor}.index_select(0, {source.fed_rows()}.narrow({which}))"
        return source.writer.let(f"{rows}.view({self.shape(value, f'{hi} - {lo}')})")

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
    feed, result = _fed(text, source), _result(text, reader)
    if feed is None or result is None or not _suits(text, reader):
        return None
    ranges = all(one.class_range(members[one.type]) for one in (source, reader))
    asked = partial(_reads_all_leaves, number, plan.reads.index(read), source.type, members[source.type])
    if not ranges or not text.writer.ask(("first step", number), asked, by_rows=True):
        return None
    return FirstStep(reader.type, source.type, read, feed, *result)


def _fed(text: GpuForwardText, source: TypeText) -> Name | None:
    """What leaves hand on as their state; None where they do more, or somebody else asks for it."""
    code, cell = source.code, text.execution.call.cells[source.type]
    wanted = any(cell.own_name(one.name) in code.split.outputs for one in text.execution.call.wanted)
    fed = only_fed(source, code.codes["before"]) if [*code.codes] == ["before"] else None
    if fed is None or len(fed) != 1 or wanted or code.role.gradients or code.has_twins:
        return None
    (name,) = fed.values()
    found: Name = name
    return found


def _result(text: GpuForwardText, reader: TypeText) -> tuple[str, int] | None:
    """The value that is the state, where that is one, and which of the results it is."""
    code, call = reader.code, text.execution.call
    names = [call.cells[reader.type].own_name(one.name) if one.nodes is None else None for one in call.wanted]
    if len(code.role.exchanged) != 1 or code.has_twins or not code.role.exchanged & set(names):
        return None
    (name,) = code.role.exchanged
    return code.split.outputs[name].name, names.index(name)


def _suits(text: GpuForwardText, reader: TypeText) -> bool:
    """Whether states of children are read by the forward step and by sums over all rows, and by nobody else; and whether the
    backward step leaves one gradient for these sums, which may lie where that of the state lay."""
    code, split = reader.code, reader.code.split
    if not fits_apart(text.writer, reader, split.pieces["during"]):
        return False
    states = {id(value) for name, value in split.tape.inputs.items() if name in code.role.recurrent_in}
    if any(id(value) in states for stage in ("before", "after", "late", "back") for value in split.pieces[stage].takes):
        return False
    if not text.execution.training:
        return True
    own = {id(base) for name in code.role.exchanged for base in bases(split.outputs[name])}
    if any(id(value) in own for value in split.pieces["late"].takes):  # it would want them in the order of steps
        return False
    recurrent = {
        value.name for name, value in split.tape.inputs.items() if name[0] == "ct" and name[1] in code.role.recurrent_out
    }
    captured = {id(value) for name, value in split.gradients.items() if name[0] == "capture"}
    back, sums = split.pieces["back"], split.pieces["sums"]
    return (
        "back" in code.codes
        and fits_apart(text.writer, reader, back)
        and all(id(value) in captured for value in sums.gives)
        and all(value.rows is None or (value.row_dim == 0 and value.rows.times == 1) for value in sums.takes)
        and len(split.over_collected) == 1
        and len(code.codes["back"].stores) == 2
        and all(over.readers <= code.codes["back"].fused and over.kept in recurrent for over in split.over_collected.values())
    )


def _reads_all_leaves(number: int, read: int, source: int, output: int, indices: Indices) -> bool:
    """Whether the first step reads all leaves in order, and so no other any; and the second step all that the first wrote."""
    plan, leaves = indices.plan, indices.class_rows(source, output)
    group, there = plan.groups[number], plan.reads[read]
    rows = int(group.step_hi[0])
    return (
        rows >= LEAST
        and group.steps > 1
        and int(group.step_hi[1] - group.step_lo[1]) * there.width == rows
        and not plan.classes[there.value_class].has_empty
        and leaves == (0, rows * there.width)
        and indices.read(there).whole_slice == 0
    )


def as_kept_otherwise(execution: Execution, about: Saved, tensors: Sequence[Tensor], saved: Sequence[Tensor]) -> list[Tensor]:
    """What a forward pass kept, as the general way back wants it: states in order, in arenas behind those of leaves."""
    found, inputs, indices = list(saved), execution.input_numbers(), execution.indices
    for first in about.first_steps.values():
        rows, many, nodes = indices.rows(first.source), len(indices.plan.rows[first.source]), indices.nodes(first.reader)
        tensor = tensors[inputs[first.source, first.feed]]
        assert nodes is not None
        for at, which in enumerate([*about.names, *about.arenas]):
            if which == (first.reader, first.state):
                found[at] = saved[at].index_select(0, nodes)
            elif at >= len(about.names) and which[0] == first.read.value_class:
                leaves = tensor[:many] if rows is None else tensor.index_select(0, rows)
                found[at] = torch.cat([leaves, saved[at].index_select(0, nodes)])
    return found
