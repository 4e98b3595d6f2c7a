"""On a GPU: random vertex functions by kernels, beside the reference."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from random_cells import random_case
from weft.testing import assert_equivalent

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
CUDA = torch.device("cuda")


@pytest.mark.parametrize("seed", range(12))
def test_kernels_equal_one_by_one(seed: int) -> None:
    """In single precision: kernels have no other. What is computed step after step may be ten times less exact."""
    model, graph, x, edges = random_case(seed)
    given: list[Any] = [graph.to(CUDA)]
    given += [] if x is None else [x.detach().to(CUDA, torch.float32).requires_grad_(x.requires_grad)]
    options: dict[str, Any] = {"tolerance": 1e-4}
    if edges is not None:
        options["edges"] = edges.detach().to(CUDA, torch.float32).requires_grad_(edges.requires_grad)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            assert_equivalent(model.to(CUDA, torch.float32), *given, policies=["auto"], backends=["triton"], **options)
