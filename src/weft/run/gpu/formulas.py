"""The Triton text of pointwise operations (`run/formulas.py`), and how numbers of each kind are loaded and kept.

Numbers of 16 bits are computed with in 32 and rounded after every operation, as PyTorch does. `tanh` is written out, by a
rational function near zero and by an exponential elsewhere, because the library's cannot be interpreted on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from weft.graph.tape import Value, operands
from weft.run import formulas

PRELUDE = """import triton
import triton.language as tl


@triton.jit
def sigmoid_(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh_(x):
    z = x * x
    p = (-9.64399179425052238628e-1 * z - 9.92877231001918586564e1) * z - 1.61468768441708447952e3
    q = ((z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3) * z + 4.84406305325125486048e3
    t = tl.exp(-2 * tl.abs(x))
    far = (1 - t) / (1 + t)
    return tl.where(z < 0.390625, x + x * z * (p / q), tl.where(x < 0, -far, far))


@triton.jit
def expm1_(x):
    t = tanh_(x * 0.5)
    return tl.where(x < 0.5, 2 * t / (1 - t), tl.exp(x) - 1)


@triton.jit
def log1p_(x):
    y = x + 1
    return tl.where(y == 1, x, tl.where(x > 1, tl.log(y), tl.log(y) * (x / (y - 1))))
"""
"""The rational function is that of S. Moshier's Cephes library (1989)."""

TYPES = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.bfloat16: "tl.bfloat16",
    torch.float16: "tl.float16",
    torch.bool: "tl.int1",
}
HALVES = (torch.bfloat16, torch.float16)

WORDS = {
    "pick_": "tl.where",
    "exp_": "tl.exp",
    "log_": "tl.log",
    "sqrt_": "tl.sqrt",
    "abs_": "tl.abs",
    "sin_": "tl.sin",
    "cos_": "tl.cos",
    "erf_": "tl.erf",
    **{word: word for word in ("sigmoid_", "tanh_", "expm1_", "log1p_")},
}
"""How the words of formulas are spelled."""


def has_formula(value: Value) -> bool:
    """Whether a kernel can compute an operation number by number."""
    return value.dtype in TYPES and formulas.has_formula(value, WORDS)


def pointwise(value: Value, name: Callable[[Value], str]) -> str | None:
    """What an operation computes, as text; None where there is no formula."""
    text = formulas.formula(value, name)
    if text is None:
        return None
    # A number beside float64 is compared in float32, if it is not told otherwise.
    wide = any(one.dtype is torch.float64 for one in (value, *operands(value)))
    return formulas.spelled(text, WORDS, "tl.full((1, 1), {}, tl.float64)" if wide else "({})", 'float("inf")')


def converted(text: str, dtype: torch.dtype | None) -> str:
    """An expression as a number of another kind; those of 16 bits are only rounded."""
    if dtype is torch.bool:
        return f"({text}) != 0"
    return text if dtype in HALVES or dtype is None else f"({text}).to({TYPES[dtype]})"


def rounded(text: str, dtype: torch.dtype | None) -> str:
    """An expression as PyTorch would keep it."""
    return f"({text}).to({TYPES[dtype]}).to(tl.float32)" if dtype in HALVES else text


def loaded(text: str, dtype: torch.dtype | None) -> str:
    """A loaded number as it is computed with."""
    return f"{text}.to(tl.float32)" if dtype in HALVES else text
