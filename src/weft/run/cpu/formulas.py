"""The C text of pointwise operations (`run/formulas.py`): the functions that their formulas use are in `run/cpu/c`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from weft.graph.tape import Value
from weft.run import formulas


def c_text(*names: str) -> str:
    """Files of C, one after the other."""
    return "".join((Path(__file__).parent / "c" / name).read_text(encoding="utf-8") for name in names)


PRELUDE = {
    torch.float32: c_text("inline.c", "float32.c", "functions.c"),
    torch.float64: c_text("inline.c", "float64.c", "functions.c"),
}
"""The functions that formulas may use, by dtype."""

HEADS = {dtype: text + c_text("walk.c") for dtype, text in PRELUDE.items()}
"""What comes before kernels and walks, by dtype."""

WORDS = {word: word for word in ("pick_", "exp_", "log_", "sqrt_", "abs_", "sigmoid_", "tanh_", "expm1_", "log1p_")}
"""The words of formulas (`run/formulas.py`) that these files define."""

LANES = {torch.float32: 16, torch.float64: 8}
"""How many numbers a loop computes at once: 64 bytes, the widest vectors there are and one or more of any other."""


def has_formula(value: Value) -> bool:
    """Whether a kernel can compute an operation number by number."""
    return value.dtype in PRELUDE and formulas.has_formula(value, WORDS)


def pointwise(value: Value, name: Callable[[Value], str]) -> str:
    """What an operation computes, as text."""
    text = formulas.formula(value, name)
    assert text is not None
    return formulas.spelled(text, WORDS, "((real){})", "((real)__builtin_inf())")
