"""The C text of pointwise operations: what each computes for one number, and the functions they use.

`exp` and `tanh` are written out so that any compiler can turn loops over them into vector instructions: range reduction and
rational or polynomial approximations after S. Moshier's Cephes library (1989), with a relative error of a few units in the last
place. `exp_` is for arguments that are not positive, which is all that these need; NaN goes through, underflow is gradual. In
float32 `tanh` is one rational function of degrees 9 and 8, fitted to a relative error of 7e-9 on [-8, 8]; beyond, it stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft.graph.tape import Value

aten = torch.ops.aten

PRELUDE = {
    torch.float32: """
typedef float real;
static inline real exp_(real x) {
  x = x < -104.0f ? -104.0f : x;
  real z = __builtin_rintf(x * 1.44269504088896341f);
  real r = x - z * 0.693359375f + z * 2.12194440e-4f;
  real p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  int bits = ((int)z + 64 + 127) << 23;
  real scale;
  __builtin_memcpy(&scale, &bits, 4);
  return p * scale * 5.42101086242752217e-20f;
}
static inline real tanh_(real x) {
  x = x < -8.0f ? -8.0f : x > 8.0f ? 8.0f : x;
  real z = x * x;
  real p = 1.5230592125e-8f;
  p = p * z + 2.1894784044e-5f;
  p = p * z + 3.5716053239e-3f;
  p = p * z + 1.3444504097e-1f;
  p = p * z + 9.9999999358e-1f;
  real q = 8.5225168061e-7f;
  q = q * z + 3.4113040317e-4f;
  q = q * z + 2.6164470612e-2f;
  q = q * z + 4.6777831419e-1f;
  q = q * z + 1.0f;
  return x * p / q;
}
static inline real sigmoid_(real x) {
  real e = exp_(x < 0 ? x : -x);
  return (x < 0 ? e : 1.0f) / (1.0f + e);
}
""",
    torch.float64: """
typedef double real;
static inline real exp_(real x) {
  x = x < -746.0 ? -746.0 : x;
  real z = __builtin_rint(x * 1.4426950408889634073599);
  real r = x - z * 6.93145751953125e-1 - z * 1.42860682030941723212e-6;
  real s = r * r;
  real p = r * ((1.26177193074810590878e-4 * s + 3.02994407707441961300e-2) * s + 9.99999999999999999910e-1);
  real q = ((3.00198505138664455042e-6 * s + 2.52448340349684104192e-3) * s + 2.27265548208155028766e-1) * s
           + 2.00000000000000000005;
  real e = 1.0 + 2.0 * p / (q - p);
  long long bits = ((long long)z + 512 + 1023) << 52;
  real scale;
  __builtin_memcpy(&scale, &bits, 8);
  return e * scale * 7.45834073120020674329e-155;
}
static inline real tanh_(real x) {
  real z = x * x;
  real p = (-9.64399179425052238628e-1 * z - 9.92877231001918586564e1) * z - 1.61468768441708447952e3;
  real q = ((z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3) * z + 4.84406305325125486048e3;
  real near = x + x * z * (p / q);
  real t = exp_(x < 0 ? x + x : -x - x);
  real far = (1.0 - t) / (1.0 + t);
  return z < 0.390625 ? near : x < 0 ? -far : far;
}
static inline real sigmoid_(real x) {
  real e = exp_(x < 0 ? x : -x);
  return (x < 0 ? e : 1.0) / (1.0 + e);
}
""",
}
"""By dtype. Integer conversion of NaN is left alone: it is multiplied by NaN afterwards."""

Text = Callable[..., str]

FORMULAS: dict[Any, Text] = {
    aten.add.Tensor: lambda a, b: f"{a} + {b}",
    aten.sub.Tensor: lambda a, b: f"{a} - {b}",
    aten.mul.Tensor: lambda a, b: f"{a} * {b}",
    aten.div.Tensor: lambda a, b: f"{a} / {b}",
    aten.neg.default: lambda a: f"-{a}",
    aten.sigmoid.default: lambda a: f"sigmoid_({a})",
    aten.tanh.default: lambda a: f"tanh_({a})",
    aten.relu.default: lambda a: f"({a} < 0 ? (real)0 : {a})",
    aten.addcmul.default: lambda a, b, c: f"{a} + {b} * {c}",
    aten.sigmoid_backward.default: lambda g, y: f"{g} * (1 - {y}) * {y}",
    aten.tanh_backward.default: lambda g, y: f"{g} * (1 - {y} * {y})",
}

LANES = {torch.float32: 16, torch.float64: 8}
"""How many numbers a loop computes at once: 64 bytes, the widest vectors there are and one or more of any other."""

JOINS = (aten.cat.default, aten.stack.default)


def has_formula(value: Value) -> bool:
    return value.target in FORMULAS and not value.kwargs and value.dtype in PRELUDE
