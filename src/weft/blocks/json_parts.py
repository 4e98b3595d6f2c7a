"""Blocks and layers of which `Json` is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.blocks.block import Block
from weft.blocks.compose import literal
from weft.blocks.emit import Emitter, Value
from weft.blocks.inference import set_type
from weft.blocks.kinds import tensor_leaves
from weft.blocks.leaves import InputTransform
from weft.blocks.types import PyObjectType
from weft.errors import WeftError

FIRST_GATE = 0.3


class FieldOf(Block):
    """A field of a record, None where it is missing."""

    _input_classes = _output_classes = (PyObjectType,)

    def __init__(self, key: Any, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self._key = key
        set_type(self, "input", PyObjectType())
        set_type(self, "output", PyObjectType())

    def _emit(self, e: Emitter, x: Value) -> Value:
        key = literal(e, self._key)
        return e.let(f"{x}.get({key})", f"({x.place}, {key})")


class Read(InputTransform):
    """A Python function that says in the user's words what it cannot read."""

    def __init__(self, py_fn: Callable[[Any], Any], *, name: str | None = None) -> None:
        super().__init__(py_fn, name=name)

    def _explain(self, error: Exception, value: Any) -> Exception | None:
        return error if isinstance(error, WeftError) else None


class GatedLayer(nn.Module):
    """The parts of a record side by side, each multiplied by a gate of its own; a product; tanh; dropout.

    With L2 regularisation a product of weights is penalised by its size, not by its square (Hoff, "Lasso, fractional norm and
    structured sparse estimation using a Hadamard product parametrization", 2017): parts that do not help are turned off as
    wholes. Gates begin small, so that what helps opens them.
    """

    part_of: Tensor
    """The part to which each number belongs."""

    def __init__(self, sizes: Sequence[int], dim: int, keep_prob: float | None) -> None:
        super().__init__()
        reach = sum(sizes) ** -0.5
        self.gates = nn.Parameter(torch.full((len(sizes),), FIRST_GATE))
        self.weight = nn.Parameter(torch.empty(dim, sum(sizes)).uniform_(-reach, reach))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("part_of", torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)), persistent=False)
        self.keep_prob = keep_prob

    def forward(self, *parts: Any) -> Tensor:
        made = torch.tanh(F.linear(side_by_side(*parts) * self.gates[self.part_of], self.weight, self.bias))
        return made if self.keep_prob is None else F.dropout(made, 1 - self.keep_prob, self.training)

    def extra_repr(self) -> str:
        return f"{len(self.gates)} parts, {len(self.bias)}"


def side_by_side(*parts: Any) -> Tensor:
    """Tensors in nested tuples as one vector."""
    return torch.cat([part.reshape(-1) for part in tensor_leaves(parts)])
