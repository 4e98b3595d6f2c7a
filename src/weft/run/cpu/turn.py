"""Turned weights as the library multiplies them fastest: contiguous. Torch copies them slowly, number by number."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from weft.cc import build, compiler
from weft.run.cpu.formulas import PRELUDE, c_text


def turned_into(place: Tensor, matrix: Tensor) -> Tensor:
    """Copy a matrix of which each column lies densely to contiguous memory of its shape; returns that memory."""
    rows, columns = matrix.shape
    _function(matrix.dtype)(place.data_ptr(), matrix.data_ptr(), columns, rows, matrix.stride(1))
    return place


@cache
def _function(dtype: torch.dtype) -> Any:
    path = compiler()
    assert path is not None, "there are no walks without a compiler"
    function: Any = build(path, PRELUDE[dtype] + c_text("turn.c")).weft_turn
    function.argtypes, function.restype = [ctypes.c_void_p] * 2 + [ctypes.c_long] * 3, None
    return function
