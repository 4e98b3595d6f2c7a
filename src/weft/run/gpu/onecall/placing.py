"""How much memory blocks need that are in use at different times: asked of the C that will place them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft.cc import build, compiler
from weft.run.gpu.onecall.numbers import NotLowered

SOURCE = Path(__file__).with_name("placing.c").read_text(encoding="utf-8")

ASKED = """
int64_t weft_place(int count, const int64_t *bytes, const int *born, const int *dead, int spares, const struct spare *spare,
                   char *room, char **at) { return place(count, bytes, born, dead, spares, spare, room, at); }
"""

APART = 1 << 44
"""Further than any memory reaches."""


class Placed(NamedTuple):
    """A block, and the first and last operation that uses it."""

    bytes: int
    born: int
    dead: int


class Spare(NamedTuple):
    """Memory that is free from one operation to another."""

    bytes: int
    first: int
    last: int


class _Spare(ctypes.Structure):
    _fields_ = [("start", ctypes.c_int64), ("bytes", ctypes.c_int64), ("first", ctypes.c_int), ("last", ctypes.c_int)]


@functools.cache
def placer() -> Any:
    """The C function that places blocks."""
    path = compiler()
    if path is None:
        raise NotLowered("no compiler")
    found = build(path, f"{SOURCE}{ASKED}", "-O1").weft_place
    found.restype = ctypes.c_int64
    return found


def bytes_of_room(blocks: Sequence[Placed], neighbours: Sequence[Spare], others: Sequence[Spare]) -> int:
    """Bytes that blocks need beside spare memory, of which some lies side by side."""
    spare, start = list[tuple[int, int, int, int]](), APART
    for one in neighbours:
        spare.append((start, *one))
        start += one.bytes
    spare += [((at + 2) * APART, *one) for at, one in enumerate(others)]
    count, numbers = len(blocks), [*zip(*blocks, strict=True)] or [(), (), ()]
    at = (ctypes.c_void_p * (count + 1))()
    kinds = (ctypes.c_int64 * count)(*numbers[0]), (ctypes.c_int * count)(*numbers[1]), (ctypes.c_int * count)(*numbers[2])
    free = (_Spare * len(spare))(*[_Spare(*one) for one in spare])
    return int(placer()(count, *kinds, len(spare), free, ctypes.c_void_p(0), at))
