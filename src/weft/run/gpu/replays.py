"""Which captures are kept: a few, with the plans that they are of, the one used longest ago going first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar, cast
from weakref import ref

from weft.plan.plan import Plan

T = TypeVar("T")

MOST = 16
"""Captures keep their memory, so only so many are kept."""
PATIENCE = 4 * MOST
"""A capture that was used within so many calls makes no room for another: making captures in turn helps nobody."""


class Replays(Generic[T]):
    """Captures belong to their plan and go with it; here is known in which order they were used."""

    def __init__(self) -> None:
        self._used: OrderedDict[tuple[int, Hashable], tuple[ref[Plan], int]] = OrderedDict()
        """By the plan's address and a key: the plan, and in which turn."""
        self._turn = 0

    def find(self, plan: Plan, key: Hashable) -> T | None:
        """The capture, if there is one."""
        found = _of(plan).get(key)
        self._turn += 1
        if found is None or isinstance(found, bool):
            return None
        self._use(plan, key)
        return cast(T, found)

    def wants(self, plan: Plan, key: Hashable) -> bool:
        """Whether a call that has no capture should get one: if it came before, and where there is room."""
        mine = _of(plan)
        if key not in mine:
            if len(mine) > MOST:  # tensors that are elsewhere at every call never come again
                for known in [known for known, found in mine.items() if isinstance(found, bool)]:
                    del mine[known]
            mine[key] = True
            return False
        return mine[key] is True and self._has_room()

    def refuse(self, plan: Plan, key: Hashable) -> None:
        """There is to be no capture."""
        _of(plan)[key] = False

    def add(self, plan: Plan, key: Hashable, made: T) -> T:
        _of(plan)[key] = made
        self._use(plan, key)
        while len(self._used) > MOST:
            (_, old), (owner, _) = self._used.popitem(last=False)
            _of(owner()).pop(old, None)
        return made

    def held(self) -> int:
        """How many captures there are."""
        for at in [at for at, (owner, _) in self._used.items() if at[1] not in _of(owner())]:
            del self._used[at]
        return len(self._used)

    def _has_room(self) -> bool:
        return self.held() < MOST or self._turn - next(iter(self._used.values()))[1] > PATIENCE

    def _use(self, plan: Plan, key: Hashable) -> None:
        self._used[id(plan), key] = ref(plan), self._turn
        self._used.move_to_end((id(plan), key))


def _of(plan: Plan | None) -> dict[Hashable, object]:
    """What a plan has by keys: a capture; True for a call that came once; False where there is to be none."""
    return {} if plan is None else cast(dict[Hashable, object], plan._derived.setdefault("replays", {}))
