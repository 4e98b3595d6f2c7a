"""Working memory of one call: blocks of one time lie apart, and spare memory is used only while it is free."""

from __future__ import annotations

import ctypes
import random

import pytest

from weft.cc import compiler
from weft.run.gpu.onecall.placing import Placed, Spare, bytes_of_room, placer

NEEDS_COMPILER = pytest.mark.skipif(compiler() is None, reason="no C compiler")
ROOM = 1 << 40
"""Where memory of the call's own starts; spare memory starts at lower multiples of 2 ** 30, some of it right behind other."""


class Free(ctypes.Structure):
    _fields_ = [("start", ctypes.c_int64), ("bytes", ctypes.c_int64), ("first", ctypes.c_int), ("last", ctypes.c_int)]


@NEEDS_COMPILER
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_blocks_of_one_time_lie_apart_and_in_spare_memory_while_it_is_free(first: int) -> None:
    used = across = 0
    for seed in range(first, first + 100):
        made = random.Random(seed)
        times = [(born := made.randrange(20), born + made.randrange(6)) for _ in range(made.randrange(1, 15))]
        sizes = [256 * made.randrange(1, 6) for _ in times]
        spare: list[tuple[int, int, int, int]] = []
        for k in range(5):
            behind = k and made.random() < 0.6
            start = spare[-1][0] + spare[-1][1] if behind else (k + 1) << 30
            spare.append((start, 256 * made.randrange(1, 8), born := made.randrange(15), born + made.randrange(20)))
        many, at = len(times), (ctypes.c_int64 * len(times))()
        room = placer()(
            many,
            (ctypes.c_int64 * many)(*sizes),
            *((ctypes.c_int * many)(*one) for one in zip(*times, strict=True)),
            len(spare),
            (Free * len(spare))(*[Free(*one) for one in spare]),
            ctypes.c_void_p(ROOM),
            at,
        )
        found = [(start, start + size, *time) for start, size, time in zip(at, sizes, times, strict=True)]
        for i, (start, end, born, dead) in enumerate(found):
            if start < ROOM:
                parts = [(max(start, s), min(end, s + n)) for s, n, since, until in spare if since <= born and dead <= until]
                inside = [stop - begin for begin, stop in parts if begin < stop]
                assert sum(inside) == end - start
                used, across = used + 1, across + (len(inside) > 1)
            for begin, stop, other_born, other_dead in found[:i]:
                assert end <= begin or stop <= start or dead < other_born or other_dead < born
        assert room == max((end - ROOM for start, end, _, _ in found if start >= ROOM), default=0)
    assert used > 50 and across > 5


@NEEDS_COMPILER
def test_what_was_read_side_by_side_makes_room_for_something_larger() -> None:
    large = [Placed(300, 2, 3)]
    assert bytes_of_room(large, [Spare(100, 1, 9), Spare(200, 2, 9)], []) == 0
    assert bytes_of_room(large, [Spare(100, 1, 9), Spare(200, 3, 9)], []) == 300
    assert bytes_of_room(large, [], [Spare(100, 1, 9), Spare(200, 2, 9)]) == 300
    assert bytes_of_room([*large, Placed(50, 0, 1), Placed(60, 0, 2)], [], [Spare(300, 0, 9)]) == 60
