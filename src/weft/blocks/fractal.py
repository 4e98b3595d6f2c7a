"""Fractal networks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weft.blocks.checks import check_callable, check_chance, check_count
from weft.blocks.layers import Layer
from weft.errors import TypeMismatch


def _wants_a_name(builder: Callable[..., Any]) -> bool:
    """Whether a function has an argument that must be given."""
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(builder).parameters.values()
    except ValueError:  # of some classes that are written in C
        return False
    return any(p.default is p.empty and p.kind in by_place for p in parameters)


def mean_of(columns: Sequence[Tensor]) -> Tensor:
    """The mean of equal tensors."""
    return torch.stack(list(columns)).mean(0)


class FractalNet(Layer):
    """Fractal blocks one after the other (Larsson et al., "FractalNet: Ultra-Deep Neural Networks without Residuals", 2017).

    A fractal of depth 1 is a base layer; one of depth d + 1 mixes a base layer with two fractals of depth d in a row. With
    `drop_path` and in training, paths are dropped: with probability `p_local_drop_path` at each join by itself, else all but
    one column.

    >>> import weft.blocks as wb
    >>> net = wb.FractalNet(1, 2, lambda: wb.FC(3))
    >>> (wb.Vector(3) >> net).eval_one([1, 2, 3]).shape, len(net.layers)
    (torch.Size([3]), 3)
    """

    def __init__(
        self,
        num_fractal_blocks: int,
        fractal_block_depth: int,
        base_layer_builder: Callable[..., nn.Module],
        mixer: Callable[[Sequence[Tensor]], Tensor] = mean_of,
        drop_path: bool = False,
        p_local_drop_path: float = 0.5,
        p_drop_base_case: float = 0.25,
        p_drop_recursive_case: float = 0.25,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        check_count("FractalNet", "num_fractal_blocks", num_fractal_blocks)
        check_count("FractalNet", "fractal_block_depth", fractal_block_depth)
        check_callable("FractalNet", "base_layer_builder", base_layer_builder)
        check_callable("FractalNet", "mixer", mixer)
        for what, chance in (
            ("p_local_drop_path", p_local_drop_path),
            ("p_drop_base_case", p_drop_base_case),
            ("p_drop_recursive_case", p_drop_recursive_case),
        ):
            check_chance("FractalNet", what, chance, "of at least 0")
        self.blocks, self.depth, self.mixer, self.drop_path = num_fractal_blocks, fractal_block_depth, mixer, drop_path
        self.p_local, self.p_base, self.p_recursive = p_local_drop_path, p_drop_base_case, p_drop_recursive_case
        named = _wants_a_name(base_layer_builder)
        count = num_fractal_blocks * (2**fractal_block_depth - 1)
        layers = [base_layer_builder(f"layer_{n}") if named else base_layer_builder() for n in range(count)]
        for layer in layers:
            if not isinstance(layer, nn.Module):
                raise TypeMismatch(f"FractalNet: base_layer_builder: expected it to make a module, got {layer!r}")
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        layers = iter(self.layers)
        dropping = self.drop_path and self.training
        draw = torch.rand(2, device=x.device) if dropping else None
        for _ in range(self.blocks):
            x = self._fractal(x, self.depth, layers, draw)
        return x

    def _fractal(self, x: Tensor, depth: int, layers: Any, draw: Tensor | None) -> Tensor:
        base: Tensor = next(layers)(x)
        if depth == 1:
            return base
        deep = self._fractal(self._fractal(x, depth - 1, layers, draw), depth - 1, layers, draw)
        mixed = self.mixer([base, deep])
        if draw is None:
            return mixed
        chance = torch.rand(3, device=x.device)
        keep_base, keep_deep = chance[0] >= self.p_base, chance[1] >= self.p_recursive
        keep_base, keep_deep = keep_base | ~keep_deep & (chance[2] < 0.5), keep_deep | ~keep_base & (chance[2] >= 0.5)
        local = draw[0] < self.p_local
        column = (draw[1] * self.depth).floor() == depth - 1
        keep_base, keep_deep = torch.where(local, keep_base, column), torch.where(local, keep_deep, ~column)
        return torch.where(keep_base & keep_deep, mixed, torch.where(keep_base, base, deep))
