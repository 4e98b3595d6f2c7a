"""The Triton text of pointwise operations: what each computes for one number.

Numbers of 16 bits are computed with in 32 and rounded after every operation, as PyTorch does. `tanh` is written out, by a
rational function near zero and by an exponential elsewhere, because the library's cannot be interpreted on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft.graph.tape import Value

aten = torch.ops.aten

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

Text = Callable[..., str]

FORMULAS: dict[Any, Text] = {
    aten.add.Tensor: lambda a, b: f"{a} + {b}",
    aten.sub.Tensor: lambda a, b: f"{a} - {b}",
    aten.add.Scalar: lambda a, b: f"{a} + {b}",
    aten.sub.Scalar: lambda a, b: f"{a} - {b}",
    aten.mul.Scalar: lambda a, b: f"{a} * {b}",
    aten.div.Scalar: lambda a, b: f"{a} / {b}",
    aten.rsub.Scalar: lambda a, b: f"{b} - {a}",
    aten.mul.Tensor: lambda a, b: f"{a} * {b}",
    aten.div.Tensor: lambda a, b: f"{a} / {b}",
    aten.neg.default: lambda a: f"-{a}",
    aten.abs.default: lambda a: f"tl.abs({a})",
    aten.square.default: lambda a: f"{a} * {a}",
    aten.reciprocal.default: lambda a: f"1 / {a}",
    aten.exp.default: lambda a: f"tl.exp({a})",
    aten.log.default: lambda a: f"tl.log({a})",
    aten.sqrt.default: lambda a: f"tl.sqrt({a})",
    aten.rsqrt.default: lambda a: f"1 / tl.sqrt({a})",
    aten.sin.default: lambda a: f"tl.sin({a})",
    aten.cos.default: lambda a: f"tl.cos({a})",
    aten.erf.default: lambda a: f"tl.erf({a})",
    aten.sigmoid.default: lambda a: f"sigmoid_({a})",
    aten.tanh.default: lambda a: f"tanh_({a})",
    aten.relu.default: lambda a: f"tl.where({a} < 0, 0.0, {a})",
    aten.silu.default: lambda a: f"{a} * sigmoid_({a})",
    aten.addcmul.default: lambda a, b, c: f"{a} + {b} * {c}",
    aten.where.self: lambda c, a, b: f"tl.where({c}, {a}, {b})",
    aten.lt.Scalar: lambda a, b: f"{a} < {b}",
    aten.le.Scalar: lambda a, b: f"{a} <= {b}",
    aten.gt.Scalar: lambda a, b: f"{a} > {b}",
    aten.ge.Scalar: lambda a, b: f"{a} >= {b}",
    aten.lt.Tensor: lambda a, b: f"{a} < {b}",
    aten.le.Tensor: lambda a, b: f"{a} <= {b}",
    aten.gt.Tensor: lambda a, b: f"{a} > {b}",
    aten.ge.Tensor: lambda a, b: f"{a} >= {b}",
    aten.logical_not.default: lambda a: f"{a} == 0",
    aten.threshold_backward.default: lambda g, x, t: f"tl.where({x} <= {t}, 0.0, {g})",
    aten.sigmoid_backward.default: lambda g, y: f"{g} * (1 - {y}) * {y}",
    aten.tanh_backward.default: lambda g, y: f"{g} * (1 - {y} * {y})",
    aten._to_copy.default: lambda a: f"{a}",
    aten.clone.default: lambda a: f"{a}",
}
"""Operands are names of variables, or numbers in brackets."""

JOINS = (aten.cat.default, aten.stack.default)

_CONVERTS = frozenset({"dtype", "memory_format", "device", "layout", "pin_memory", "non_blocking"})


def has_formula(value: Value) -> bool:
    if value.target not in FORMULAS or value.dtype not in TYPES:
        return False
    return not value.kwargs or (value.target in (aten._to_copy.default, aten.clone.default) and set(value.kwargs) <= _CONVERTS)


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
