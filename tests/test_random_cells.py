"""Random vertex functions, batched, equal the reference in outputs and gradients; their kernels touch no others' memory."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from bounds import check_memory
from cpu_driver import poisoned_driver
from kernel_parts import NEEDS_INTERPRETER
from onecall_parts import watch
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


def _step(seed_case: Any, **options: Any) -> dict[str, Tensor]:
    """Results and all gradients of a training step, in single precision."""
    model, graph, x, edges = seed_case
    rows = {"x": x, "edges": edges}
    rows = {name: one.detach().float().requires_grad_() for name, one in rows.items() if one is not None}
    model.zero_grad()
    given = {"edges": rows["edges"]} if "edges" in rows else {}
    out = model(graph, rows.get("x"), **given, **options)
    flat = {f"out {at}": one for at, one in enumerate(out.values() if isinstance(out, dict) else [out])}
    trained = [one for one in flat.values() if one.requires_grad]
    if trained:
        torch.autograd.backward(trained, [torch.linspace(-1, 1, one.numel()).view_as(one) for one in trained])
    gradients = {name: one.grad for name, one in [*model.named_parameters(), *rows.items()]}
    return {name: one.detach() for name, one in {**flat, **gradients}.items() if one is not None}


@pytest.mark.filterwarnings("ignore::weft.FallbackWarning")
@pytest.mark.parametrize("backend", [pytest.param("triton", marks=NEEDS_INTERPRETER)])
def test_one_call_and_replays_equal_one_by_one(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with poisoned_driver() as driver:
        ways = watch(monkeypatch)
        for seed in range(24):
            model, *rest = random_case(seed)
            case = model.float(), *rest
            expected = _step(case, backend="reference")
            for turn in range(5):
                found = _step(case, backend=backend, graph=turn > 1)
                for name in {**expected, **found}:  # no gradient is zeros
                    one, other = (given.get(name, torch.zeros(())) for given in (expected, found))
                    assert torch.allclose(*torch.broadcast_tensors(one, other), rtol=1e-4, atol=1e-4), (seed, turn, name)
        assert ways.count(True) > 50 and driver.replays >= 8
