"""Per-example functions as something to compare: batched with any options, or one example after the other in plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.lazy.arguments import split
from weft.lazy.batched import Batched
from weft.lazy.entry import batched
from weft.lazy.nests import Structure, build, flatten
from weft.lazy.netmodule import BatchedModule
from weft.lazy.results import Outcome, joined
from weft.testing.once import Other


class PerExample:
    """A function of one example: called with `backend="reference"` it is a loop, else it is `weft.batched`."""

    def __init__(self, fn: Any) -> None:
        fn = getattr(fn, "one_example", fn)  # what a compiled block is compiled from
        given = fn.inner if isinstance(fn, BatchedModule) else fn
        self.settings = given.settings() if isinstance(given, Batched) else {}
        self.fn = given.fn if isinstance(given, Batched) else fn

    def __call__(self, *inputs: Any, backend: str, **options: Any) -> Any:
        if backend != "reference":
            return _tensors(batched(self.fn, **{**self.settings, **options, "backend": backend})(*inputs))
        count, items = split(inputs, self.settings.get("in_dims"))
        results = [self.fn(*(item(i) for item in items)) for i in range(count)]
        if not self.settings.get("stack", True):
            return _tensors(results)
        return _tensors(joined([Outcome.of(result) for result in results], torch.stack, "cpu"))


def _tensors(nest: Any) -> Any:
    """Numbers as tensors, other objects marked as such: what can be compared."""
    leaves: list[Any] = []
    structure = flatten(nest, leaves)
    return build(_without_classes(structure), iter([_tensor(leaf) for leaf in leaves]))


def _without_classes(structure: Structure) -> Structure:
    """Dataclasses as dictionaries, which everybody can take apart."""
    if structure is None:
        return None
    cls, names, *inner = structure
    is_dataclass = names is not None and not issubclass(cls, dict)
    return (dict if is_dataclass else cls, names, *[_without_classes(part) for part in inner])


def _tensor(leaf: Any) -> Tensor | Other:
    if isinstance(leaf, Tensor):
        return leaf
    return torch.tensor(leaf) if isinstance(leaf, bool | int | float) else Other(leaf)
