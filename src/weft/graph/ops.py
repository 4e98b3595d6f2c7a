"""What weft knows of single tensor operations: which are views, which draw random numbers, how each is best called."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

RESHAPES = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.alias.default,
        aten.detach.default,
    }
)
"""Views that only regroup dimensions: a chain of them is one reshape."""

TUPLE_VIEWS = frozenset({aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int})

VIEWS = (
    RESHAPES
    | TUPLE_VIEWS
    | {
        aten.t.default,
        aten.transpose.int,
        aten.permute.default,
        aten.expand.default,
        aten.select.int,
        aten.slice.Tensor,
        aten.diagonal.default,
        aten.movedim.int,
        aten.unfold.default,
    }
)

COUNTING = frozenset({aten.arange.default, aten.arange.start, aten.arange.start_step})
"""Operations that number rows."""

RANDOM_NAMES = frozenset(
    "bernoulli bernoulli_p rand rand_like randn randn_like randint randint_like randperm native_dropout normal multinomial "
    "poisson uniform exponential geometric log_normal cauchy random rrelu_with_noise binomial _standard_gamma".split()
)

PRODUCTS = frozenset("mm addmm bmm baddbmm matmul linear mv addmv dot convolution convolution_backward".split())


def is_product(target: Any) -> bool:
    """Whether an operation multiplies matrices or vectors."""
    return getattr(getattr(target, "overloadpacket", target), "__name__", "") in PRODUCTS


# Backward operations that return row gradients together with parameter gradients, and where their `output_mask` is:
# the row gradient is computed level by level, the others once over all rows.
MASKED_BACKWARDS: dict[Callable[..., Any], int] = {
    aten.native_layer_norm_backward.default: 7,
    aten.native_group_norm_backward.default: 9,
    aten.convolution_backward.default: 10,
}


class Operation:
    """A call that is told how many rows it has and which call it belongs to; generated code knows it by `in_context`.

    Some are told, too, of which of the tensors in their first argument a gradient is wanted.
    """

    in_context = True

    def __init__(self, function: Callable[..., Any], told_who_learns: bool = False) -> None:
        self.function, self.told_who_learns = function, told_who_learns

    def __call__(self, *args: Any, **context: Any) -> Any:
        return self.function(*args, **context)


def slice_bound(index: int, size: int) -> int:
    """A slice's start or stop as a place between 0 and `size`, as Python understands it.

    >>> slice_bound(-2, 5), slice_bound(9, 5), slice_bound(-9, 5)
    (3, 5, 0)
    """
    return max(index + size, 0) if index < 0 else min(index, size)


def is_view(target: Callable[..., Any] | None) -> bool:
    return target in VIEWS


def is_random(target: Callable[..., Any] | None) -> bool:
    if getattr(target, "in_context", False):
        return True
    packet = getattr(target, "overloadpacket", None)
    return packet is not None and packet.__name__ in RANDOM_NAMES


def is_getitem(target: Callable[..., Any] | None) -> bool:
    return target is operator.getitem


# Calling torch.mul costs about a microsecond less than torch.ops.aten.mul.Tensor; both run the same kernel.
_FAST = (
    "mm addmm bmm baddbmm mul add sub div neg sigmoid tanh relu exp log sqrt rsqrt abs sign cos sin erf pow maximum minimum "
    "index_select cat stack where clamp clamp_min t transpose permute reshape unsqueeze squeeze select split sum mean amax "
    "eq ne lt le gt ge logical_and logical_or logical_not bitwise_and square reciprocal expm1 log1p softplus "
    "index_add gather cumsum zeros_like ones_like full_like rsub addcmul addcdiv floor_divide remainder".split()
)
_NOT_SAME = {"rsub", "softplus", "split", "mean", "squeeze"}

FAST_CALLS: dict[Callable[..., Any], str] = {
    overload: f"torch.{name}"
    for name in _FAST
    if name not in _NOT_SAME and hasattr(torch, name)
    for overload in (getattr(getattr(aten, name), o) for o in getattr(aten, name).overloads())
    if not overload._schema.is_mutable and "out" not in overload._overloadname and "_mode" not in overload._overloadname
}

OUT_CALLS = frozenset(
    overload
    for name in (
        "mm addmm bmm baddbmm mul add sub div neg sigmoid tanh exp log sqrt rsqrt abs sign cos sin erf maximum minimum "
        "index_select cat stack square reciprocal expm1 log1p addcmul".split()
    )
    for overload in (getattr(getattr(aten, name), o) for o in getattr(aten, name).overloads())
    if overload in FAST_CALLS
)
"""Operations that can write straight into a given tensor with `out=`."""

OUT_NAMES: dict[Callable[..., Any], tuple[str, str]] = {
    aten.sigmoid_backward.default: ("sigmoid_backward.grad_input", "grad_input"),
    aten.tanh_backward.default: ("tanh_backward.grad_input", "grad_input"),
}
"""Operations whose `out=` form has another name: the overload to call and its keyword."""

POINTWISE = frozenset(
    overload
    for name in "add sub mul div addcmul sigmoid tanh exp neg".split()
    for overload in (getattr(getattr(aten, name), o) for o in getattr(aten, name).overloads())
    if overload in OUT_CALLS
) | frozenset(OUT_NAMES)
"""Operations whose result may overwrite one of their operands."""

FRESH = POINTWISE | OUT_CALLS | {aten.mm.default, aten.bmm.default}
"""Operations whose result is new, contiguous memory of its own."""
