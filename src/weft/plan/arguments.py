"""Which arguments of the program a port reads: what the rows of edge data follow."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from weft.graph.program import Ints, Port, Program
from weft.plan.levels import offsets as offsets_of
from weft.plan.plan import Plan, Read

Indices = npt.NDArray[np.signedinteger]


def arguments(plan: Plan, read: Read) -> Ints:
    """Positions in the program's argument list, -1 for none, in the order of the type's rows; found once for each plan."""
    key = ("arguments", read.type, read.port)
    if key not in plan._derived:
        port = plan.program.types[read.type].ports[read.port]
        plan._derived[key] = positions(plan.program, plan.rows[read.type], port)[0].astype(np.int32)
    return cast(Ints, plan._derived[key])


def positions(program: Program, nodes: Indices, port: Port) -> tuple[Indices, Ints | None]:
    """The argument positions (into `src`) that a port of these nodes reads, -1 for none; for bags also their bounds."""
    begin, end = program.ptr.take(nodes), program.ptr.take(nodes + 1)
    if port.kind == "slots":
        slots = np.array(port.positions, dtype=np.int64)[:, None] + begin  # long rows: numpy loops fast over the last axis
        missing = slots >= end
        if missing.any():
            slots[missing] = -1
        return slots.T.reshape(-1), None
    begin = np.minimum(begin + np.int32(port.positions[0]), end)
    lengths = end - begin
    bounds = offsets_of(lengths)
    at = np.repeat(begin - bounds[:-1], lengths) + np.arange(bounds[-1])
    filled = program.src.take(at) >= 0
    if not filled.all():
        at, bounds = at[filled], offsets_of(filled)[bounds]
    return at, bounds
