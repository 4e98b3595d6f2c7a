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
    if not (value.dtype.is_floating_point or value.dtype.is_complex) or not tape.ambient_grad:
        return False
    if tape.ended is not None or value._ref < tape.floor:
        return tape.tensor(value).requires_grad
    flags = grad_flags(tape)
    return flags[(value._ref - tape.floor) // STEP]


def grad_flags(tape: Tape) -> list[bool]:
    """For every call since the last flush, whether what it gives requires gradients."""
    floor, types, arguments, further, imports = tape.segment()
    handed = [tape.tensor(Value(tape, ref, None)).requires_grad for ref in imports]  # type: ignore[arg-type]
    fed = {number: iter(rows) for number, rows in tape.data.items()}
    counts, at = iter(further), 0
    trained: dict[int, bool] = {}
    flags: list[bool] = []
    for number in types:
        op = tape.state.fines[number]
        end = at + len(op.args) + (next(counts) if op.many is not None else 0)
        given = [handed[-ref - 1] if ref < 0 else flags[(ref - floor) // STEP] for ref in arguments[at:end]]
        given += [_trained(next(fed[number])) for _ in op.feeds]
        if number not in trained:
            trained[number] = _is_trained(op)
        flags.append(not op.setting.detached and op.name != "detach" and (trained[number] or any(given)))
        at = end
    return flags


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
