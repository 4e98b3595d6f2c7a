"""Cut a cell's tape in pieces by one rule: what is on no cycle runs once over all rows, only the rest runs level by level.

Forward, with the recurrent inputs (states read from the same group) and recurrent outputs (states that the group reads):

    before   does not depend on a recurrent input            once, before the sweep
    during   depends on one, and a recurrent output needs it  per step
    after    the rest                                         once, after the sweep

Backward the same with gradients: `late` values do not depend on a recurrent gradient, `back` ones do and a recurrent gradient
needs them, `sums` are the rest: parameter gradients, one large product over all rows. Views belong to no piece: each piece
makes the views it needs. In a group that is on no cycle everything is `before` and `late`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from weft.errors import TraceError
from weft.graph import ops
from weft.graph.tape import Name, Tape, Value, operands
from weft.run.absent import leave_out_absent
from weft.run.fuse import fuse_sums
from weft.run.recompute import copy_tape, recompute_in_backward
from weft.run.rowview import place_of
from weft.run.thrift import Over, Thrift, apply_thrift
from weft.run.views import bases, is_free

FORWARD = ("before", "during", "after")
BACKWARD = ("late", "back", "sums")
PER_STEP = ("during", "back")


@dataclass(eq=False)
class Piece:
    """Operations that run together. `gives` are the values that other pieces or the caller need from it."""

    stage: str
    values: list[Value] = field(default_factory=list)
    takes: list[Value] = field(default_factory=list)
    gives: list[Value] = field(default_factory=list)


@dataclass(eq=False)
class Split:
    """A tape cut in pieces, for one choice of recurrent inputs and outputs and of wanted gradients."""

    tape: Tape
    pieces: dict[str, Piece]
    home: dict[int, str]
    """The stage in which each value (by id) is computed."""
    outputs: dict[Name, Value]
    gradients: dict[Name, Value]
    overwritten: dict[str, Over] = field(default_factory=dict)
    """Gradients that the backward step may write over something it has read, by name."""
    over_collected: dict[str, Over] = field(default_factory=dict)
    """Gradients that it may write over the gradient of a state, by name."""
    laid_over: dict[str, Over] = field(default_factory=dict)
    """What the forward step keeps and may write over something it has read, by name."""


def split(
    tape: Tape,
    recurrent_in: Iterable[Name],
    recurrent_out: Iterable[Name],
    wanted_outputs: Iterable[Name],
    gradients: Iterable[Name],
    cotangents: Iterable[Name],
    recompute: bool = False,
    fuse_matrix_products: bool = False,
    thrift: Thrift | None = None,
) -> Split:
    """Cut `tape`. `gradients` are the input names whose gradient is wanted (none: inference)."""
    tape = copy_tape(tape)
    recurrent_in, recurrent_out, cotangents = set(recurrent_in), set(recurrent_out), set(cotangents)
    gradients = set(gradients)
    asked = set(wanted_outputs)
    outputs = {n[1]: v for n, v in tape.outputs.items() if v is not None and n[0] == "out" and n[1] in asked}
    depends = _descendants(tape, [v for name, v in tape.inputs.items() if name in recurrent_in])
    from_ct = _descendants(tape, [v for name, v in tape.inputs.items() if name[0] == "ct"])
    from_given_ct = _descendants(tape, [v for name, v in tape.inputs.items() if name[0] == "ct" and name[1] in cotangents])
    leave_out_absent(tape, from_ct - from_given_ct)
    from_recurrent_ct = _descendants(tape, [v for n, v in tape.inputs.items() if n[0] == "ct" and n[1] in recurrent_out])
    found = ((name[1], value) for name, value in tape.outputs.items() if name[0] == "grad" and name[1] in gradients)
    wanted = {name: value for name, value in found if value is not None and id(value) in from_given_ct}
    _tell_who_learns(tape, gradients)
    forward = _ancestors(tape, outputs.values())
    states = _ancestors(tape, [v for name, v in outputs.items() if name in recurrent_out])
    backward = _ancestors(tape, wanted.values())
    returning = _ancestors(tape, [v for name, v in wanted.items() if name in recurrent_in])

    home: dict[int, str] = {}
    for value in tape.values:
        key = id(value)
        if key in from_ct:
            if key in backward:
                recurrent = key in from_recurrent_ct
                home[key] = "late" if not recurrent else "back" if key in returning else "sums"
        elif key in forward:
            home[key] = "before" if key not in depends else "during" if key in states else "after"
        elif key in backward:
            home[key] = "late"
    if recompute:
        recompute_in_backward(tape, home, from_ct)
    _keep_parts_with_their_operation(tape, home)
    fuse_sums(tape, home, fuse_matrix_products)
    cut = _pieces(tape, home, outputs, wanted, recurrent_in, recurrent_out, from_recurrent_ct)
    if thrift is None or not wanted:
        return cut
    apply_thrift(tape, home, thrift.decide(cut))
    cut = _pieces(tape, home, outputs, wanted, recurrent_in, recurrent_out, from_recurrent_ct)
    cut.overwritten, cut.laid_over = thrift.overwritten(cut), thrift.laid_over(cut)
    cut.over_collected = thrift.over_collected(cut)
    return cut


def _tell_who_learns(tape: Tape, gradients: set[Name]) -> None:
    told = [value for value in tape.values if getattr(value.target, "told_who_learns", False)]
    if told:
        learns = _descendants(tape, [value for name, value in tape.inputs.items() if name in gradients])
        for value in told:
            value.kwargs = {"learns": [id(given) in learns for given in value.args[0]]}


def _keep_parts_with_their_operation(tape: Tape, home: dict[int, str]) -> None:
    for value in tape.values:
        if ops.is_getitem(value.target) and not is_free(value) and id(value) in home:
            home[id(value)] = home[id(value.args[0])]
    for value in tape.values:
        at = home.get(id(value))
        if at in PER_STEP and not is_free(value) and value.shape is not None and value.row_dim is None:
            raise TraceError(f"{value.target} adds up different rows inside the recurrence")


def _pieces(
    tape: Tape,
    home: dict[int, str],
    outputs: dict[Name, Value],
    wanted: dict[Name, Value],
    recurrent_in: set[Name],
    recurrent_out: set[Name],
    from_recurrent_ct: set[int],
) -> Split:
    pieces = {stage: Piece(stage) for stage in (*FORWARD, *BACKWARD)}
    for value in tape.values:
        if id(value) in home and not is_free(value):
            pieces[home[id(value)]].values.append(value)
    # A state that the recurrence does not touch is still written step by step, by the piece that runs per step.
    owed: dict[str, list[Value]] = {stage: [] for stage in pieces}
    gathered = {id(value) for name, value in tape.inputs.items() if name in recurrent_in}
    for name, value in outputs.items():
        if name in recurrent_out:
            owed["during"].append(value)
        else:
            # An output may be a gathered state as it is: it is known when the sweep is done.
            default = "after" if any(id(base) in gathered for base in bases(value)) else "before"
            owed[_latest(value, home, FORWARD, default)].append(value)
    for name, value in wanted.items():
        # A gradient may be a recurrent output's gradient as it is: it is known when the sweep is done.
        default = "sums" if any(id(base) in from_recurrent_ct for base in bases(value)) else "late"
        owed["back" if name in recurrent_in else _latest(value, home, BACKWARD, default)].append(value)
    for stage in sorted(pieces, key=lambda stage: stage not in PER_STEP):
        piece = pieces[stage]
        piece.takes = _taken(piece, owed[stage])
        for base in piece.takes:
            if is_free(base):
                owed[home[id(base)]].append(base)
    for piece in pieces.values():
        for base in piece.takes:
            producer = home.get(id(base))
            if producer is not None and base not in pieces[producer].gives:
                pieces[producer].gives.append(base)
    for stage, values in owed.items():
        for value in values:
            if value not in pieces[stage].gives:
                pieces[stage].gives.append(value)
    return Split(tape, pieces, home, outputs, wanted)


def _taken(piece: Piece, owed: list[Value]) -> list[Value]:
    """What a piece must be given to compute its values and what it owes to others."""
    inside = {id(value) for value in piece.values}
    taken: dict[int, Value] = {}
    for value in [*piece.values, *owed]:
        for operand in operands(value) if id(value) in inside else [value]:
            for base in bases(operand, piece.stage in PER_STEP):
                base = base if id(value) not in inside or ops.is_product(value.target) else _in_memory(base)
                if id(base) not in inside:
                    taken[id(base)] = base
    return list(taken.values())


def _in_memory(base: Value) -> Value:
    """What a kernel reads of a view that is the same for every step: it follows the view down to memory where it can."""
    place = place_of(base) if is_free(base) else None
    return base if place is None else place.base


def _latest(value: Value, home: dict[int, str], order: tuple[str, ...], default: str) -> str:
    """The last stage that a value seen through views depends on."""
    stages = [home[id(base)] for base in bases(value) if home.get(id(base)) in order]
    return max(stages, key=order.index, default=default)


def _descendants(tape: Tape, roots: Iterable[Value]) -> set[int]:
    found = {id(root) for root in roots}
    for value in tape.values:
        if any(id(operand) in found for operand in operands(value)):
            found.add(id(value))
    return found


def _ancestors(tape: Tape, roots: Iterable[Value]) -> set[int]:
    found = {id(root) for root in roots}
    for value in reversed(tape.values):
        if id(value) in found:
            found.update(id(operand) for operand in operands(value))
    return found
