"""Writing into values: the value stands for the new tensor from then on; nothing else changes.

A tensor shares memory with its views; values do not. So writing into a view of a value, and reading a view of a value that was
written into later, raise an error and are never silently different from PyTorch.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch
from torch import Tensor

from weft.errors import TraceError
from weft.lazy.calls import record
from weft.lazy.tape import Tape
from weft.lazy.value import Value


def record_inplace(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    """Record an in-place function as a function; its first argument becomes the result."""
    if tape.ended is not None:
        return record(tape, func, args, kwargs, frame)
    target, name = args[0], str(getattr(func, "__name__", func))
    if target.__class__ is not Value:
        raise TraceError(f"{name}: a constant, or a stack of a list, cannot be written into; use .clone() first")
    tape.views.update(tape)
    if target._ref in tape.views.bases:
        raise TraceError(
            f"{name}: this Value is a view of another (an index, slice or reshape of it), which would not change with it; "
            "write into the whole, as in v[i] = ..., or use .clone() first"
        )
    if target._ref in tape.views.of_model:
        raise TraceError(
            f"{name}: this Value is a view (an index, slice or reshape) of a tensor of the model, which would stay unchanged; "
            "use .clone() first, or collect the values in a list and use torch.stack"
        )
    found = record(tape, _writing(func), args, kwargs, frame)
    if found._kind is not target._kind:
        raise TraceError(f"{name}: the result is {found._kind}, which cannot be written into a Value of {target._kind}")
    if target._ref in tape.views.viewed:
        tape.overwritten.add(target._ref)
        if not tape.watchful:
            tape.watchful = True
            tape.set_context()
    target._ref = found._ref
    if tape.values is not None:
        tape.values.append(target)
    return target


DRAWING = ("normal_", "uniform_", "bernoulli_", "random_", "exponential_", "cauchy_", "geometric_")
"""How the names of functions end that draw random numbers into a tensor."""

_written: dict[Any, Any] = {}


def _writing(func: Any) -> Any:
    """The in-place function as one that returns what it has written into."""
    found = _written.get(func)
    if found is None:
        is_drawing = getattr(func, "__name__", "").endswith(DRAWING)

        def write(target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            target = _drawn_apart(target) if is_drawing else _own(target, (*args, *kwargs.values()))
            func(target, *args, **kwargs)
            return target

        write.__name__ = getattr(func, "__name__", "write")
        found = _written.setdefault(func, write)
    return found


def _drawn_apart(target: Tensor) -> Tensor:
    """A tensor that every row has for itself, so that every row draws its own numbers into it."""
    return torch.rand_like(target) if target.is_floating_point() else torch.randint_like(target, 2)


def _own(target: Tensor, others: tuple[Any, ...]) -> Tensor:
    """A copy to write into; one per row where what is written differs from row to row while the target does not."""
    for other in others:
        if isinstance(other, Tensor) and _is_batched(other) and not _is_batched(target) and other.numel():
            everywhere = torch.ones_like(other.detach().reshape(-1)[0], dtype=torch.bool)
            return torch.where(everywhere, target, target)
    return target.clone()


_is_batched = torch._C._functorch.is_batchedtensor
