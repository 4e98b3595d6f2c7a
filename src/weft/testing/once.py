"""One differentiated run of a function: its outputs, and the gradients of everything that can have one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, keystr, tree_flatten_with_path, tree_map_only

from weft.graph.capture import Surroundings, fetch


@dataclass(frozen=True, eq=False)
class Other:
    """An object in a result that is neither a tensor nor a number."""

    value: Any


@dataclass(frozen=True)
class Outcome:
    """What a run gave: named output leaves, and gradients (None: not connected) by the name of the tensor."""

    tree: TreeSpec
    leaves: dict[str, Tensor]
    gradients: dict[str, Tensor | None]
    is_random: bool
    others: dict[str, Any]
    """What is neither a tensor nor a number."""


@dataclass(frozen=True)
class Subject:
    """A function, what it is called with, and the outside tensors whose gradients are compared."""

    function: Any
    inputs: Sequence[Any]
    keywords: Mapping[str, Any]
    outside: dict[str, Tensor]

    @staticmethod
    def of(function: Any, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> Subject:
        return Subject(function, inputs, keywords, outside_tensors(function))


def outside_tensors(function: Any) -> dict[str, Tensor]:
    """Parameters and captured tensors that require gradients, by a name to show."""
    found: dict[str, Tensor] = {}
    if isinstance(function, nn.Module):
        found = {f"parameter {name!r}": p for name, p in function.named_parameters() if p.requires_grad}
    known = {id(tensor) for tensor in found.values()}
    for place in Surroundings().add(function).tensors:
        tensor = fetch(place)
        if isinstance(tensor, Tensor) and tensor.requires_grad and id(tensor) not in known:
            known.add(id(tensor))
            name = f"captured tensor {place[1]!r}" if place[1] != "" else f"closure tensor {len(found)}"
            found[f"{name} of shape {list(tensor.shape)}"] = tensor
    return found


def run_once(subject: Subject, seed: int, options: Mapping[str, Any]) -> Outcome:
    """Run forward and backward with the random state and the cotangent that belong to `seed`."""
    variables = dict(subject.outside)
    torch.manual_seed(seed)

    def copied(path: str, tensor: Tensor) -> Tensor:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor.clone()
        leaf = variables[f"input {path}"] = tensor.detach().clone().requires_grad_()
        return leaf.clone()

    inputs = [_named_map(copied, given, str(i)) for i, given in enumerate(subject.inputs)]
    keywords = {name: _named_map(copied, given, name) for name, given in subject.keywords.items()}
    before = _random_state()
    result = subject.function(*inputs, **keywords, **options)
    is_random = any(not torch.equal(a, b) for a, b in zip(before, _random_state(), strict=True))
    flat, tree = tree_flatten_with_path(result)
    leaves = {f"output{keystr(path)}": leaf for path, leaf in flat}
    others = {name: leaf.value for name, leaf in leaves.items() if isinstance(leaf, Other)}
    leaves = {name: leaf for name, leaf in leaves.items() if name not in others}
    plain = {name: leaf.detach() for name, leaf in leaves.items()}
    return Outcome(tree, plain, _gradients(leaves, variables, seed), is_random, others)


def _named_map(copied: Any, nest: Any, start: str) -> Any:
    if isinstance(nest, Tensor):
        return copied(start, nest)
    flat, _ = tree_flatten_with_path(nest)
    names = iter([f"{start}{keystr(path)}" for path, leaf in flat if isinstance(leaf, Tensor)])
    return tree_map_only(Tensor, lambda tensor: copied(next(names), tensor), nest)


def _gradients(leaves: Mapping[str, Tensor], variables: Mapping[str, Tensor], seed: int) -> dict[str, Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    outputs, cotangents = [], []
    for leaf in leaves.values():
        if leaf.is_floating_point() or leaf.is_complex():
            wide = torch.complex128 if leaf.is_complex() else torch.float64
            # Drawn for all, so that all runs agree.
            cotangent = torch.randn(leaf.shape, generator=generator, dtype=wide, device="cpu")
            if leaf.requires_grad:
                outputs.append(leaf)
                cotangents.append(cotangent.to(leaf.device, leaf.dtype))
    if not outputs or not variables:
        return dict.fromkeys(variables)
    found = torch.autograd.grad(outputs, list(variables.values()), cotangents, allow_unused=True)
    return dict(zip(variables, found, strict=True))


def _random_state() -> list[Tensor]:
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() and torch.cuda.is_initialized() else ()
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
