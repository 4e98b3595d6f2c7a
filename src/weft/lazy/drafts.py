"""Numbers written into what was made of nothing: they are data of the example, written at once.

    adjacency = torch.zeros(n, n)
    for a, b in edges:
        adjacency[a, b] = 1.0

Recorded, every write would be a call that gives a whole new matrix. But until somebody uses it, nobody can tell it from a
tensor of the example's own, such as those that the call was given (`lazy/given.py`). What is used in between is not written
over: the next write goes into a copy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.graph.recording import OUTPUT_BITS
from weft.lazy.changes import version_of
from weft.lazy.given import GivenRows, is_known, is_plain
from weft.lazy.tape import Tape
from weft.lazy.value import Value


class Draft(NamedTuple):
    """A tensor made of nothing, with numbers in it. `since`: so many arguments on the tape are known not to use it."""

    rows: GivenRows
    since: int


def written(tape: Tape, target: Value, index: Any, number: Any) -> Value | None:
    """What was made of nothing with a number written into it; None where the write must be recorded."""
    ref = target._ref
    draft: Draft | None = tape.views.drafts.get(ref)
    since = tape.views.made.get(ref) if draft is None else draft.since
    if since is None or ref in tape.views.viewed or target.__class__ is not Value or tape.watchful or tape.values is not None:
        return None
    if number.__class__ not in (int, float, bool) or not is_plain(index) or tape.keeper or tape.is_portable:
        return None
    is_used = ref in tape.arguments[since:]
    with torch._C.DisableTorchFunction(), torch.no_grad():
        if draft is not None and not is_used:
            rows, found = draft.rows, target
        else:
            tensor = draft.rows.row(0).clone() if draft is not None else None if is_used else _made(tape, ref)
            if tensor is None:
                return None
            rows = GivenRows(tensor.unsqueeze(0), [tensor])
            found = tape.given(rows, 0)
        rows.row(0)[index] = number
        rows.version = version_of(rows.rows)
    tape.views.drafts[found._ref] = Draft(rows, len(tape.arguments))
    return found


def _made(tape: Tape, ref: int) -> Tensor | None:
    """The tensor that a recorded factory makes."""
    op = tape.state.fines[tape.type[(ref - tape.floor) >> OUTPUT_BITS]]
    (tensor,) = op.run((), ())
    return tensor if is_known(tape, tensor) and not tensor.requires_grad else None
