"""Rows to places and from places, of any number and width, beside what they stand for."""

from __future__ import annotations

import pytest
import torch

from kernel_parts import NEEDS_INTERPRETER
from weft.run.gpu.rowcopy import put_rows, repeater, take_rows, tiles

pytestmark = NEEDS_INTERPRETER
SIZES = [(width, (0, 1, 2, 63, 300)) for width in (1, 6, 16)] + [(width, (5,)) for width in (150, 256, 300, 513)]
"""Widths, and numbers of rows for each."""


@pytest.mark.parametrize(("width", "many"), SIZES)
def test_rows_from_places(width: int, many: tuple[int, ...]) -> None:
    """Of two tensors these are added; what is behind the last row is zeros."""
    torch.manual_seed(0)
    a, b = torch.randn(50, width), torch.randn(30, width)
    ended = torch.cat([b, torch.zeros(1, width)])
    for rows in many:
        p, q = (torch.randint(0, last, (rows,), dtype=torch.int32) for last in (50, 31))
        assert torch.equal(take_rows(a, p), a[p.long()])
        expected = a[p.long()] + ended[q.long()]
        assert torch.equal(take_rows(a, p, b, q), expected)
        out = torch.full((rows + 1, width), float("nan"))
        assert torch.equal(take_rows(a, p, b, q, out=out[:rows]), expected) and out[rows].isnan().all()


@pytest.mark.parametrize(("width", "many"), SIZES)
def test_rows_to_places(width: int, many: tuple[int, ...]) -> None:
    """Of one tensor, and of two; other places stay as they are."""
    torch.manual_seed(0)
    for rows in many:
        places = torch.randperm(rows + 8).int()
        a, b = torch.randn(rows, width), torch.randn(7, width)
        p, q = places[:rows], places[rows : rows + 7]
        for more in ((), (q, b)):
            out = torch.full((rows + 8, width), float("nan"))
            expected = out.index_copy(0, p.long(), a)
            expected = expected.index_copy(0, q.long(), b) if more else expected
            put_rows(out, p, a, *more)
            assert torch.equal(out.nan_to_num(9), expected.nan_to_num(9))


def test_rows_are_added_where_they_lie() -> None:
    rows, given = torch.randn(20, 6), torch.randn(9, 6)
    p, expected = torch.randperm(9)[:5].int(), rows.clone()
    expected[3:8] += given[p.long()]
    take_rows(given, p, rows, torch.arange(3, 8, dtype=torch.int32), out=rows[3:8])
    assert torch.equal(rows, expected)


@pytest.mark.parametrize(("width", "many"), SIZES)
def test_one_row_again_and_again(width: int, many: tuple[int, ...]) -> None:
    row = torch.randn(width)
    for rows in many:
        out = torch.full((rows + 1, width), float("nan"))
        repeater(row.dtype, width).go(rows, width // tiles(width)[0], row, out[:rows])
        assert torch.equal(out[:rows], row.expand(rows, width)) and out[rows].isnan().all()
