"""The numbers of a plan, as a flat dict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.api.structure import INIT
from weft.graph.program import EMPTY
from weft.plan.bound import longest_chains
from weft.plan.levels import levels
from weft.tools.pieces import Pieces

if TYPE_CHECKING:
    from weft.tools.planned import Planned


def stats(planned: Planned) -> dict[str, int | float]:
    """All numbers of a plan; docs/plans.md says what each means."""
    plan, pieces = planned.plan, planned.pieces
    program, types = plan.program, list(planned.pieces.types.values())
    # First states of rounds are no vertices' work: they are there before the first round.
    first = np.isin(program.type, [t for t, kind in enumerate(program.types) if kind == INIT])
    own = np.where((program.src >= 0) & np.append(first, False)[program.src], EMPTY, program.src)
    gathers = [gather for kind in types for gather in kind.gathers]
    forward = [piece for kind in types for piece in kind.forward.values()]
    backward = [piece for kind in types for piece in kind.backward.values()]
    return {
        "examples": planned.examples,
        "nodes": int(np.count_nonzero(~first)),
        "edges": int(np.count_nonzero(program.src >= 0)),
        "types": len(types),
        "groups": len(plan.groups),
        "levels": int(levels(program.ptr, own)[~first].max(initial=-1)) + 1,
        "steps": plan.num_steps,
        "batches": sum(piece.batches for piece in forward),
        "lower_bound": fewest_batches(pieces),
        "products": sum(piece.all_products for piece in forward),
        "products_backward": sum(piece.all_products for piece in backward),
        "gathers": sum(gather.times for gather in gathers if not gather.is_view),
        "gathers_avoided": sum(gather.times for gather in gathers if gather.is_view),
        "reorders": sum(kind.reorders for kind in types),
        "rows_max": largest_batch(pieces),
        "arena_bytes": sum(arena.bytes for arena in pieces.arenas),
        "record_s": planned.record_s,
        "plan_s": planned.plan_s,
        "cached": int(planned.cached),
        "fallbacks": sum(kind.fallback is not None for kind in types),
        "complete": int(planned.complete),
    }


def fewest_batches(pieces: Pieces) -> int:
    """The sum over pieces of the largest number of its nodes on one path; no order of batches has fewer.

    A piece before or after the recurrence needs no other node's piece of its kind, so it counts one. The pieces that run per
    step follow the types' own chains; a type on no cycle has at most one node on any path.
    """
    program = pieces.plan.program
    if not program.num_nodes:
        return 0
    once = sum(stage in kind.forward for kind in pieces.types.values() for stage in ("before", "after"))
    chains = longest_chains(len(program.types), program.type, program.ptr, program.src)
    return once + sum(chains[t] for t in pieces.types if pieces.steps_of(t))


def largest_batch(pieces: Pieces) -> int:
    """The largest number of rows in one batch."""
    largest = 0
    for t, kind in pieces.types.items():
        if {"before", "after"} & kind.forward.keys():
            largest = max(largest, kind.rows)
        elif pieces.steps_of(t):
            lo, hi = pieces.plan.type_steps(t)
            largest = max(largest, int((hi - lo).max()))
    return largest
