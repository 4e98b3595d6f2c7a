"""Comparing what two engines computed; every difference is a sentence that says where and how much."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.testing.once import Outcome

TOLERANCE = {
    torch.float64: 1e-12,
    torch.complex128: 1e-12,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
    torch.bfloat16: 4e-2,
    torch.float16: 4e-3,
}


def check_leaves(where: str, got: Outcome, expected: Outcome, tolerance: float | None) -> None:
    for name, leaf in got.leaves.items():
        check_tensor(f"{where}: {name}", leaf, expected.leaves[name], tolerance)


def check_others(where: str, got: Outcome, expected: Outcome) -> None:
    """Objects that are neither tensors nor numbers are equal, or at least of one class where being equal says nothing."""
    for name in {**expected.others, **got.others}:
        if name not in got.others or name not in expected.others:
            raise AssertionError(f"{where}: {name}: {_shown(got, name)}, one by one {_shown(expected, name)}")
        one, other = got.others[name], expected.others[name]
        if not _is_same(one, other):
            raise AssertionError(f"{where}: {name}: {_shown(got, name)}, one by one {_shown(expected, name)}")


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if not any("__eq__" in vars(cls) for cls in type(one).__mro__[:-1]):
        return True  # made anew by every run
    try:
        return bool(one == other) or bool(one != one and other != other)
    except Exception:  # an array of numpy does not say yes or no
        return repr(one) == repr(other)


def _shown(outcome: Outcome, name: str) -> str:
    return repr(outcome.others[name])[:100] if name in outcome.others else "a tensor"


def check_gradient(what: str, got: Tensor | None, expected: Tensor | None, tolerance: float | None) -> None:
    if got is not None and expected is not None:
        check_tensor(what, got, expected, tolerance)
    elif _is_something(got):
        raise AssertionError(f"{what}: {_largest(got)}, but None one by one")
    elif _is_something(expected):
        raise AssertionError(f"{what}: None, but one by one {_largest(expected)}")


def _is_something(gradient: Tensor | None) -> bool:
    return gradient is not None and bool((gradient != 0).any())


def _largest(gradient: Tensor | None) -> str:
    return f"its largest entry is {0.0 if gradient is None else gradient.abs().max().item():.3g}"


def check_tensor(what: str, got: Tensor, expected: Tensor, tolerance: float | None = None) -> None:
    """Equal up to rounding, in the norm of the largest entry; other dtypes exactly."""
    _check_kind(what, got, expected)
    if got.shape != expected.shape:
        raise AssertionError(f"{what}: shape {list(got.shape)}, one by one {list(expected.shape)}")
    if not expected.numel():
        return
    expected = expected.to(got.device)  # one by one, numbers that code returns are nowhere else than here
    if expected.dtype not in TOLERANCE:
        if not torch.equal(got, expected):
            at = _place(got != expected)
            raise AssertionError(f"{what}: {got[at].item()} at {list(at)}, one by one {expected[at].item()}")
        return
    for kind, test in (("NaN", torch.isnan), ("infinity", torch.isinf)):
        odd = test(got) != test(expected)
        if bool(odd.any()):
            at = _place(odd)
            raise AssertionError(
                f"{what}: {kind} at other places: {got[at].item()} at {list(at)}, one by one {expected[at].item()}"
            )
    finite = torch.isfinite(expected)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    difference = torch.where(finite, got.to(wide) - expected.to(wide), 0).abs()
    signs = torch.isinf(expected) & (got != expected)
    size = torch.where(finite, expected.to(wide), 0).abs().max().item()
    allowed = (_tolerance(expected.dtype, got) if tolerance is None else tolerance) * max(1.0, size)
    if difference.max().item() > allowed or bool(signs.any()):
        at = _place(signs) if bool(signs.any()) else _place(difference == difference.max())
        raise AssertionError(
            f"{what}: the largest difference is {difference.max().item():.3g} at {list(at)} ({got[at].item():.6g}, one by one "
            f"{expected[at].item():.6g}); allowed is {allowed:.3g}"
        )


def check_repeats(where: str, first: Outcome, second: Outcome) -> None:
    """The same seed and the same call give the same bits."""
    again = {**second.leaves, **{f"gradient of {name}": g for name, g in second.gradients.items()}}
    for name, tensor in {**first.leaves, **{f"gradient of {name}": g for name, g in first.gradients.items()}}.items():
        other = again[name]
        if tensor is None or other is None or not torch.equal(tensor.nan_to_num(), other.nan_to_num()):
            if tensor is other:
                continue
            raise AssertionError(f"{where}: {name}: the same seed and call gave other numbers the second time")


def check_alike(where: str, got: Outcome, expected: Outcome) -> None:
    """What must agree even where numbers are random."""
    for name, leaf in got.leaves.items():
        other = expected.leaves[name]
        _check_kind(f"{where}: {name}", leaf, other)
        if leaf.shape != other.shape:
            raise AssertionError(f"{where}: {name}: shape {list(leaf.shape)}, one by one {list(other.shape)}")
        if bool(torch.isfinite(other).all()) and not bool(torch.isfinite(leaf).all()):
            raise AssertionError(f"{where}: {name}: not finite, one by one it is")
    for name, gradient in got.gradients.items():
        other_gradient = expected.gradients[name]
        if other_gradient is None and _is_something(gradient):
            raise AssertionError(f"{where}: gradient of {name}: a tensor where it is None one by one")
        if gradient is not None and not bool(torch.isfinite(gradient).all()):
            raise AssertionError(f"{where}: gradient of {name}: not finite")


def _check_kind(what: str, got: Tensor, expected: Tensor) -> None:
    if got.dtype != expected.dtype:
        raise AssertionError(f"{what}: {got.dtype}, one by one {expected.dtype}")


def _tolerance(dtype: torch.dtype, tensor: Tensor) -> float:
    """Under autocast the numbers are as rough as the dtype it casts to."""
    kind = tensor.device.type
    if torch.is_autocast_enabled(kind):
        return max(TOLERANCE[dtype], TOLERANCE.get(torch.get_autocast_dtype(kind), 0.0))
    return TOLERANCE[dtype]


def _place(found: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in found.nonzero()[0])
