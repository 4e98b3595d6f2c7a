"""Running recorded calls: the one entry for front ends that record call by call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.graph.calls import KEY, Library
from weft.graph.program import Ints
from weft.graph.recording import OUTPUT_BITS, CallProgram, References, merge_calls
from weft.run.options import Options
from weft.run.reference import RealRow

Blame = Callable[[int, Exception], None]
"""Told of the call, numbered in the merged program, in which an error came up."""


@dataclass(frozen=True, eq=False)
class Group:
    """Results of one kind: `rows[i]` answers the wanted reference number `at[i]`."""

    at: Ints
    rows: Tensor


def run_calls(
    library: Library,
    programs: Sequence[CallProgram],
    wanted: References,
    options: Options = Options(),  # noqa: B008 - frozen
    blame: Blame | None = None,
) -> list[Group]:
    """Compute all calls of `programs`, one after the other in numbering; the wanted outputs come back with gradient.

    `wanted` holds references into the merged program: program k's calls follow those of program k - 1.
    """
    program = merge_calls(programs)
    return _one_by_one(library, program, wanted, blame)


def in_order(groups: Sequence[Group], count: int) -> list[Tensor]:
    """One tensor for each wanted reference."""
    found: list[Any] = [None] * count
    for group in groups:
        for at, row in zip(group.at.tolist(), group.rows.unbind(0), strict=True):
            found[at] = row
    return found


def stacked(groups: Sequence[Group], positions: Ints) -> Tensor:
    """The rows of these wanted references as one tensor; all must have the same shape and dtype."""
    if len(groups) == 1 and len(groups[0].at) == len(positions) and bool((groups[0].at == positions).all()):
        return groups[0].rows
    place = np.empty(sum(len(group.at) for group in groups), dtype=np.int64)
    used = [group for group in groups if np.isin(group.at, positions).any()]
    first = 0
    for group in used:
        place[group.at] = np.arange(first, first + len(group.at))
        first += len(group.at)
    rows = used[0].rows if len(used) == 1 else torch.cat([group.rows for group in used])
    return rows.index_select(0, torch.from_numpy(place[positions]).to(rows.device))


def _one_by_one(library: Library, program: CallProgram, wanted: References, blame: Blame | None) -> list[Group]:
    """The reference: calls in the order in which they were recorded, ordinary autograd, ordinary tracebacks."""
    results: list[Sequence[Tensor]] = []
    arguments, further = program.arguments.tolist(), iter(program.further.tolist())
    fed = {key: torch.as_tensor(rows).unbind(0) for key, rows in program.data.items()}
    seen: dict[int, int] = {}
    low = (1 << OUTPUT_BITS) - 1
    at = 0
    for number, t in enumerate(program.type.tolist()):
        kind = library.types[t]
        end = at + len(kind.args) + (next(further) if kind.many is not None else 0)
        given = [results[ref >> OUTPUT_BITS][ref & low] for ref in arguments[at:end]]
        at = end
        row = seen[t] = seen.get(t, -1) + 1
        feeds = [fed[t, i][row] for i in range(len(kind.feeds))]
        single, rest = given[: len(kind.args)], given[len(kind.args) :]
        answers = () if kind.many is None else (_further(library, t, rest),)
        try:
            results.append(kind.body(*(tensor.clone() for tensor in single), *(feed.clone() for feed in feeds), *answers))
        except Exception as error:
            if blame is not None:
                blame(number, error)
            raise
    chosen = [results[ref >> OUTPUT_BITS][ref & low] for ref in wanted.tolist()]
    kinds: dict[Any, list[int]] = {}
    for position, tensor in enumerate(chosen):
        kinds.setdefault((tensor.shape, tensor.dtype), []).append(position)
    return [Group(np.array(each, np.int32), torch.stack([chosen[i] for i in each])) for each in kinds.values()]


def _further(library: Library, t: int, rest: list[Tensor]) -> RealRow:
    spec = library.types[t].spec
    states: list[dict[str, Tensor] | None] = [{} for _ in spec.slots]
    states += [{KEY: tensor} for tensor in rest]
    return RealRow(spec, states, [None] * len(states), 0, {}, None)
