"""Change one number or flag of a plan or of its returns, anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from weft.plan.plan import Plan
from weft.plan.returns import returns

Place = tuple[str | int | tuple[int, ...], ...]
"""The way to a number: names of fields, positions in tuples and arrays, keys of dicts."""

NOT_MUTATED = ("program", "policy", "seconds", "max_rows", "_derived", "kind")
"""What a plan was made from, and words; the numbers that say how it runs are all the rest."""


def arrays(value: Any, place: Place = ()) -> Iterator[tuple[Place, int]]:
    """All places that hold numbers, and how many."""
    if isinstance(value, np.ndarray):
        if value.size:
            yield place, value.size
    elif isinstance(value, (bool, int)):
        yield place, 1
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from arrays(item, (*place, number))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from arrays(item, (*place, key))
    elif is_dataclass(value):
        for field in fields(value):
            if field.name not in NOT_MUTATED:
                yield from arrays(getattr(value, field.name), (*place, field.name))


def changed(value: Any, place: Place, rng: random.Random) -> Any:
    """The same value with one number at this place changed."""
    if not place:
        return _other(value, rng)
    step, rest = place[0], place[1:]
    if isinstance(value, tuple):
        assert isinstance(step, int)
        return (*value[:step], changed(value[step], rest, rng), *value[step + 1 :])
    if isinstance(value, dict):
        return {**value, step: changed(value[step], rest, rng)}
    assert isinstance(step, str)
    return replace(value, **{step: changed(getattr(value, step), rest, rng)})


def _other(value: Any, rng: random.Random) -> Any:
    if isinstance(value, np.ndarray):
        copy = value.copy()
        at = rng.randrange(len(copy))
        copy[at] = _other(copy[at].item(), rng)
        return copy
    if isinstance(value, bool):
        return not value
    candidates = {value - 1, value + 1, 0, -1, rng.randrange(-1, abs(value) + 4)} - {value}
    return rng.choice(sorted(candidates))


def mutate(plan: Plan, rng: random.Random) -> tuple[Place, Plan]:
    """A plan with one number changed, somewhere in it or in its returns; and where."""
    pair = {"plan": plan, "returns": returns(plan)}
    place = rng.choice([place for place, _ in arrays(pair)])
    mutant = changed(pair, place, rng)
    return place, replace(mutant["plan"], _derived={"returns": mutant["returns"]})
