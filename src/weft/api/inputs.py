"""Checks on what a call was given, before anything is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path

from weft.errors import MissingKey, ShapeError, StructureError, TraceError, TypeMismatch
from weft.graph.program import Ints
from weft.graph.rows import TensorSpec
from weft.graph.stored import as_stored, is_as_stored
from weft.graph.transforms import stands_for_others


def rows(nest: Any, count: int, what: str, of_what: str) -> list[Tensor]:
    """The leaves of a nest of tensors with `count` rows each."""
    if nest is None:
        return []
    leaves = [nest] if isinstance(nest, Tensor) else tree_flatten(nest)[0]
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor):
            came = type(leaf).__name__
            raise TypeMismatch(f"{what}{place(nest, number)}: expected a tensor or a nest of tensors, got {came}")
        if leaf.layout is not torch.strided or leaf.is_nested:
            came = "a nested tensor" if leaf.is_nested else f"one of layout {leaf.layout}"
            raise TypeMismatch(f"{what}{place(nest, number)}: expected a dense tensor, got {came}")
        if leaf.dim() == 0 or leaf.shape[0] != count:
            came = "a 0-d tensor" if leaf.dim() == 0 else f"{leaf.shape[0]} rows"
            rows = f"{count} rows, one for each of the graph's {of_what}"
            raise ShapeError(f"{what}{place(nest, number)}: expected {rows}, got {came}")
    return [leaf if is_as_stored(leaf) else as_stored(leaf) for leaf in leaves]


def no_transforms(name: str, model: nn.Module, tensors: Iterable[Tensor]) -> None:
    """A batched call is one step to autograd; what looks at single operations would miss what it computes."""
    active = stands_for_others()
    if not active and forward_ad._current_level >= 0:
        everything = [*tensors, *model.parameters(), *model.buffers()]
        active = any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in everything)
    if active:
        raise TraceError(
            f"{name}: a batched call cannot be inside torch.func transforms, tracing or forward-mode differentiation; "
            "use backend='reference' there"
        )


def place(nest: Any, number: int) -> str:
    """Where in a nest a leaf is, as one would write it."""
    return keystr(tree_flatten_with_path(nest)[0][number][0])


def leading(model: nn.Module) -> tuple[list[nn.Parameter], torch.dtype | None]:
    """The first parameter, if there is one, and the type of the first that holds floating-point numbers.

    In torch's order; torch itself takes long to find the first one.
    """
    first: list[nn.Parameter] = []
    modules: list[nn.Module | None] = [model]
    while modules:
        module = modules.pop()
        if module is None:
            continue
        for parameter in module._parameters.values():
            if parameter is not None:
                first = first or [parameter]
                if parameter.is_floating_point():
                    return first, parameter.dtype
        if module._modules:
            modules += reversed(module._modules.values())
    return first, None


def one_device(name: str, first: Sequence[Tensor], tensors: Sequence[Tensor], wanted: torch.device | None) -> torch.device:
    """The one device that the first parameter, inputs and graph are on."""
    device, source = wanted, "the graph is"
    for number, tensor in enumerate([*first, *tensors]):
        where = "the parameters are" if number < len(first) else "the inputs are"
        if device is None:
            device, source = tensor.device, where
        elif tensor.device != device:
            raise ShapeError(
                f"{name}: all tensors of a call live on one device, but {source} on {device} and {where} on {tensor.device}"
            )
    return device or torch.get_default_device()


def first_float(leaves: Iterable[Tensor]) -> torch.dtype | None:
    return next((leaf.dtype for leaf in leaves if leaf.is_floating_point()), None)


def rounds(name: str, count: Any, init: Any) -> None:
    if count is None:
        if init is not None:
            raise StructureError(f"{name}: init= is the state before the first round; it needs rounds=")
        return
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise TypeMismatch(f"{name}: rounds: expected a positive integer, got {count!r}")
    if init is not None and not isinstance(init, Mapping):
        raise TypeMismatch(f"{name}: init: expected a mapping from state keys to tensors, got {type(init).__name__}")
    for key, tensor in (init or {}).items():
        if not isinstance(tensor, Tensor):
            raise TypeMismatch(f"{name}: init[{key!r}]: expected a tensor, got {type(tensor).__name__}")


def vertices(name: str, at: Any, n: int) -> Ints:
    """The vertices whose rows are wanted, as an array of their numbers."""
    numbers = at.detach().cpu().numpy() if isinstance(at, Tensor) else np.asarray(at)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise TypeMismatch(f"{name}: at: expected a list of vertex numbers, got {at!r}")
    if numbers.size and (numbers.min() < 0 or numbers.max() >= n):
        outside = numbers[(numbers < 0) | (numbers >= n)]
        raise StructureError(f"{name}: at: expected vertices 0 to {n - 1}, got {int(outside[0])}")
    return numbers.astype(np.int32)


def first_states(
    name: str, init: Mapping[str, Tensor] | None, state: tuple[tuple[str, TensorSpec], ...], n: int, device: torch.device
) -> dict[str, Tensor]:
    """The states of round 0: given ones checked, missing ones zeros."""
    known = dict(state)
    for key in init or {}:
        if key not in known:
            raise MissingKey(f"{name}: init: unknown state key {key!r}; the state has {', '.join(map(repr, known))}")
    found: dict[str, Tensor] = {}
    for key, spec in state:
        tensor = None if init is None else init.get(key)
        if tensor is None:
            tensor = torch.zeros((n, *spec.shape), dtype=spec.dtype, device=device)
        elif tuple(tensor.shape) != (n, *spec.shape) or tensor.dtype != spec.dtype:
            raise ShapeError(
                f"{name}: init[{key!r}]: expected {spec.dtype} of shape {[n, *spec.shape]}, got {tensor.dtype} of shape "
                f"{list(tensor.shape)}"
            )
        found[key] = tensor
    return found
