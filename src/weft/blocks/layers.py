"""Layers: modules that can be piped, some of which find their input sizes at the first call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.blocks.checks import check_callable, check_chance, check_count, check_name
from weft.blocks.faults import NotMade, WrongInput
from weft.errors import ShapeError, TypeMismatch

Initializer = Callable[[Tensor], Any]
SPREAD: dict[Any, float] = {F.relu: 1.43, torch.relu: 1.43, F.relu6: 1.43, torch.tanh: 1.15, F.tanh: 1.15, None: 1.0}
"""How far uniform initial weights reach, as a multiple of sqrt(3 / inputs), by activation."""


class Layer(nn.Module):
    """A module that can be piped with `>>`, and whose `name` its block takes over."""

    __array_ufunc__ = None

    def __init__(self, name: str | None) -> None:
        super().__init__()
        if name is not None:
            check_name(type(self).__name__, name)
        self.name = name

    def __rshift__(self, other: Any) -> Any:
        from weft.blocks.block import convert_to_block

        return convert_to_block(self) >> other

    def __rrshift__(self, other: Any) -> Any:
        from weft.blocks.block import convert_to_block

        return other >> convert_to_block(self)


class Growing(Layer):
    """A layer that makes its parameters when it sees its first input."""

    def __getattr__(self, name: str) -> Any:
        if self.__dict__.get("_parameters", {}).get(name, self) is None and name in self.__dict__["_missing"]:
            raise NotMade(f"{type(self).__name__}: {name}: made when the input size is known, at the first call")
        return super().__getattr__(name)

    def _promise(self, *names: str) -> None:
        self.__dict__["_missing"] = set(names)
        for name in names:
            self.register_parameter(name, None)

    def _keep(self, name: str, tensor: Tensor) -> None:
        self._parameters[name] = nn.Parameter(tensor)
        self.__dict__["_missing"].discard(name)

    @property
    def waits_for_input(self) -> bool:
        """Whether the parameters are still to be made."""
        return bool(self.__dict__["_missing"])


class FC(Growing):
    """A fully connected layer of a vector: dropout, product, normalisation, activation, dropout.

    Weights are `[in, out]`. With `weight_norm` their columns have length one and are multiplied with `scales`.

    >>> import weft.blocks as wb
    >>> (wb.Vector(3) >> wb.FC(2)).eval_one([1, 2, 3]).shape
    torch.Size([2])
    """

    def __init__(
        self,
        num_units_out: int,
        activation: Callable[[Tensor], Tensor] | None = F.relu,
        initializer: Initializer | None = None,
        input_keep_prob: float | None = None,
        output_keep_prob: float | None = None,
        normalization_fn: Callable[[Tensor], Tensor] | None = None,
        weight_norm: bool = False,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        check_count("FC", "num_units_out", num_units_out)
        functions = (("activation", activation), ("initializer", initializer), ("normalization_fn", normalization_fn))
        for what, function in functions:
            if function is not None:
                check_callable("FC", what, function)
        for what, chance in (("input_keep_prob", input_keep_prob), ("output_keep_prob", output_keep_prob)):
            check_chance("FC", what, chance)
        self.output_size = num_units_out
        self.activation, self.initializer, self.normalization_fn = activation, initializer, normalization_fn
        self.input_keep_prob, self.output_keep_prob, self.weight_norm = input_keep_prob, output_keep_prob, weight_norm
        self._promise("weights", "bias", *(["scales"] if weight_norm else []))

    def __getattr__(self, name: str) -> Any:
        if name == "scales" and name not in self.__dict__.get("_parameters", {}):
            raise NotMade("FC: scales: exist only with weight_norm=True")
        return super().__getattr__(name)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 1 or not x.is_floating_point():
            raise WrongInput(f"FC: expected a vector of floating point numbers, got {list(x.shape)} of {x.dtype}")
        if self.waits_for_input:
            self._create(x)
        elif x.shape[0] != self.weights.shape[0]:
            raise WrongInput(f"FC: expected a vector of {self.weights.shape[0]} numbers as at the first call, got {x.shape[0]}")
        if self.input_keep_prob is not None:
            x = F.dropout(x, 1 - self.input_keep_prob, self.training)
        weights = F.normalize(self.weights, dim=0) * self.scales if self.weight_norm else self.weights
        y = F.linear(x, weights.t(), self.bias)
        if self.activation is not None:
            y = y if self.normalization_fn is None else self.normalization_fn(y)
            y = self.activation(y)
        return y if self.output_keep_prob is None else F.dropout(y, 1 - self.output_keep_prob, self.training)

    def _create(self, x: Tensor) -> None:
        weights = x.new_empty(x.shape[0], self.output_size)
        activation = self.activation
        known = activation in SPREAD or isinstance(activation, nn.ReLU | nn.ReLU6 | nn.Tanh)
        with torch.no_grad():
            if self.initializer is not None:
                self.initializer(weights)
            elif known:
                factor = SPREAD.get(activation, 1.15 if isinstance(activation, nn.Tanh) else 1.43)
                reach = factor * math.sqrt(3 / max(1, x.shape[0]))
                weights.uniform_(-reach, reach)
            else:
                nn.init.trunc_normal_(weights, std=0.01, a=-0.02, b=0.02)
        self._keep("weights", weights)
        self._keep("bias", x.new_zeros(self.output_size))
        if self.weight_norm:
            self._keep("scales", x.new_ones(self.output_size))

    def extra_repr(self) -> str:
        return f"{self.output_size}"


class Embedding(Layer):
    """A row of a table for an integer, taken modulo the number of rows unless `mod_inputs` is False.

    `initializer` is a function that fills the table, or the table itself.

    >>> import weft.blocks as wb
    >>> (wb.Scalar("int64") >> wb.Embedding(10, 4)).eval_one(13).shape
    torch.Size([4])
    """

    def __init__(
        self,
        num_buckets: int,
        num_units_out: int,
        initializer: Initializer | Tensor | np.ndarray[Any, Any] | None = None,
        trainable: bool = True,
        mod_inputs: bool = True,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        check_count("Embedding", "num_buckets", num_buckets)
        check_count("Embedding", "num_units_out", num_units_out)
        self.num_buckets, self.output_size, self.mod_inputs = num_buckets, num_units_out, mod_inputs
        weights = torch.empty(num_buckets, num_units_out)
        if initializer is None:
            nn.init.normal_(weights, std=num_units_out**-0.5)
        elif callable(initializer):
            with torch.no_grad():
                initializer(weights)
        else:
            if not isinstance(initializer, Tensor | np.ndarray):
                raise TypeMismatch(f"Embedding: initializer: expected a function, tensor or array, got {initializer!r}")
            given = torch.as_tensor(initializer)
            if given.shape != weights.shape:
                raise ShapeError(f"Embedding: initializer: expected the shape {list(weights.shape)}, got {list(given.shape)}")
            weights = given.clone().to(weights.dtype)
        if trainable:
            self.weights = nn.Parameter(weights)
        else:
            self.register_buffer("weights", weights)

    def forward(self, number: Tensor) -> Tensor:
        if number.dim() or number.is_floating_point() or number.is_complex() or number.dtype == torch.bool:
            raise WrongInput(f"Embedding: expected an integer without dimensions, got {list(number.shape)} of {number.dtype}")
        at = number.long()
        return F.embedding(at.abs() % self.num_buckets if self.mod_inputs else at, self.weights)

    def extra_repr(self) -> str:
        return f"{self.num_buckets}, {self.output_size}"
