"""What calls leave behind for later ones of their kind serves these whatever came before: plans come in other orders here."""

from __future__ import annotations

import random

import pytest

from replay import options_of
from weft.api.function import VertexFunction
from weft.testing import assert_equivalent, random_program
from weft.testing.programs import SAMPLES

MANY = 12


def assert_agreement_one_after_the_other(seeds: list[int], sample: str | None = None) -> None:
    """With one model for all."""
    models: dict[str, VertexFunction] = {}
    for seed in seeds:
        program, inputs = random_program(seed, models=models, sample=sample)
        assert_equivalent(program, *inputs, seed=seed, policies=["auto"], backends=["auto"], **options_of(seed))


@pytest.mark.parametrize("sample", SAMPLES)
def test_programs_in_a_random_order(sample: str) -> None:
    assert_agreement_one_after_the_other(random.Random(sample).sample(range(500), MANY), sample)


def test_gradients_that_are_columns_of_others() -> None:
    """One after the other, since a recipe is written at the second call and used at the third."""
    assert_agreement_one_after_the_other([304, 351, 405])
