"""Random vertex functions, batched, equal the reference in outputs and gradients; their kernels touch no others' memory."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import weft
from bounds import check_memory
from kernel_parts import NEEDS_INTERPRETER
from random_cells import random_case
from weft.testing import assert_equivalent

POLICIES = ("auto", "condense", "depth", "agenda")
TOGETHER = 8


def check(first: int, backends: list[str]) -> int:
    """Of some cases, how many run by kernels alone."""
    whole = 0
    for seed in range(first, first + TOGETHER):
        model, graph, x, edges = random_case(seed)
        given: list[Any] = [graph] if x is None else [graph, x]
        options: dict[str, Any] = {} if edges is None else {"edges": edges}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(2):  # the first call writes recipes, the second goes by them
                assert_equivalent(model, *given, policies=[POLICIES[seed % 4]], backends=backends, **options)
        whole += not any(isinstance(one.message, weft.FallbackWarning) for one in told)
    return whole


@pytest.mark.parametrize("first", range(0, 24, TOGETHER))
def test_batched_equals_one_by_one(first: int) -> None:
    assert check(first, ["auto", "eager"]) == TOGETHER


@pytest.mark.parametrize("first", range(0, 64, TOGETHER))
@pytest.mark.parametrize("backend", [pytest.param("triton", marks=NEEDS_INTERPRETER)])
def test_kernels_equal_one_by_one(first: int, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = check_memory(monkeypatch)
    assert check(first, [backend]) >= TOGETHER // 4
    assert checked.asked
