"""Calls without company run alone, before all others of the last flush, as the loop runs them.

A function of a whole sequence is another kind of call for every length, and a mini-batch has one or two sequences of most
lengths. There is nothing to batch then, while every kind of call has its price: a trace, a plan, a step. So where a function
has been called with more than a few sizes, what depends on nothing but tensors that the call was given, and has few rows, is
computed call by call:

    lengths of 8 examples   5 5 5 5 5 9 7 4          classifier of all
                            ---------                - - - - - - - -     batched
                                      ^ ^ ^                              alone

It loses where a step in C is much faster than the same in torch's operations, of which there are few rows only.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import torch
from torch import Tensor, nn

from weft.graph.recording import OUTPUT_BITS, References
from weft.graph.uncast import stack
from weft.lazy.chains import LOW, Flags, Layout
from weft.lazy.division import divided_by
from weft.lazy.flush import Flush
from weft.lazy.leftover import Selection
from weft.lazy.ops import Op
from weft.lazy.state import State
from weft.lazy.taken import Pending, all_pending
from weft.lazy.tape import Tape
from weft.run.calls import Group, is_observed
from weft.run.options import Options

FEW_SIZES, FEW_ROWS = 3, 3
"""Functions that were called with more sizes than that are looked at, and run alone where they have no more rows."""


def run_alone(tape: Tape, wanted: References, options: Options) -> bool:
    """Compute what is better not batched, as if it had been needed earlier; whether there was anything."""
    sized = _sized_types(tape.state)
    if sized is None or options.backend != "auto" or options.recompute or is_observed():
        return False
    calls = all_pending(tape)
    alone = _without_company(tape, calls, sized)
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


def _sized_types(state: State) -> Flags | None:
    """For each recorded type whether there are many of other sizes; None where there are none."""
    known: tuple[int, Flags | None] = state.kept.get("sized", (0, None))
    if known[0] < len(state.fines):
        forms: dict[Hashable, list[int]] = {}
        for number, op in enumerate(list(state.fines)):
            if not op.random and op.many is None:
                forms.setdefault(_form(op), []).append(number)
        found = np.zeros(len(state.fines), bool)
        for numbers in forms.values():
            found[numbers] = len({(state.fines[number].args, state.fines[number].feeds) for number in numbers}) > FEW_SIZES
        known = state.kept["sized"] = len(state.fines), found if found.any() else None
    return known[1]


def _form(op: Op) -> Hashable:
    """What is computed, for tensors of all sizes."""
    tensors = [(len(kind.shape), kind.dtype) for kind in (*op.args, *op.feeds)]
    return op.name, op.setting, *tensors, *[id(owner) for owner in op.owners if isinstance(owner, nn.Module)]
