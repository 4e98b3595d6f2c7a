"""Random per-example programs, batched in every granularity, equal the loop in outputs and gradients."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

import weft
import weft.testing
from random_lazy import DIM, FEATURES, Interpreter, random_example

COUNT, BATCH = 320, 16


@pytest.fixture(scope="module")
def model() -> Interpreter:
    return Interpreter()


def test_every_feature_is_in_a_fifth_of_the_programs() -> None:
    counts = Counter(feature for seed in range(COUNT) for feature in random_example(seed)[1])
    assert COUNT >= 300 and {name: counts[name] for name in FEATURES if counts[name] < COUNT / 5} == {}


OPTIONS: list[dict[str, Any]] = [
    {"granularity": "auto"},
    {"granularity": "cell"},
    {"granularity": "operator"},
    {"granularity": "auto", "dedupe": True},
]


@pytest.mark.parametrize("first", range(0, COUNT, BATCH))
def test_random_programs_equal_the_loop(first: int, model: Interpreter) -> None:
    programs = [random_example(seed)[0] for seed in range(first, first + BATCH)]
    x = torch.randn(BATCH, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(first))
    number = first // BATCH
    options = OPTIONS[number % len(OPTIONS)]
    policy = ("auto", "depth", "agenda", "condense")[number // 4 % 4]
    backend = "auto" if number < 4 else "eager"
    weft.testing.assert_equivalent(weft.batched(model, **options), programs, x, policies=[policy], backends=[backend])
