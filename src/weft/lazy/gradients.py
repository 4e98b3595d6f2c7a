"""Whether a value depends on something that requires gradients: asked rarely, so found by reading the tape when asked."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from weft.graph.capture import Surroundings, fetch
from weft.graph.recording import OUTPUT_BITS
from weft.lazy.chains import Flags
from weft.lazy.ops import Op
from weft.lazy.tape import Tape
from weft.lazy.value import STEP, Value


def requires_grad(tape: Tape, value: Value) -> bool:
    """What `requires_grad` would say of the tensor."""
    if value.__class__ is not Value:
        plain = value._plain()
        return False if isinstance(plain, Tensor) else requires_grad(tape, plain)
    tape.put_back()
    value = tape.settled(value)
    if not (value.dtype.is_floating_point or value.dtype.is_complex) or not tape.ambient_grad:
        return False
    if tape.ended is not None or value._ref < tape.floor:
        return tape.tensor(value).requires_grad
    flags = grad_flags(tape)
    return bool(flags[(value._ref - tape.floor) // STEP])


def grad_flags(tape: Tape) -> Flags:
    """For every call since the last flush, whether what it gives requires gradients, as far as is known."""
    types, refs = np.array(tape.type, np.int64), np.array(tape.arguments, np.int64)
    arity, is_many = tape.state.widths()
    count = arity[types]
    if tape.further:
        count[is_many[types]] += tape.further
    owner = np.repeat(np.arange(len(types)), count)
    present = np.flatnonzero(np.bincount(types)).tolist()
    always = np.zeros((len(arity), 2), bool)
    """For each type: whether its results are always trained, and whether arguments decide."""
    for number in present:
        always[number] = _known(tape.state.fines[number])
    flags: Flags = always[types, 0]
    is_open: Flags = always[types, 1]
    for number in present:
        trained = [_trained(row) for row in tape.data.get(number, ())]
        if any(trained) and always[number].any():
            flags[types == number] |= np.array(trained).reshape(-1, len(tape.state.fines[number].feeds)).any(1)
    inside = refs >= 0
    given = np.zeros(len(refs), bool)
    handed = [ref in tape.results and tape.found(ref)[0].rows.requires_grad for ref in tape.imported_refs]
    given[~inside] = np.array(handed, bool)[-refs[~inside] - 1]
    flags[owner[given & is_open[owner]]] = True
    inside &= is_open[owner]
    producer, owner = (refs[inside] - tape.floor) >> OUTPUT_BITS, owner[inside]
    while True:
        fresh = owner[flags[producer] & ~flags[owner]]
        if not len(fresh):
            return flags
        flags[fresh] = True


def _known(op: Op) -> tuple[bool, bool]:
    """Whether what an operation gives is always trained, and whether its arguments decide."""
    if op.setting.detached or op.name == "detach":
        return False, False
    trained = _is_trained(op)
    return trained, not trained


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
