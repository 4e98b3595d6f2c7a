"""Working memory of one call: blocks of one time lie apart, and spare memory is used only while it is free."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import pytest

from weft.cc import build, compiler
from weft.run.gpu.onecall.text import PRELUDE

ROOM = 1 << 40
"""Where memory of the call's own starts; spare memory starts at lower multiples of 2 ** 30."""


class Spare(ctypes.Structure):
    _fields_ = [("start", ctypes.c_int64), ("bytes", ctypes.c_int64), ("first", ctypes.c_int), ("last", ctypes.c_int)]


@pytest.fixture(scope="module")
def place() -> Any:
    path = compiler()
    if path is None:
        pytest.skip("no C compiler")
    types = "int count, const int64_t *bytes, const int *born, const int *dead, int spares, const struct spare *spare"
    head = f"int64_t weft_place({types}, char *room, char **at)"
    found = build(path, f"{PRELUDE}\n{head} {{ return place(count, bytes, born, dead, spares, spare, room, at); }}\n", "-O1")
    found.weft_place.restype = ctypes.c_int64
    return found.weft_place


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_blocks_of_one_time_lie_apart_and_in_spare_memory_while_it_is_free(place: Any, first: int) -> None:
    used = 0
    for seed in range(first, first + 100):
        made = random.Random(seed)
        times = sorted((born := made.randrange(20), born + made.randrange(6)) for _ in range(made.randrange(1, 15)))
        sizes = [256 * made.randrange(1, 6) for _ in times]
        spare = [(256 * made.randrange(12), born := made.randrange(20), born + made.randrange(20)) for _ in range(3)]
        many, at = len(times), (ctypes.c_int64 * len(times))()
        room = place(
            many,
            (ctypes.c_int64 * many)(*sizes),
            *((ctypes.c_int * many)(*one) for one in zip(*times, strict=True)),
            len(spare),
            (Spare * len(spare))(*[(k << 30, *one) for k, one in enumerate(spare)]),
            ctypes.c_void_p(ROOM),
            at,
        )
        found = [(start, start + size, *time) for start, size, time in zip(at, sizes, times, strict=True)]
        for i, (start, end, born, dead) in enumerate(found):
            length, since, until = (room, 0, 99) if start >= ROOM else spare[start >> 30]
            assert (end - 1) % (1 << 30) < length and since <= born and dead <= until
            used += start < ROOM
            for begin, stop, other_born, other_dead in found[:i]:
                assert end <= begin or stop <= start or dead < other_born or other_dead < born
        assert room == max((end - ROOM for start, end, _, _ in found if start >= ROOM), default=0)
    assert used > 50
