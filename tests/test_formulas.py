"""One table of formulas for all kernels: each, in C and in Triton, beside the operation that it stands for."""

from __future__ import annotations

import ctypes
import operator
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.cc import build, compiler
from weft.graph.logsigmoid import log_sigmoid_backward, without_buffers
from weft.graph.tape import Rows, Tape, Value
from weft.run import formulas
from weft.run.cpu import formulas as in_c
from weft.run.gpu.formulas import has_formula as kernels_have
from weft.run.gpu.launch import has_triton, interpreted
from weft.run.gpu.pointwise import fused

aten = torch.ops.aten
SHAPE = (Rows("n"), 4)
ODD = [
    0.0,
    -0.0,
    1e-30,
    -1e-30,
    1e-8,
    0.3,
    -0.3,
    0.5,
    1.0,
    -1.0,
    2.0,
    3.0,
    -3.0,
    20.5,
    60.0,
    -60.0,
    torch.inf,
    -torch.inf,
    torch.nan,
]

# Arguments by operation: "a", "b", "c" are tensors of any numbers, "p" of positive ones, "m" and "n" of flags; "f" of finite
# ones, for operations in which torch itself does not treat NaN alike everywhere.
CALLS: dict[Any, list[tuple[Any, ...]]] = {
    aten.add.Tensor: [("a", "b"), ("a", 0.3)],
    aten.sub.Tensor: [("a", "b")],
    aten.add.Scalar: [("a", 0.3)],
    aten.sub.Scalar: [("a", 0.3)],
    aten.rsub.Scalar: [("a", 0.3)],
    aten.mul.Tensor: [("a", "b")],
    aten.mul.Scalar: [("a", 0.3)],
    aten.div.Tensor: [("a", "b")],
    aten.div.Scalar: [("a", 0.3)],
    aten.addcmul.default: [("a", "b", "c")],
    aten.addcdiv.default: [("a", "b", "c")],
    aten.lerp.Scalar: [("a", "b", 0.3), ("a", "b", 0.8)],
    aten.lerp.Tensor: [("a", "b", "c")],
    aten.pow.Tensor_Scalar: [
        ("a", 2),
        ("a", 3),
        ("a", -1),
        ("p", 0.5),
        ("p", -0.5),
        ("a", 1.7),
        ("a", -2.5),
        ("a", 8),
        ("a", 0),
    ],
    aten.pow.Scalar: [(2.0, "a"), (0.7, "a")],
    aten.log.default: [("a",), ("p",)],
    aten.sigmoid_backward.default: [("a", "b")],
    aten.tanh_backward.default: [("a", "b")],
    aten.threshold_backward.default: [("a", "b", 0)],
    aten.leaky_relu.default: [("a", 0.2), ("a",)],
    aten.leaky_relu_backward.default: [("a", "b", 0.2, False)],
    aten.elu.default: [("a",), ("a", 1.5, 1.1, 0.9)],
    aten.elu_backward.default: [("a", 1.5, 1.1, 0.9, False, "f"), ("a", 1.5, 1.1, 1, True, "f")],
    aten.gelu.default: [("f",)],
    aten.celu.default: [("a", 1.3)],
    aten.gelu_backward.default: [("a", "b")],
    aten.softplus.default: [("a",), ("a", 2, 10)],
    aten.softplus_backward.default: [("a", "b", 2, 10)],
    log_sigmoid_backward: [("a", "b")],
    aten.hardtanh.default: [("a",), ("a", -0.5, 2)],
    aten.hardtanh_backward.default: [("a", "f", -0.5, 2)],
    aten.hardsigmoid_backward.default: [("a", "f")],
    aten.hardswish_backward.default: [("a", "f")],
    aten.clamp.default: [("a", -0.5, 0.5), ("a", None, 0.5), ("a", -0.5)],
    aten.clamp_min.default: [("a", -0.5)],
    aten.clamp_max.default: [("a", -0.5)],
    aten.maximum.default: [("a", "b")],
    aten.minimum.default: [("a", "b")],
    aten.where.self: [("m", "a", "b")],
    aten.masked_fill.Scalar: [("a", "m", 0.5), ("a", "m", -torch.inf)],
    aten.masked_fill.Tensor: [("a", "m", torch.tensor(2.0))],
    **{getattr(aten, name).Tensor: [("a", "b")] for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    **{getattr(aten, name).Scalar: [("a", 0.3)] for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    **{op: [("m", "n")] for op in (aten.logical_and.default, aten.logical_or.default)},
    **{op: [("m", "n")] for op in (aten.bitwise_and.Tensor, aten.bitwise_or.Tensor)},
    **{op: [("m",)] for op in (aten.logical_not.default, aten.bitwise_not.default)},
}
EVERY = [(op, arguments) for op in formulas.FORMULAS for arguments in CALLS.get(op, [("a",)])]
NAMES = [f"{getattr(op, '__name__', op)} {' '.join(map(str, arguments))}" for op, arguments in EVERY]


def operand(letter: str, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(ord(letter))
    drawn = torch.cat([torch.randn(800 - 2 * len(ODD), generator=generator) * 4, torch.tensor(ODD + ODD)])
    rows = drawn[torch.randperm(800, generator=generator)].view(200, 4).to(dtype)
    if letter == "f":
        return rows.nan_to_num(1.5, 2.5, -2.5)
    return rows > 0 if letter in "mn" else rows.abs() + 1e-3 if letter == "p" else rows


def call(
    op: Any, arguments: tuple[Any, ...], dtype: torch.dtype, **kwargs: Any
) -> tuple[Value, list[Value], list[Tensor], Tensor]:
    """An operation on the tape, its operands, their rows, and what torch computes."""
    tensors = {letter: operand(letter, dtype) for letter in arguments if isinstance(letter, str)}
    values = {letter: Value(letter, None, (), {}, SHAPE, rows.dtype) for letter, rows in tensors.items()}
    args, given = list[Any](), list[Any]()
    for argument in arguments:
        constant = isinstance(argument, Tensor)
        args.append(
            values[argument]
            if isinstance(argument, str)
            else Value("k", None, (), {}, (), dtype, argument)
            if constant
            else argument
        )
        given.append(tensors[argument] if isinstance(argument, str) else argument.to(dtype) if constant else argument)
    expected = op(*given, **kwargs)
    return Value("out", op, tuple(args), kwargs, SHAPE, expected.dtype), list(values.values()), list(tensors.values()), expected


def assert_same(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    if expected.dtype is torch.bool:
        assert torch.equal(found != 0, expected)
        return
    tolerance = 1e-12 if dtype is torch.float64 else 1e-5
    assert torch.equal(found.isnan(), expected.isnan()), "NaN at the same places"
    finite = expected.isfinite()
    assert torch.equal(found[~finite & ~expected.isnan()], expected[~finite & ~expected.isnan()])
    close = (found - expected)[finite].abs() <= tolerance * expected[finite].abs().clamp(min=1.0)
    assert bool(close.all()), (found - expected)[finite].abs().max()


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("op", "arguments"), EVERY, ids=NAMES)
def test_in_c(op: Any, arguments: tuple[Any, ...], dtype: torch.dtype) -> None:
    value, values, tensors, expected = call(op, arguments, dtype)
    if not in_c.has_formula(value) or any(rows.dtype is not dtype for rows in tensors):
        pytest.skip("C has no such formula")
    pointers = "".join(f", const real *{one.name}" for one in values)
    text = in_c.pointwise(value, lambda one: f"{one.name}[i]")
    source = (
        f"{in_c.PRELUDE[dtype]}\nvoid all(long n, real *out{pointers}) {{ for (long i = 0; i < n; i++) out[i] = {text}; }}\n"
    )
    function, out = build(str(compiler()), source).all, torch.empty_like(expected)
    function(ctypes.c_long(out.numel()), *(ctypes.c_void_p(rows.data_ptr()) for rows in (out, *tensors)))
    assert_same(out, expected, dtype)


@pytest.mark.skipif(not (has_triton() and interpreted()), reason="kernels are not interpreted here")
@pytest.mark.filterwarnings("ignore:(invalid|divide|overflow|underflow):RuntimeWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("op", "arguments"), EVERY, ids=NAMES)
def test_in_triton(op: Any, arguments: tuple[Any, ...], dtype: torch.dtype) -> None:
    value, values, tensors, expected = call(op, arguments, dtype)
    assert kernels_have(value)
    out = torch.empty_like(expected)
    fused([value], values, [value]).go(out.shape[0], *tensors, out)
    assert_same(out, expected, dtype)


def test_gelu_by_tanh_and_sums_with_a_factor_have_formulas_too() -> None:
    for op, arguments, kwargs in [
        (aten.gelu.default, ("a",), {"approximate": "tanh"}),
        (aten.gelu_backward.default, ("a", "b"), {"approximate": "tanh"}),
        (aten.add.Tensor, ("a", "b"), {"alpha": 3}),
        (aten.rsub.Scalar, ("a", 0.3, 2), {}),
    ]:
        assert kernels_have(call(op, arguments, torch.float64, **kwargs)[0])


def test_what_has_no_formula_in_this_form_has_none() -> None:
    a, numbers = Value("a", None, (), {}, SHAPE, torch.float32), Value("i", None, (), {}, SHAPE, torch.int64)
    for value in (
        Value("out", aten.pow.Scalar, (-2.0, a), {}, SHAPE, torch.float32),
        Value("out", aten.div.Tensor, (a, a), {"rounding_mode": "floor"}, SHAPE, torch.float32),
        Value("out", aten.bitwise_and.Tensor, (numbers, numbers), {}, SHAPE, torch.int64),
        Value("out", aten.masked_fill.Scalar, (a, a, torch.nan), {}, SHAPE, torch.float32),
    ):
        assert formulas.formula(value, lambda one: one.name) is None


@pytest.mark.parametrize("power", [9, 10, -9, torch.inf])
def test_other_powers_are_left_to_torch(power: float) -> None:
    """The logarithm of a negative number is none, but its whole powers are numbers."""
    value = Value("y", aten.pow.Tensor_Scalar, (Value("x", None, shape=SHAPE, dtype=torch.float64), power), {}, SHAPE)
    assert not in_c.has_formula(value)


def test_one_to_any_power_is_left_to_torch() -> None:
    value = Value("y", aten.pow.Scalar, (1.0, Value("x", None, shape=SHAPE, dtype=torch.float64)), {}, SHAPE)
    assert not in_c.has_formula(value)


def test_the_buffer_of_logsigmoid_is_not_read_whatever_its_size() -> None:
    """On a GPU it is empty, and has no rows."""
    g, x = (Value(name, None, (), {}, SHAPE, torch.float32) for name in "gx")
    both = Value("both", aten.log_sigmoid_forward.default, (x,))
    y, buffer = (Value(f"y{i}", operator.getitem, (both, i), {}, shape, torch.float32) for i, shape in enumerate((SHAPE, (0,))))
    back = Value("back", aten.log_sigmoid_backward.default, (g, x, buffer), {}, SHAPE, torch.float32)
    without_buffers(Tape({("g",): g, ("x",): x}, [both, y, buffer, back], {("y",): y, ("back",): back}))
    assert (y.args, back.args) == ((x,), (g, x))
