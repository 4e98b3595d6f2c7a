"""Random numbers inside `map` over children: every edge draws its own.

There edges are the rows of one vmap and vertices those of another around it. Drawing under both would draw a number for every
edge of every vertex, though an edge has but one; so what draws runs outside of both, once, on the rows of all edges.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.utils._pytree import tree_leaves, tree_map_only

from weft.graph.lowering import LOWERINGS, CellMode

_functorch = torch._C._functorch

_BY_NUMBER = frozenset(
    "dropout alpha_dropout bernoulli poisson normal rand_like randn_like randint_like multinomial "
    "uniform_ normal_ exponential_ bernoulli_ geometric_ log_normal_ cauchy_ random_".split()
)
"""Functions that draw for each number, or each row, of what they are given: one more dimension makes no difference."""
_BY_SIZE = {"rand": 0, "randn": 0, "randint": 1, "normal": 2}
"""Functions that draw as many numbers as they are told, and how many other numbers come before the size; at least so many."""
_MADE_OF_THESE = frozenset({"gumbel_softmax", "randperm"})


class EdgeMode(CellMode):
    """The mode of code that runs for one edge: `level` is the vmap over edges, `around` the one over vertices."""

    def __init__(self, stand_in: Callable[[Tensor], Tensor], level: int, around: int, edges: int) -> None:
        super().__init__(stand_in)
        self.level, self.around, self.edges = level, around, edges
        self.taking_apart = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in _MADE_OF_THESE and not self.taking_apart:
            return self._taken_apart(name, func, args, kwargs)
        draws = name in _BY_NUMBER or name in _BY_SIZE
        if not draws or _functorch.get_dynamic_layer_stack_depth() != self.level or self.around != self.level - 1:
            return super().__torch_function__(func, types, args, kwargs)
        if not any(isinstance(leaf, Tensor) for leaf in tree_leaves((args, kwargs))):
            args, kwargs = self._sized(name, args, kwargs)
        into = args[0] if "dropout" in name and _arguments(args, kwargs).get("inplace") else None
        args, kwargs = tree_map_only(Tensor, lambda tensor: self._all_edges(self.stand_in(tensor)), (args, kwargs))
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(temporarily_pop_interpreter_stack())
            drawn = func(*args, **kwargs) if into is None else func(**{**_arguments(args, kwargs), "inplace": False})
        drawn = _functorch._add_batch_dim(drawn, 0, self.level)
        return drawn if into is None else into.copy_(drawn)

    def _taken_apart(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """A function that draws by way of others, which this mode is to see."""
        self.taking_apart = True
        try:
            with self:
                return LOWERINGS[name](func, *args, **kwargs)
        finally:
            self.taking_apart = False

    def _all_edges(self, tensor: Tensor) -> Tensor:
        """The rows of all edges; what is the same for all of them is repeated, so that each draws for itself."""
        if _functorch.is_batchedtensor(tensor) and _functorch.maybe_get_level(tensor) == self.level:
            return _functorch._remove_batch_dim(tensor, self.level, self.edges, 0)
        return tensor.expand(self.edges, *tensor.shape)

    def _sized(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """With the number of edges before the size."""
        if "size" in kwargs:
            return args, {**kwargs, "size": (self.edges, *kwargs["size"])}
        before = _BY_SIZE.get(name, 0)
        while name == "randint" and before < len(args) and isinstance(args[before], int):
            before += 1
        size = args[before:]
        size = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        return (*args[:before], (self.edges, *size)), kwargs


def _arguments(args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of `torch.nn.functional.dropout` and its like by name."""
    return {**dict(zip(("input", "p", "training", "inplace"), args, strict=False)), **kwargs}
