"""Cells that nobody had in mind when kernels were written: run by them, or falling back for a true reason; always equal."""

from __future__ import annotations

import warnings

import pytest
import torch

import weft
from fresh_cells import CELLS
from kernel_parts import NEEDS_TRITON, results
from weft.run.gpu.launch import interpreted

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

pytestmark = [
    *NEEDS_TRITON,
    pytest.mark.skipif(not (interpreted() or DEVICE.type == "cuda"), reason="no GPU, and kernels are not interpreted"),
]


@pytest.mark.parametrize("name", CELLS)
def test_a_fresh_cell_is_right_and_runs_by_kernels_or_says_what_they_lack(name: str) -> None:
    make, structure, width, lacking = CELLS[name]
    torch.manual_seed(0)
    dtype, tolerance = (torch.float32, 1e-5) if DEVICE.type == "cuda" else (torch.float64, 1e-12)
    model, graph = make().to(DEVICE, dtype), structure()
    x = torch.randn(graph.num_vertices, width, dtype=dtype, device=DEVICE)
    expected = results(model, graph, x, "reference")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", weft.FallbackWarning)
        found = [results(model, graph, x, "triton") for _ in range(2)]
    said = {str(warning.message) for warning in told if issubclass(warning.category, weft.FallbackWarning)}
    start = f"{type(model).__name__}: backend 'triton' runs its steps one by one, for no kernel can express"
    assert said == {f"{start} {reason}" for reason in lacking}
    for one in found:
        assert one.keys() == expected.keys()
        for key, tensor in expected.items():
            worst = float((one[key] - tensor).abs().max()) if tensor.numel() else 0.0
            assert worst <= tolerance * max(1.0, float(tensor.abs().max())), key
