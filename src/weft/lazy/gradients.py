"""Whether a value depends on something that requires gradients: asked rarely, so found by reading the tape when asked."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from weft.graph.capture import Surroundings, fetch
from weft.lazy.chains import Flags, Layout
from weft.lazy.ops import Op
from weft.lazy.pools import ROW, ROW_BITS
from weft.lazy.taken import calls_of
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
    calls = calls_of(tape)
    layout = Layout(calls, *tape.state.widths())
    types, owner = calls.type, layout.consumer
    present = np.flatnonzero(np.bincount(types)).tolist()
    always = np.zeros((len(tape.state.fines), 2), bool)
    """For each type: whether its results are always trained, and whether arguments decide."""
    for number in present:
        always[number] = _known(tape.state.fines[number])
    flags: Flags = always[types, 0]
    is_open: Flags = always[types, 1]
    for number in present:
        trained = [_trained(row) for row in tape.data.get(number, ())]
        if any(trained) and always[number].any():
            flags[types == number] |= np.array(trained).reshape(-1, len(tape.state.fines[number].feeds)).any(1)
    given = layout.handed & is_open[owner]
    flags[owner[given][_trained_results(tape)[-calls.arguments[given] - 1]]] = True
    inside = ~layout.handed & is_open[owner]
    producer, owner = layout.producer[inside], owner[inside]
    while True:
        fresh = owner[flags[producer] & ~flags[owner]]
        if not len(fresh):
            return flags
        flags[fresh] = True


def _trained_results(tape: Tape) -> Flags:
    """Which of the results of earlier flushes that are handed in require gradients."""
    places = np.array([tape.results.get(ref, -1) for ref in tape.imported_refs], np.int64)
    found = np.zeros(len(places), bool)
    source = places >> ROW_BITS
    for number in np.unique(source[source >= 0]).tolist():
        at = np.flatnonzero(source == number)
        found[at] = tape.sources[number].are_trained(places[at] & ROW)
    return found


def _known(op: Op) -> tuple[bool, bool]:
    """Whether what an operation gives is always trained, and whether its arguments decide."""
    trained = is_trained(op)
    return trained, not trained and not cuts(op)


def cuts(op: Op) -> bool:
    """Whether what an operation gives has no gradients, whatever it is given."""
    return op.setting.detached or op.name == "detach"


def _trained(row: Any) -> bool:
    return isinstance(row, Tensor) and row.requires_grad


def is_trained(op: Op) -> bool:
    """Whether an operation has gradients of its own, whatever its arguments have."""
    if cuts(op):
        return False
    for owner in op.owners:
        if isinstance(owner, nn.Module):
            found = any(parameter.requires_grad for parameter in owner.parameters())
        else:
            found = any(_trained(fetch(place)) for place in Surroundings().add(owner).tensors)
        if found:
            return True
    return False
