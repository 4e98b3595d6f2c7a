"""Calls without company run alone, before all others of the last flush, as the loop runs them.

A function of a whole sequence is another kind of call for every length, and a mini-batch has one or two sequences of most
lengths. There is nothing to batch then, while every kind of call has its price: a trace, a plan, a step. So where a function
has been called with more than a few sizes, what depends on nothing but tensors that the call was given, and has few rows, is
computed call by call:

    lengths of 8 examples   5 5 5 5 5 9 7 4          classifier of all
                            ---------                - - - - - - - -     batched
                                      ^ ^ ^                              alone

Graphs of tensors differ in two sizes, nodes and edges, and hardly ever agree in both. Where most calls are of such functions,
and a size has few calls on average, all run alone, what draws numbers among them: which do is decided by this recording and no
other, so that the same seed gives the same numbers. And the function need not be recorded the next time (`lazy/little.py`).

It loses where a step in C is much faster than the same in torch's operations, of which there are few rows only.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.graph.recording import OUTPUT_BITS, References
from weft.graph.uncast import stack
from weft.lazy.chains import LOW, Flags, Layout, Longs
from weft.lazy.division import divided_by
from weft.lazy.flush import Flush
from weft.lazy.kinds import FEW_SIZES
from weft.lazy.leftover import Selection
from weft.lazy.ops import Op
from weft.lazy.state import State
from weft.lazy.taken import Pending, all_pending
from weft.lazy.tape import Tape
from weft.run.calls import Group, is_observed
from weft.run.options import Options

FEW_ROWS = 3
"""Functions that were called with more than a few sizes are looked at, and run alone where they have no more rows."""

COMPANY, LEAST, OPERATIONS = 8, 1.5, 80
"""Where most calls are of functions of many sizes, and each size has no more calls on average, nothing is batched. It is less
company that matters to calls of many operations, such as a layer of a transformer."""


def run_alone(tape: Tape, wanted: References, options: Options) -> bool:
    """Compute what is better not batched, as if it had been needed earlier; whether there was anything."""
    forms = _forms(tape.state)
    if not forms.is_any or options.backend != "auto" or options.recompute or is_observed():
        return False
    calls = all_pending(tape)
    tape.is_diverse = forms.are_diverse(calls)
    alone = np.ones(len(calls.type), bool) if tape.is_diverse else _without_company(tape, calls, forms.sized)
    if alone.any():
        Alone(Selection(tape, calls, divided_by(tape, calls, ~alone, wanted))).run(options)
    return bool(alone.any())


def _without_company(tape: Tape, calls: Pending, sized: Flags) -> Flags:
    """Calls that have few others of their kind, and use nothing but what such calls give, or what the call was given."""
    few = sized & (np.bincount(calls.type, minlength=len(sized)) <= FEW_ROWS)
    candidates = np.flatnonzero(few[calls.type]).tolist()
    alone: Flags = np.zeros(len(calls.type), bool)
    if not candidates:
        return alone
    recorded, handed = calls.numbered()
    layout = Layout(recorded, *tape.state.widths())
    bounds = np.append(layout.start, len(layout.producer)).tolist()
    arguments = np.where(recorded.arguments < 0, -1, recorded.arguments >> OUTPUT_BITS)
    computed = handed[-1 - np.minimum(recorded.arguments, -1)] >= 0 if len(handed) else np.zeros(len(arguments), bool)
    arguments[(recorded.arguments < 0) & computed] = len(alone)  # by an earlier flush: for many, and not one by one
    is_ready = np.append(alone, [False, True])
    for call in candidates:
        is_ready[call] = is_ready[arguments[bounds[call] : bounds[call + 1]]].all()
    return is_ready[:-2]


class Alone(Flush):
    """A flush whose calls run one after the other, by torch's own functions."""

    def groups(self, options: Options, final: bool = True) -> list[Group]:
        results = self._results()
        kinds: dict[Hashable, list[int]] = {}
        chosen = [results[ref >> OUTPUT_BITS][ref & LOW] for ref in self.selection.division.chosen.tolist()]
        for at, tensor in enumerate(chosen):
            kinds.setdefault((tensor.shape, tensor.dtype), []).append(at)
        return [Group(np.array(each, np.int32), stack([chosen[at] for at in each])) for each in kinds.values()]

    def _results(self) -> list[list[Tensor]]:
        """What each call gives."""
        tape, ops, division = self.tape, self.state.fines, self.selection.division
        given = [rows.row(at) for rows, at in map(tape.found, division.handed.tolist())]
        fed = {t: iter(rows) for t, rows in division.fed(ops, self.selection.calls, division.runs).items()}
        refs = iter(self.recorded.arguments.tolist())
        results: list[list[Tensor]] = []
        for call, t in enumerate(self.recorded.type.tolist()):
            op = ops[t]
            chosen = [next(refs) for _ in op.args]
            args = [results[ref >> OUTPUT_BITS][ref & LOW] if ref >= 0 else given[-1 - ref] for ref in chosen]
            feeds = [_tensor(next(fed[t]), kind.dtype, op.device) for kind in op.feeds]
            if op.is_cell:  # its code may write into what it is given
                args, feeds = [tensor.clone() for tensor in args], [tensor.clone() for tensor in feeds]
            try:
                results.append(op.run(args, feeds))
            except Exception as error:
                self.blame_call(call, error)
                raise
        return results


def _tensor(row: object, dtype: torch.dtype, device: str) -> Tensor:
    return row if isinstance(row, Tensor) else torch.tensor(row, dtype=dtype, device=device)


class _Forms:
    """What recorded types compute, whatever their sizes: numbers of forms, and of sizes."""

    def __init__(self) -> None:
        self._numbers: tuple[dict[Hashable, int], dict[Hashable, int]] = {}, {}
        self.form = self.size = self.operations = np.empty(0, np.int64)
        self.joins = self.draws = np.empty(0, bool)

    def extend(self, ops: Sequence[Op]) -> None:
        forms, sizes = self._numbers
        new: list[Any] = [
            [forms.setdefault(_form(op), len(forms)) for op in ops],
            [sizes.setdefault((op.args, op.feeds), len(sizes)) for op in ops],
            [op.operations for op in ops],
            [op.many is not None for op in ops],
            [op.random for op in ops],
        ]
        known = self.form, self.size, self.operations, self.joins, self.draws
        grown: Any = [np.append(old, np.array(more, old.dtype)) for old, more in zip(known, new, strict=True)]
        self.form, self.size, self.operations, self.joins, self.draws = grown
        every: Longs = np.arange(len(self.form))
        self.is_any = bool(self.of_many_sizes(every).any())
        self.sized = self.of_many_sizes(every[~self.joins & ~self.draws])
        """Types that may run alone while others are batched."""

    def of_many_sizes(self, types: Longs) -> Flags:
        """Which of some types differ from many of them in their sizes alone."""
        found: Flags = np.zeros(len(self.form), bool)
        many = max(len(self._numbers[1]), 1)
        pairs = np.unique(self.form[types] * many + self.size[types])
        found[types] = np.bincount(pairs // many, minlength=len(self.form))[self.form[types]] > FEW_SIZES
        return found

    def are_diverse(self, calls: Pending) -> bool:
        """Whether most of these calls are of functions of many sizes, and few of the same size."""
        count = np.bincount(calls.type, minlength=len(self.form))
        used: Longs = np.flatnonzero(count)
        if self.joins[used].any():
            return False
        sized: Longs = np.flatnonzero(self.of_many_sizes(used))
        mine = int(count[sized].sum())
        if not mine or 2 * mine < len(calls.type):
            return False
        each = float(count[sized] @ self.operations[sized]) / mine
        return mine <= min(COMPANY, max(LEAST, OPERATIONS / max(each, 1))) * len(sized)


def _forms(state: State) -> _Forms:
    found: _Forms = state.kept.setdefault("forms", _Forms())
    with state.lock:
        known = len(found.form)
        if known < len(state.fines) or not known:
            found.extend(state.fines[known:])
    return found


def _form(op: Op) -> Hashable:
    """What is computed, for tensors of all sizes."""
    tensors = [(len(kind.shape), kind.dtype) for kind in (*op.args, *op.feeds)]
    return op.name, op.setting, *tensors, *[id(owner) for owner in op.owners if isinstance(owner, nn.Module)]
