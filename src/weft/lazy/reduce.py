"""Reductions over any number of values: one kind of call, so that lists of different lengths batch together."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any

from torch import Tensor

from weft.graph.calls import KEY
from weft.graph.rows import Rows
from weft.lazy.calls import _shared, walk
from weft.lazy.kinds import Kind
from weft.lazy.ops import Op, Setting
from weft.lazy.state import Entry
from weft.lazy.tape import Tape
from weft.lazy.value import Value


def _sum(rows: Rows) -> Tensor:
    return rows.child_sum(KEY)


def _mean(rows: Rows) -> Tensor:
    return rows.child_sum(KEY) / rows.count().clamp_min(1)


def _max(rows: Rows) -> Tensor:
    return rows.reduce_max(rows.child_map(lambda state, edge: state[KEY]))


def _min(rows: Rows) -> Tensor:
    return -rows.reduce_max(rows.child_map(lambda state, edge: -state[KEY]))


REDUCTIONS = {"sum": _sum, "mean": _mean, "max": _max, "min": _min}


class Reduction(Op):
    """A reduction as an operation: it takes any number of arguments of one kind."""

    def __init__(self, how: str, kind: Kind, setting: Setting, device: str) -> None:
        self.how, self.name = REDUCTIONS[how], f"{how} of a list"
        self.args, self.feeds, self.owners = (), (), ()
        self.setting, self.device, self.is_cell, self.random = setting, device, False, False
        self.many, self.outs, self.structure, self.constants, self.views = kind, (kind,), None, (), (-1,)

    def body(self, *given: Any) -> list[Tensor]:
        with self.setting():
            return [self.how(given[0])]


def reduce_values(tape: Tape, how: str, values: Sequence[Value], frame: FrameType) -> Any:
    """Record the reduction of at least one value; all are of one kind."""
    key: list[Any] = []
    refs: list[int] = []
    walk(tape, values, key, refs, [])
    kind = values[0]._kind
    place = (id(frame.f_code), frame.f_lasti) if tape.sites else (0, 0)
    entry = tape.calls.get(("reduce", how, kind, *place))
    if entry is None:
        signature = ("reduce", how, kind, tape.setting, tape.device)
        op = _shared.get(signature)
        if op is None:
            op = _shared.setdefault(signature, Reduction(how, kind, tape.setting, tape.device))
        entry = tape.calls["reduce", how, kind, *place] = Entry(tape.state.fine(op, tape.site(frame)), op)
    tape.further.append(len(refs))
    return tape.make(tape, tape.emitted(entry.number, refs, []), kind)
