"""Trading time for memory: the backward step computes again what the forward step computed, instead of keeping it."""

from __future__ import annotations

from weft.graph import ops
from weft.graph.tape import Tape, Value, operands, replace
from weft.run.views import bases, is_free


def copy_tape(tape: Tape) -> Tape:
    """A tape of fresh values, to be changed without touching the original."""
    fresh: dict[int, Value] = {}

    def copied(value: Value) -> Value:
        if id(value) not in fresh:  # a constant: it appears in no list
            fresh[id(value)] = value
        return fresh[id(value)]

    for value in [*tape.inputs.values(), *tape.values]:
        args, kwargs = replace(value.args, copied), replace(value.kwargs, copied)
        fresh[id(value)] = Value(value.name, value.target, args, kwargs, value.shape, value.dtype, value.constant)
    return Tape(
        {name: fresh[id(value)] for name, value in tape.inputs.items()},
        [fresh[id(value)] for value in tape.values],
        {name: None if value is None else copied(value) for name, value in tape.outputs.items()},
    )


def recompute_in_backward(tape: Tape, home: dict[int, str], from_ct: set[int]) -> None:
    """Give the per-step backward its own copies of the per-step forward operations that it reads (random ones are kept)."""
    again: dict[int, Value] = {}
    copies: list[Value] = []
    for value in tape.values:
        mine = home.get(id(value)) == "during" and not ops.is_random(value.target)
        view = is_free(value) and id(value) not in from_ct and any(id(base) in again for base in bases(value))
        part = ops.is_getitem(value.target) and id(value.args[0]) in again
        if mine or view or part:
            args = replace(value.args, lambda v: again.get(id(v), v))
            copy = Value(f"{value.name}_again", value.target, args, value.kwargs, value.shape, value.dtype)
            again[id(value)] = copy
            copies.append(copy)
            home[id(copy)] = "back"
    for value in tape.values:
        if home.get(id(value)) in ("back", "sums") and id(value) in from_ct:
            value.args = replace(value.args, lambda v: again.get(id(v), v))
            value.kwargs = replace(value.kwargs, lambda v: again.get(id(v), v))
    needed = {id(operand) for value in tape.values if id(value) in from_ct for operand in operands(value)}
    kept: list[Value] = []
    for copy in reversed(copies):
        if id(copy) in needed:
            needed.update(id(operand) for operand in operands(copy))
            kept.append(copy)
        else:
            del home[id(copy)]
    start = next((i for i, value in enumerate(tape.values) if id(value) in from_ct), len(tape.values))
    tape.values[start:start] = kept[::-1]
