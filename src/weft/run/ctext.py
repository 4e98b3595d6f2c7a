"""The C text of pointwise operations (`run/formulas.py`): the functions that their formulas use.

`exp`, `log` and `tanh` are written out so that any compiler can turn loops over them into vector instructions: range reduction
and rational or polynomial approximations after S. Moshier's Cephes library (1989), with a relative error of a few units in the
last place. `fall_` is `exp` for arguments that are not positive, which is all that sigmoid and tanh need; NaN goes through,
underflow is gradual. In float32 `tanh` is one rational function of degrees 9 and 8, fitted to a relative error of 2.2e-8 on
[-9.02, 9.02]; beyond, where tanh rounds to 1, it grows above 1 and is cut there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from weft.graph.tape import Value
from weft.run import formulas

# `rest_` is exp of what x has beyond z times the logarithm of 2. `fall_` takes powers of two in two parts so that underflow is
# gradual, `exp_` so that overflow is too. As a function, `pick_` reads both: where only one is read some compilers (gcc 12)
# make masked loads of other rows' masks.
SHARED = """
static inline real pick_(int condition, real a, real b) { return condition ? a : b; }
static inline real two_to_(integer power) {
  integer bits = (power + BIAS) << FRACTION;
  real found;
  __builtin_memcpy(&found, &bits, sizeof(real));
  return found;
}
static inline real nearest_power_(real x) { return rint_(x * (real)1.4426950408889634073599); }
static inline real fall_(real x) {
  x = x < LOWEST ? LOWEST : x;
  real z = nearest_power_(x);
  return rest_(x, z) * two_to_((integer)z + SCALE) * two_to_(-SCALE);
}
static inline real exp_(real x) {
  x = x < LOWEST ? LOWEST : x > HIGHEST ? HIGHEST : x;
  real z = nearest_power_(x);
  integer power = (integer)z, half = power >> 1;
  return rest_(x, z) * two_to_(half) * two_to_(power - half);
}
static inline real sigmoid_(real x) {
  real e = fall_(x < 0 ? x : -x);
  return (x < 0 ? e : 1) / (1 + e);
}
static inline real expm1_(real x) {
  real t = tanh_(x / 2);
  return x < (real)0.5 ? 2 * t / (1 - t) : exp_(x) - 1;
}
static inline real log1p_(real x) {
  real y = x + 1;
  return y == 1 ? x : x > 1 ? log_(y) : log_(y) * (x / (y - 1));
}
"""

PRELUDE = {
    torch.float32: """
typedef float real;
typedef int integer;
enum { LOWEST = -104, HIGHEST = 89, BIAS = 127, FRACTION = 23, SCALE = 64 };
static inline real rint_(real x) { return __builtin_rintf(x); }
static inline real sqrt_(real x) { return __builtin_sqrtf(x); }
static inline real abs_(real x) { return __builtin_fabsf(x); }
static inline real rest_(real x, real z) {
  real r = x - z * 0.693359375f + z * 2.12194440e-4f;
  real p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * r * r + r + 1.0f;
}
static inline real tanh_(real x) {
  x = x < -10.0f ? -10.0f : x;
  x = x > 10.0f ? 10.0f : x;
  real z = x * x;
  real p = 1.3317689855e-8f;
  p = p * z + 2.0582530115e-5f;
  p = p * z + 3.4939800509e-3f;
  p = p * z + 1.3379673571e-1f;
  p = p * z + 9.9999997922e-1f;
  real q = 7.7614654304e-7f;
  q = q * z + 3.2830011037e-4f;
  q = q * z + 2.5870870340e-2f;
  q = q * z + 4.6712988900e-1f;
  q = q * z + 1.0f;
  real t = x * p / q;
  t = t < -1.0f ? -1.0f : t;
  return t > 1.0f ? 1.0f : t;
}
static inline real log_(real x) {
  real tiny = x < 1.17549435e-38f ? 8388608.0f : 1.0f, y = x * tiny;
  int bits, mantissa;
  __builtin_memcpy(&bits, &y, 4);
  int power = ((bits >> 23) & 255) - 126;
  mantissa = (bits & 0x007fffff) | 0x3f000000;
  real m;
  __builtin_memcpy(&m, &mantissa, 4);
  real low = m < 0.707106781f ? 1.0f : 0.0f, e = (real)power - low - (tiny > 1.0f ? 23.0f : 0.0f);
  m = m - 1.0f + low * m;
  real z = m * m, p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  real found = m + (m * z * p - 2.12194440e-4f * e - 0.5f * z) + 0.693359375f * e;
  found = x == __builtin_inff() ? x : found;
  return x > 0 ? found : x == 0 ? -__builtin_inff() : x - x + __builtin_nanf("");
}
"""
    + SHARED,
    torch.float64: """
typedef double real;
typedef long long integer;
enum { LOWEST = -746, HIGHEST = 710, BIAS = 1023, FRACTION = 52, SCALE = 512 };
static inline real rint_(real x) { return __builtin_rint(x); }
static inline real sqrt_(real x) { return __builtin_sqrt(x); }
static inline real abs_(real x) { return __builtin_fabs(x); }
static inline real rest_(real x, real z) {
  real r = x - z * 6.93145751953125e-1 - z * 1.42860682030941723212e-6;
  real s = r * r;
  real p = r * ((1.26177193074810590878e-4 * s + 3.02994407707441961300e-2) * s + 9.99999999999999999910e-1);
  real q = ((3.00198505138664455042e-6 * s + 2.52448340349684104192e-3) * s + 2.27265548208155028766e-1) * s
           + 2.00000000000000000005;
  return 1.0 + 2.0 * p / (q - p);
}
static inline real fall_(real x);
static inline real tanh_(real x) {
  real z = x * x;
  real p = (-9.64399179425052238628e-1 * z - 9.92877231001918586564e1) * z - 1.61468768441708447952e3;
  real q = ((z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3) * z + 4.84406305325125486048e3;
  real near = x + x * z * (p / q);
  real t = fall_(x < 0 ? x + x : -x - x);
  real far = (1.0 - t) / (1.0 + t);
  return z < 0.390625 ? near : x < 0 ? -far : far;
}
static inline real log_(real x) {
  real tiny = x < 2.2250738585072014e-308 ? 4503599627370496.0 : 1.0, y = x * tiny;
  long long bits, mantissa;
  __builtin_memcpy(&bits, &y, 8);
  long long power = ((bits >> 52) & 2047) - 1022;
  mantissa = (bits & 0x000fffffffffffffLL) | 0x3fe0000000000000LL;
  real m;
  __builtin_memcpy(&m, &mantissa, 8);
  real low = m < 0.70710678118654752440 ? 1.0 : 0.0, e = (real)power - low - (tiny > 1.0 ? 52.0 : 0.0);
  m = m - 1.0 + low * m;
  real z = m * m, p = 1.01875663804580931796e-4, q = m + 1.12873587189167450590e1;
  p = p * m + 4.97494994976747001425e-1;
  p = p * m + 4.70579119878881725854;
  p = p * m + 1.44989225341610930846e1;
  p = p * m + 1.79368678507819816313e1;
  p = p * m + 7.70838733755885391666;
  q = q * m + 4.52279145837532221105e1;
  q = q * m + 8.29875266912776603211e1;
  q = q * m + 7.11544750618563894466e1;
  q = q * m + 2.31251620126765340583e1;
  real found = m + (m * (z * p / q) - e * 2.121944400546905827679e-4 - 0.5 * z) + e * 0.693359375;
  found = x == __builtin_inf() ? x : found;
  return x > 0 ? found : x == 0 ? -__builtin_inf() : x - x + __builtin_nan("");
}
"""
    + SHARED,
}
"""By dtype. Integer conversion of NaN is left alone: it is multiplied by NaN afterwards."""

WORDS = {word: word for word in ("pick_", "exp_", "log_", "sqrt_", "abs_", "sigmoid_", "tanh_", "expm1_", "log1p_")}
"""The words of formulas (`run/formulas.py`) that the texts above define."""

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
