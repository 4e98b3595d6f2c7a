"""Kernels for a GPU, run on a CPU by Triton's interpreter: every kernel beside the torch calls that it stands for."""

from __future__ import annotations

import pytest

import weft
from weft.run.gpu.launch import has_triton, interpreted
from weft.testing import assert_equivalent, random_program, random_structure
from weft.testing.programs import SAMPLES

pytestmark = [
    pytest.mark.skipif(not has_triton(), reason="the package triton is not installed"),
    pytest.mark.filterwarnings("ignore:(invalid|divide|overflow):RuntimeWarning"),  # of rows that do not exist
    pytest.mark.skipif(not interpreted(), reason="Triton compiles for a GPU here; tests/gpu checks that"),
]

STEPWISE = "backend 'triton' runs its steps one by one, for no kernel can express"
FALLS_BACK = {
    "two types": f"Typed.attention: {STEPWISE} aten.new_zeros",
    "three types": f"Typed.norm: {STEPWISE} aten.native_layer_norm",
    "attention": f"Attention: {STEPWISE} aten.new_zeros",
    "layer norm": f"Normed: {STEPWISE} aten.native_layer_norm",
    "matrix-vector": f"MatrixVector: {STEPWISE} aten.mm",
    "reductions": f"Reductions: {STEPWISE} aten.new_zeros",
}
"""Of the sample cells, those with an operation that no kernel expresses, and what the warning says of it."""


@pytest.mark.parametrize("sample", [name for name in SAMPLES if name not in FALLS_BACK])
def test_random_programs_agree(sample: str) -> None:
    for seed, kind in enumerate(("dag", "batch")):
        structure = random_structure(seed, kind, types=SAMPLES[sample].types)
        program, inputs = random_program(seed, sample=sample, structure=structure)
        assert_equivalent(program, *inputs, policies=["auto"], backends=["triton"])


@pytest.mark.parametrize("sample", FALLS_BACK)
def test_what_no_kernel_expresses_runs_step_by_step_and_says_why(sample: str) -> None:
    program, inputs = random_program(1, sample=sample, structure=random_structure(1, "tree", types=SAMPLES[sample].types))
    with pytest.warns(weft.FallbackWarning) as told:
        assert_equivalent(program, *inputs, policies=["auto"], backends=["triton"])
    assert FALLS_BACK[sample] in {str(warning.message) for warning in told}
