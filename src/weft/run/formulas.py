"""What pointwise operations compute for one number: one table for all kernels, whether Triton or C.

A formula is an expression of words that each language spells in its own way: `exp_(a)`, `pick_(condition, a, b)`. Constants
that are no whole numbers, and numbers that a call is given, are written `R(0.5)`. Operands are names of variables; what is
neither in a call (None, a flag, a string) comes as it is. A formula is None where a call of this form has none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from weft.graph.logsigmoid import log_sigmoid, log_sigmoid_backward
from weft.graph.tape import Value

aten = torch.ops.aten

Text = Callable[..., str | None]

JOINS = (aten.cat.default, aten.stack.default)


def _clamped(a: str, low: str | None = None, high: str | None = None) -> str:
    text = a if low is None else f"pick_({a} < {low}, {low}, {a})"
    return text if high is None else f"pick_({text} > {high}, {high}, {text})"


def _known(text: str | bool) -> float | None:
    """A number that is written into a formula."""
    return float(text[2:-1]) if isinstance(text, str) and text.startswith("R(") else None


SMALLEST, LARGEST = 1e-37, 1e38
"""Between these float32 has numbers of full precision; torch rounds the others to zero or infinity first."""


def _power(a: str, exponent: str) -> str | None:
    power = _known(exponent)
    if power is None or not math.isfinite(power):
        return None
    if power == int(power):
        if abs(power) > 8:
            return None
        text = " * ".join([a] * int(abs(power))) or "R(1.0)"
        return f"({text})" if power >= 0 else f"1 / ({text})"
    if abs(power) == 0.5:
        return f"sqrt_({a})" if power > 0 else f"1 / sqrt_({a})"
    return f"exp_({exponent} * log_(pick_({a} == R(-inf), R(inf), {a})))"


def _power_of(base: str, a: str) -> str | None:
    number = _known(base)
    if number is None or number == 1 or not SMALLEST < number < LARGEST:
        return None
    return f"exp_({a} * R({math.log(number)!r}))"


def _softplus(a: str, beta: str = "1", threshold: str = "20") -> str:
    return f"pick_({a} * {beta} > {threshold}, {a}, log1p_(exp_({a} * {beta})) / {beta})"


ROOT_HALF, ROOT_2_PI = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)
TANH_GELU = f"R({math.sqrt(2 / math.pi)!r})"


def _gelu(a: str, approximate: str = "none") -> str:
    if approximate == "tanh":
        return f"R(0.5) * {a} * (1 + tanh_({TANH_GELU} * ({a} + R(0.044715) * {a} * {a} * {a})))"
    return f"R(0.5) * {a} * (1 + erf_({a} * R({ROOT_HALF!r})))"


def _gelu_backward(g: str, a: str, approximate: str = "none") -> str:
    if approximate == "tanh":
        t = f"tanh_({TANH_GELU} * ({a} + R(0.044715) * {a} * {a} * {a}))"
        slope = f"{TANH_GELU} * (1 + R(0.134145) * {a} * {a})"
        return f"{g} * R(0.5) * (1 + {t} + {a} * (1 - {t} * {t}) * {slope})"
    return f"{g} * (R(0.5) * (1 + erf_({a} * R({ROOT_HALF!r}))) + {a} * exp_({a} * {a} * R(-0.5)) * R({ROOT_2_PI!r}))"


def _elu(a: str, alpha: str = "1", scale: str = "1", inner: str = "1") -> str:
    return f"pick_({a} > 0, {a} * {scale}, expm1_({a} * {inner}) * {alpha} * {scale})"


def _elu_backward(g: str, alpha: str, scale: str, inner: str, of_result: bool, a: str) -> str:
    slope = f"({a} + {alpha} * {scale})" if of_result else f"{alpha} * {scale} * exp_({a} * {inner})"
    return f"pick_({a} > 0, {g} * {scale}, {g} * {inner} * {slope})"


def _lerp(a: str, b: str, w: str) -> str:
    return f"pick_(abs_({w}) < R(0.5), {a} + {w} * ({b} - {a}), {b} - ({b} - {a}) * (1 - {w}))"


def _word(word: str) -> Text:
    return lambda a: f"{word}({a})"


def _between(sign: str) -> Text:
    return lambda a, b: f"{a} {sign} {b}"


def _sum_of(sign: str) -> Text:
    """a + alpha * b, or a - alpha * b."""
    return lambda a, b, alpha=None: f"{a} {sign} {b}" if alpha is None else f"{a} {sign} {alpha} * {b}"


_SIXTH = "R(0.16666667163372040)"
"""Torch keeps this one in float32, whatever it computes in."""

_PARTS = "pick_({a} < -3, R(0.0), pick_({a} > 3, R(6.0), {a} + 3))"

_FUNCTIONS = ("abs", "exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "erf", "sigmoid", "tanh")
_SIGNS = {"mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}

FORMULAS: dict[Any, Text] = {
    **{getattr(aten, name).default: _word(f"{name}_") for name in _FUNCTIONS},
    **{getattr(aten, name).Tensor: _between(sign) for name, sign in _SIGNS.items()},
    **{getattr(aten, name).Scalar: _between(sign) for name, sign in _SIGNS.items()},
    aten.add.Tensor: _sum_of("+"),
    aten.sub.Tensor: _sum_of("-"),
    aten.add.Scalar: _sum_of("+"),
    aten.sub.Scalar: _sum_of("-"),
    aten.rsub.Scalar: lambda a, b, alpha=None: f"{b} - {a}" if alpha is None else f"{b} - {alpha} * {a}",
    aten.addcmul.default: lambda a, b, c, value=None: f"{a} + {b} * {c}" + ("" if value is None else f" * {value}"),
    aten.addcdiv.default: lambda a, b, c, value="1": f"{a} + {value} * {b} / {c}",
    aten.lerp.Scalar: _lerp,
    aten.lerp.Tensor: _lerp,
    aten.neg.default: lambda a: f"-{a}",
    aten.sign.default: lambda a: f"pick_({a} > 0, R(1.0), pick_({a} < 0, R(-1.0), R(0.0)))",
    aten.sgn.default: lambda a: f"pick_({a} > 0, R(1.0), pick_({a} < 0, R(-1.0), R(0.0)))",
    aten.square.default: lambda a: f"{a} * {a}",
    aten.reciprocal.default: lambda a: f"1 / {a}",
    aten.pow.Tensor_Scalar: _power,
    aten.pow.Scalar: _power_of,
    aten.rsqrt.default: lambda a: f"1 / sqrt_({a})",
    aten.sigmoid_backward.default: lambda g, y: f"{g} * (1 - {y}) * {y}",
    aten.tanh_backward.default: lambda g, y: f"{g} * (1 - {y} * {y})",
    aten.relu.default: lambda a: f"pick_({a} < 0, R(0.0), {a})",
    aten.threshold_backward.default: lambda g, x, t: f"pick_({x} <= {t}, R(0.0), {g})",
    aten.leaky_relu.default: lambda a, slope="R(0.01)": f"pick_({a} > 0, {a}, {a} * {slope})",
    aten.leaky_relu_backward.default: lambda g, a, slope, of_result: f"pick_({a} > 0, {g}, {g} * {slope})",
    aten.elu.default: _elu,
    aten.elu_backward.default: _elu_backward,
    aten.celu.default: lambda a, alpha="1": f"pick_({a} > 0, {a}, expm1_({a} / {alpha}) * {alpha})",
    aten.silu.default: lambda a: f"{a} * sigmoid_({a})",
    aten.gelu.default: _gelu,
    aten.gelu_backward.default: _gelu_backward,
    aten.softplus.default: _softplus,
    aten.softplus_backward.default: lambda g, a, beta, threshold: (
        f"pick_({a} * {beta} > {threshold}, {g}, {g} * sigmoid_({a} * {beta}))"
    ),
    log_sigmoid: lambda a: f"pick_({a} < 0, {a}, R(0.0)) - log1p_(exp_(-abs_({a})))",
    log_sigmoid_backward: lambda g, a: f"{g} * sigmoid_(-{a})",
    aten.mish.default: lambda a: f"{a} * tanh_({_softplus(a)})",
    aten.hardtanh.default: lambda a, low="R(-1.0)", high="R(1.0)": _clamped(a, low, high),
    aten.hardtanh_backward.default: lambda g, a, low, high: f"pick_(({a} <= {low}) | ({a} >= {high}), R(0.0), {g})",
    aten.hardsigmoid.default: lambda a: f"{_PARTS.format(a=a)} / 6",
    aten.hardsigmoid_backward.default: lambda g, a: f"pick_(({a} > -3) & ({a} < 3), {g} * {_SIXTH}, R(0.0))",
    aten.hardswish.default: lambda a: f"{a} * {_PARTS.format(a=a)} / 6",
    aten.hardswish_backward.default: lambda g, a: f"pick_({a} <= -3, R(0.0), pick_({a} < 3, {g} * ({a} / 3 + R(0.5)), {g}))",
    aten.clamp.default: _clamped,
    aten.clamp_min.default: lambda a, low: _clamped(a, low),
    aten.clamp_max.default: lambda a, high: _clamped(a, None, high),
    aten.maximum.default: lambda a, b: f"pick_(({a} > {b}) | ({a} != {a}), {a}, {b})",
    aten.minimum.default: lambda a, b: f"pick_(({a} < {b}) | ({a} != {a}), {a}, {b})",
    aten.where.self: lambda c, a, b: f"pick_({c}, {a}, {b})",
    aten.masked_fill.Scalar: lambda a, mask, number: f"pick_({mask}, {number}, {a})",
    aten.masked_fill.Tensor: lambda a, mask, number: f"pick_({mask}, {number}, {a})",
    aten.logical_not.default: lambda a: f"{a} == 0",
    aten.bitwise_not.default: lambda a: f"{a} == 0",
    aten.logical_and.default: lambda a, b: f"({a} != 0) & ({b} != 0)",
    aten.logical_or.default: lambda a, b: f"({a} != 0) | ({b} != 0)",
    aten.bitwise_and.Tensor: lambda a, b: f"{a} & {b}",
    aten.bitwise_or.Tensor: lambda a, b: f"{a} | {b}",
    aten._to_copy.default: lambda a: f"{a}",
    aten.clone.default: lambda a: f"{a}",
}

BOOLEAN_ONLY = frozenset({aten.bitwise_not.default, aten.bitwise_and.Tensor, aten.bitwise_or.Tensor})
"""Operations that mean something else for integers."""

CONVERTS = frozenset({"dtype", "memory_format", "device", "layout", "pin_memory", "non_blocking"})


def number_of(arg: object) -> float | None:
    """A number, finite or not, or that of a constant tensor which holds one; None for NaN and all else."""
    if isinstance(arg, Value) and arg.constant is not None and arg.constant.numel() == 1:
        arg = arg.constant.item()
    return float(arg) if isinstance(arg, int | float) and not isinstance(arg, bool) and arg == arg else None


def formula(value: Value, name: Callable[[Value], str]) -> str | None:
    """The formula of an operation on operands of these names; None where there is none."""
    made = FORMULAS.get(value.target)
    if made is None or (value.target in BOOLEAN_ONLY and value.dtype is not torch.bool):
        return None

    def written(arg: object) -> Any:
        number = number_of(arg)
        return f"R({number!r})" if number is not None else name(arg) if isinstance(arg, Value) else arg

    left_out = CONVERTS if value.target in (aten._to_copy.default, aten.clone.default) else ()
    plain = [written(arg) for arg in value.args]
    named = {key: written(arg) for key, arg in value.kwargs.items() if key not in left_out}
    if not all(isinstance(arg, str | bool | None) for arg in (*plain, *named.values())):
        return None
    try:
        return made(*plain, **named)
    except TypeError:  # a form of the call that the table does not know
        return None


def has_formula(value: Value, words: Mapping[str, str]) -> bool:
    """Whether a language that knows these words can write an operation."""
    text = formula(value, lambda _: "a")
    return text is not None and words_of(text) <= words.keys()


def spelled(text: str, words: Mapping[str, str], number: str, infinity: str) -> str:
    """A formula in the words of a language; `number` is the form of a constant."""
    text = re.sub(r"\b([a-z][a-z0-9]*_)\(", lambda found: f"{words[found[1]]}(", text)
    text = text.replace("R(inf)", infinity).replace("R(-inf)", f"(-{infinity})")
    return re.sub(r"R\(([^()]*)\)", lambda found: number.format(found[1]), text)


def words_of(text: str) -> set[str]:
    """The words that a formula uses."""
    return set(re.findall(r"\b([a-z][a-z0-9]*_)\(", text))
