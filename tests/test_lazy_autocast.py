"""Autocast around a batched call and inside of one: dtypes and numbers are those of the loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft


def _layer(dtype: torch.dtype) -> tuple[nn.Linear, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(4, 4).to(dtype), torch.randn(5, 4).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("way", ["layer", "function", "cell", "inside", "asks"])
def test_what_comes_out_has_the_dtype_of_the_loop(way: str, dtype: torch.dtype) -> None:
    layer, x = _layer(dtype)

    def inside(row: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(row)

    def asks(row: Tensor) -> Tensor:
        return layer(row) * 2 if layer(row).sum() > 0 else layer(row)

    ways: dict[str, Any] = {
        "layer": layer,
        "function": lambda row: torch.tanh(layer(row)),
        "cell": weft.cell(lambda row: torch.tanh(layer(row))),
        "inside": inside,
        "asks": asks,
    }
    with torch.autocast("cpu", torch.bfloat16, enabled=way != "inside"):
        found = weft.batched(ways[way])(x)
        rows = [ways[way](row) for row in x]
    expected = torch.stack(rows)
    assert found.dtype == expected.dtype == (torch.float64 if dtype == torch.float64 else torch.bfloat16)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-2
    assert (found - expected).abs().max() <= tolerance


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_losses_are_computed_as_in_the_loop(dtype: torch.dtype) -> None:
    _, x = _layer(dtype)

    def loss(row: Tensor) -> Tensor:
        return nn.functional.mse_loss(row, row * 2)

    with torch.autocast("cpu", torch.bfloat16):
        found, rows = weft.batched(loss)(x), [loss(row) for row in x]
    assert found.dtype == rows[0].dtype
    assert (found - torch.stack(rows)).abs().max() <= (1e-12 if dtype == torch.float64 else 2e-3)
