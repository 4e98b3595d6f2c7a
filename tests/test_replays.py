"""Which captures are kept: some, with their plans, those that are used."""

from __future__ import annotations

from typing import Any

import pytest

from weft.plan.plan import Plan
from weft.run.gpu import replays
from weft.run.gpu.replays import Replays


def plan() -> Plan:
    nothing: Any = None
    return Plan(nothing, "auto", (), (), (), {}, {}, ())


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Replays[str]:
    monkeypatch.setattr(replays, "MOST", 2)
    monkeypatch.setattr(replays, "PATIENCE", 3)
    return Replays()


def call(kept: Replays[str], of: Plan, key: str) -> str | None:
    """What a call finds or makes."""
    found = kept.find(of, key)
    if found is None and kept.wants(of, key):
        kept.add(of, key, f"made for {key}")
    return found


def test_what_comes_twice_is_captured(kept: Replays[str]) -> None:
    one, other = plan(), plan()
    assert [call(kept, one, "a") for _ in range(3)] == [None, None, "made for a"]
    assert call(kept, one, "b") is None and call(kept, other, "a") is None
    assert kept.held() == 1


def test_captures_that_are_in_use_make_no_room(kept: Replays[str]) -> None:
    plans = [plan() for _ in range(3)]
    found = [[call(kept, one, "a") for one in plans] for _ in range(5)]
    assert found[2:] == [["made for a", "made for a", None]] * 3
    assert kept.held() == 2


def test_the_capture_used_longest_ago_makes_room(kept: Replays[str]) -> None:
    first, second, third = (plan() for _ in range(3))
    for one in (first, first, second, second, first):
        call(kept, one, "a")
    assert [call(kept, third, "a") for _ in range(5)] == [None, None, None, "made for a", "made for a"]
    assert kept.held() == 2
    assert call(kept, first, "a") == "made for a"
    assert call(kept, second, "a") is None


def test_captures_go_with_their_plans(kept: Replays[str]) -> None:
    plans = [plan() for _ in range(2)]
    for one in (*plans, *plans):
        call(kept, one, "a")
    del one
    assert kept.held() == 2
    plans.pop()
    assert kept.held() == 1
    assert [call(kept, plans[0], "b") for _ in range(3)] == [None, None, "made for b"]


def test_what_was_refused_is_not_tried_again(kept: Replays[str]) -> None:
    one = plan()
    call(kept, one, "a")
    assert kept.wants(one, "a")
    kept.refuse(one, "a")
    assert [call(kept, one, "a") for _ in range(2)] == [None, None]
    assert kept.held() == 0


def test_calls_that_never_come_again_are_forgotten(kept: Replays[str]) -> None:
    one = plan()
    for _ in range(2):
        call(kept, one, "stays")
    for number in range(20):
        call(kept, one, str(number))
        assert len(replays._of(one)) <= replays.MOST + 2
    assert call(kept, one, "stays") == "made for stays"
