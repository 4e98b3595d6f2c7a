"""Steps of one width that follow each other: found in Python, and in C by calls that are lowered."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy as np
import pytest

from weft.cc import build, compiler
from weft.run.gpu import table
from weft.run.gpu.onecall.text import PRELUDE
from weft.run.gpu.table import WIDTHS

LISTED = """
int64_t listed(const int32_t *lo, const int32_t *hi, int64_t first, int64_t count, int limits, const int32_t *limit,
               const int32_t *width, int backward, int32_t *out) {
    const struct steps s = steps_of(lo, hi, first, count, limits, limit, width);
    int64_t found = 0;
    for (struct stretch t = {s.count, s.first}; next_stretch(&s, backward, &t); found++)
        out[3 * found] = t.begin, out[3 * found + 1] = t.end, out[3 * found + 2] = t.width;
    return found;
}

int64_t widest_of(const int32_t *lo, const int32_t *hi, int64_t first, int64_t count, int limits, const int32_t *limit,
                  const int32_t *width) {
    return widest(steps_of(lo, hi, first, count, limits, limit, width));
}
"""


def random_case(seed: int, apart: int | None) -> tuple[list[int], tuple[tuple[int, str], ...]]:
    """Sizes of steps, and limits."""
    limits = tuple((rows, name) for rows, name in ((64, "middling"), (400, "wide")) if apart is None or rows < apart)
    limits += () if apart is None else ((apart, "apart"),)
    made = random.Random(seed)
    sizes = (1, 29, 30, 63, 64, 199, 200, 399, 400, 999, 1000, 4000)
    return [made.choice(sizes) for _ in range(made.randint(1, 9))], limits


@pytest.mark.parametrize("apart", [None, 30, 200, 1000])
def test_steps_of_one_width_that_follow_each_other_are_one_stretch(apart: int | None) -> None:
    def width(size: float, limits: tuple[tuple[int, str], ...]) -> str:
        return next((name for rows, name in reversed(limits) if size >= rows), "narrow")

    for seed in range(60):
        sizes, limits = random_case(seed, apart)
        expected: list[tuple[int, int, str]] = []
        for at, size in enumerate(sizes):
            begin = expected.pop()[0] if expected and expected[-1][2] == width(size, limits) else at
            expected.append((begin, at + 1, width(size, limits)))
        if len(expected) > table.MOST_STRETCHES and "apart" not in [name for _, _, name in expected]:
            expected = [(0, len(sizes), width(sum(sizes) / len(sizes), limits))]
        assert table._make_stretches(sizes, limits) == expected
        later = [(begin + 1, end + 1, name) for begin, end, name in expected]
        assert table._make_stretches([7, *sizes], limits, 1) == later


@pytest.fixture(scope="module")
def library() -> Any:
    path = compiler()
    if path is None:
        pytest.skip("no compiler")
    return build(path, PRELUDE + LISTED, "-O1")


@pytest.mark.parametrize("apart", [None, 30, 200, 1000])
def test_c_finds_the_same_stretches(library: Any, apart: int | None) -> None:
    many = 0
    for seed in range(300):
        sizes, limits = random_case(seed, apart)
        ends = np.cumsum(sizes, dtype=np.int32)
        lo, hi = ends - np.array(sizes, dtype=np.int32), ends
        rows = np.array([rows for rows, _ in limits] or [0], dtype=np.int32)
        widths = np.array([WIDTHS.index(name) for name in ("narrow", *(name for _, name in limits))], dtype=np.int32)
        first = seed % 2
        out, expected = np.empty(3 * len(sizes), dtype=np.int32), table._make_stretches(sizes, limits, first)
        many += len(expected) == 1 < len(sizes) and apart is None
        pointers = [ctypes.c_void_p(one.ctypes.data) for one in (lo, hi, rows, widths, out)]
        given = *pointers[:2], ctypes.c_int64(first), ctypes.c_int64(len(sizes)), len(limits), *pointers[2:4]
        for backward in (0, 1):
            found = library.listed(*given, backward, pointers[4])
            listed = [(begin, end, WIDTHS[width]) for begin, end, width in out[: 3 * found].reshape(-1, 3).tolist()]
            assert listed == (expected[::-1] if backward else expected)
        wide = [size for begin, end, name in expected if name == "apart" for size in sizes[begin:end]]
        assert library.widest_of(*given) == max(wide, default=0)
    assert many or apart is not None
