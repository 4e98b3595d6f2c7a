"""Whether a value depends on something that requires gradients: asked rarely, so found by reading the tape when asked."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from weft.graph.capture import Surroundings, fetch
from weft.lazy.ops import Op
from weft.lazy.tape import Tape
from weft.lazy.value import STEP, Value


def requires_grad(tape: Tape, value: Value) -> bool:
    """What `requires_grad` would say of the tensor."""
    if value.__class__ is not Value:
        plain = value._plain()
        return False if isinstance(plain, Tensor) else requires_grad(tape, plain)
    value = tape.settled(value)
    if not (value.dtype.is_floating_point or value.dtype.is_complex) or not tape.ambient_grad:
        return False
    if tape.ended is not None or value._ref < tape.floor:
        return tape.tensor(value).requires_grad
    flags = grad_flags(tape)
    return flags[(value._ref - tape.floor) // STEP]


def grad_flags(tape: Tape) -> list[bool]:
    """For every call since the last flush, whether what it gives requires gradients."""
    floor, types, arguments, further, imports, _ = tape.segment()
    handed = [tape.results[ref][0].rows.requires_grad for ref in imports]
    handed.reverse()  # a reference below zero then counts from the end, as Python does
    fed = {number: iter(rows) for number, rows in tape.data.items()}
    known = {number: _known(tape.state.fines[number]) for number in set(types)}
    counts, at = iter(further), 0
    flags: list[bool] = []
    for number in types:
        width, feeds, is_many, always = known[number]
        end = at + width + (next(counts) if is_many else 0)
        flag = always
        if always is None:
            flag = False
            for ref in arguments[at:end]:
                if handed[ref] if ref < 0 else flags[(ref - floor) // STEP]:
                    flag = True
                    break
        for _ in range(feeds):
            flag = (_trained(next(fed[number])) and always is not False) or flag
        flags.append(bool(flag))
        at = end
    return flags


def _known(op: Op) -> tuple[int, int, bool, bool | None]:
    """(arguments, feeds, whether there are further arguments, what is known of the result: None where arguments decide)."""
    cut = op.setting.detached or op.name == "detach"
    always = False if cut else True if _is_trained(op) else None
    return len(op.args), len(op.feeds), op.many is not None, always


def _trained(row: Any) -> bool:
    return isinstance(row, Tensor) and row.requires_grad


def _is_trained(op: Op) -> bool:
    for owner in op.owners:
        if isinstance(owner, nn.Module):
            found = any(parameter.requires_grad for parameter in owner.parameters())
        else:
            found = any(_trained(fetch(place)) for place in Surroundings().add(owner).tensors)
        if found:
            return True
    return False
