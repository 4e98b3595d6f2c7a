"""Products of few long rows: computed without laying the matrix out anew, with the same numbers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
import weft.nn
from weft import cc
from weft.run.cpu import walk
from weft.run.cpu.formulas import PRELUDE, c_text

EXPORT = """
void weft_narrow(real *out, const real *left, const real *right, const long *sizes) {
  narrow_product(out, left, right, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]);
}
"""

pytestmark = pytest.mark.usefixtures("one_thread")


def narrow_product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right.t()` of the C file alone; memory around the result must stay as it is."""
    path = cc.compiler()
    assert path is not None, "these tests need a C compiler: cc, gcc or clang"
    function: Any = cc.build(path, PRELUDE[left.dtype] + c_text("narrow.c") + EXPORT).weft_narrow
    function.argtypes, function.restype = [ctypes.c_void_p] * 4, None
    (rows, inner), columns = left.shape, len(right)
    whole = torch.full((rows + 2, columns), 7.0, dtype=left.dtype)
    sizes = (ctypes.c_long * 5)(right.stride(0), rows, inner, columns, left.stride(0))
    function(whole[1:].data_ptr(), left.data_ptr(), right.data_ptr(), sizes)
    assert (whole[0] == 7).all() and (whole[-1] == 7).all()
    return whole[1:-1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("inner", [16, 31, 64, 300])
def test_any_number_of_rows_and_columns_and_any_length(dtype: torch.dtype, inner: int) -> None:
    for rows in range(1, 10):
        for columns in (1, 3, 4, 7, 12):
            left, right = (
                torch.randn(rows, inner + 3, dtype=dtype)[:, :inner],
                torch.randn(columns, inner + 5, dtype=dtype)[:, :inner],
            )
            expected = (left.double() @ right.double().t()).to(dtype)
            torch.testing.assert_close(
                narrow_product(left, right), expected, rtol=0, atol=1e-13 if dtype.itemsize == 8 else 1e-4
            )


def test_nan_and_infinity_stay_where_they_are() -> None:
    left, right = torch.randn(5, 37), torch.randn(6, 37)
    left[1, 35], left[3, 2], right[4, 36] = torch.nan, torch.inf, torch.inf
    torch.testing.assert_close(narrow_product(left, right), left @ right.t(), equal_nan=True, rtol=0, atol=1e-5)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each product that the library does from here on."""
    found: list[int] = []
    library, kind = walk._library_product, ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 13)

    def product(dtype: torch.dtype) -> int | None:
        real = ctypes.cast(library(dtype) or 0, kind)

        def count(*arguments: Any) -> None:
            found.append(ctypes.cast(arguments[3], ctypes.POINTER(ctypes.c_int))[0])
            real(*arguments)

        seen: Callable[..., None] = kind(count)
        kept.append(seen)
        return ctypes.cast(seen, ctypes.c_void_p).value  # type: ignore[arg-type]  # a function pointer is one

    kept: list[Callable[..., None]] = []
    monkeypatch.setattr(walk, "_library_product", product)
    return found


def test_the_narrow_steps_of_a_walk_do_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, model = counted(monkeypatch), weft.nn.TreeFC(512)
    inner = [[2 * at, 2 * at + 1] for at in range(63)]
    graph = weft.Graph([[]] * 64 + inner, types=["leaf"] * 64 + ["node"] * 63)
    x = torch.randn(graph.num_vertices, 512)
    with torch.no_grad():
        got, expected = model(graph, x), model(graph, x, backend="reference")
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    assert rows and not {4, 8, 16} & set(rows)
