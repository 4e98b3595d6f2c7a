"""Parameters on which no result depends have no gradient, as in the loop, though a flush in the middle has used them.

A flush computes whatever is alive, for all examples together, and differentiates that as a whole: what no result needs would
get zeros. Which parameters the results depend on is known when the recording ends:

    flush 1    h = v * p      s = w @ v          p: no result depends on it, None
    flush 2    if h.sum() > 0: ...     s * 2     w: reached from the result
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from weft.graph.program import Ints
from weft.graph.recording import OUTPUT_BITS, References
from weft.lazy.chains import Flags, Longs
from weft.lazy.gradients import captured, passing_types
from weft.lazy.native import functions
from weft.lazy.taken import Pending, segment
from weft.lazy.tape import Tape


def leave_out_unreached(tape: Tape, wanted: References, last: Ints) -> None:
    """Tell the flushes of a recording which parameters get no gradients. `last`: types of the calls of the last flush."""
    if not tape.nodes or tape.gave_out or (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    parts = [*tape.past, segment(tape)]
    types = np.concatenate([part.type for part in parts])
    used = _parameters(tape, types)
    if used <= _parameters(tape, last):
        return
    unreached = used - _parameters(tape, types[_reached(tape, parts, types, wanted)])
    for node in tape.nodes if unreached else ():
        node.unreached = unreached


def _parameters(tape: Tape, types: Ints) -> frozenset[int]:
    """What the operations of some types use of the model, by identity."""
    known, ops = tape.world.captured, tape.state.fines
    present = np.flatnonzero(np.bincount(types)).tolist() if len(types) else []
    for number in present:
        if number not in known:
            known[number] = frozenset(map(id, captured(ops[number])))
    return frozenset().union(*[known[number] for number in present])


def _reached(tape: Tape, parts: Sequence[Pending], types: Ints, wanted: References) -> Flags:
    """The calls to which gradients of the results come."""
    producer = np.concatenate([part.arguments for part in parts]) >> OUTPUT_BITS
    arity, is_many = tape.state.widths()
    counts, many = arity[types], is_many[types]
    if many.any():
        counts[many] += np.concatenate([part.further for part in parts])
    found: Flags = np.zeros(len(types), bool)
    found[wanted[wanted >= 0] >> OUTPUT_BITS] = True
    arrays = np.cumsum(counts), producer, passing_types(tape.state)[types], found
    native = functions("weave", "weft_reach")
    reach(*arrays) if native is None else native[0](arrays)
    return found


def reach(ends: Longs, producer: Longs, passes: Flags, found: Flags) -> None:
    """Mark what is reached from the calls that are marked: the slow twin of `c/reach.c`."""
    starts = [0, *ends.tolist()]
    for call in range(len(found) - 1, -1, -1):  # arguments come before the calls that use them
        if found[call] and passes[call]:
            sources = producer[starts[call] : starts[call + 1]]
            found[sources[sources >= 0]] = True
