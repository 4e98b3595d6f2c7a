"""Fed states that stay where they are.

Leaves that hand on their input would have it copied to the arena, from where the first steps of those above read it in slices.
They read it just as well where it was fed: whole steps, if it lies there in the order of the arena, else each step cut in
*stretches* that lie together, as the leaves of one tree do in a batch of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weft.graph.tape import Name
from weft.run.columns import Cuts, Numbers
from weft.run.indices import Indices

LONG = 64
"""So many rows of a stretch, on average, are multiplied as fast as a whole step."""
LARGE = 1 << 19
"""Numbers of a matrix from which on they are not: it has to be fetched from afar for each stretch."""


@dataclass(frozen=True, eq=False)
class Stretches:
    """The first `steps` steps of a reader as stretches: their rows, and the fed row with which each begins."""

    steps: int
    cuts: Cuts
    starts: Numbers


@dataclass(frozen=True, eq=False)
class Fed:
    """What a type reads through a port before its own states: the fed tensors, and where to find the stretches of a plan."""

    port: int
    tensors: dict[Name, str]
    find: Callable[[Indices], Stretches | None]
    key: tuple[object, ...]
    """Of facts about the stretches."""


def stretches(number: int, type: int, output: int, only_one: bool, indices: Indices) -> Stretches | None:
    """How a read may find the fed states of a type where they are; None where it may not. `only_one`: stretch."""
    key = ("stretches", number, type, output, only_one)
    return indices.once(key, lambda: _stretches(number, type, output, only_one, indices))


def _stretches(number: int, type: int, output: int, only_one: bool, indices: Indices) -> Stretches | None:
    plan, rows = indices.plan, indices.class_rows(type, output)
    read = plan.reads[number]
    if not isinstance(rows, tuple) or not indices.read(read).all_slices:
        return None
    (first, last), starts, ends = rows, read.slices, read.slices + np.diff(read.bounds) * read.width
    inside, apart = (starts >= first) & (ends <= last), (starts >= last) | (ends <= first)
    steps = int(inside.sum())
    if not steps or not inside[:steps].all() or not apart[steps:].all() or (starts[1:steps] != ends[: steps - 1]).any():
        return None
    nodes, feed = plan.rows[type], plan.program.feed
    fed = (nodes if feed is None else feed[nodes])[starts[0] - first : ends[steps - 1] - first]
    cuts = np.concatenate(([0], np.flatnonzero(np.diff(fed) != 1) + 1, [len(fed)]))
    many = len(cuts) - 1
    if (cuts % read.width).any() or (many > 1 and (only_one or len(fed) < LONG * read.width * many)):
        return None
    return Stretches(steps, Cuts((np.diff(cuts) // read.width).tolist()), Numbers(fed[cuts[:-1]].tolist()))
