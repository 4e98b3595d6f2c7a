"""Tiles of one stage of a sweep do not depend on each other, whichever runs first."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import weft
import weft.nn
from fresh_cells import CELLS
from kernel_parts import NEEDS_INTERPRETER, results
from onecall_parts import CASES
from races import Races, watch_races
from random_cells import random_case
from weft.run.gpu import sweeptext
from weft.testing import assert_equivalent

pytestmark = [*NEEDS_INTERPRETER, pytest.mark.filterwarnings("ignore::weft.FallbackWarning")]


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> Races:
    return watch_races(monkeypatch)


@pytest.mark.parametrize("case", CASES)
def test_models(case: str, races: Races) -> None:
    make, graphs = CASES[case]
    model, graph = make(), graphs[-1]
    x = torch.randn(graph.num_vertices, 3)
    expected = results(model, graph, x, "eager")
    for _ in range(2):  # the second goes by recipes
        for name, tensor in results(model, graph, x, "triton").items():
            assert torch.allclose(tensor, expected[name], rtol=1e-5, atol=1e-6), name
    assert races.shared


@pytest.mark.parametrize("name", CELLS)
def test_fresh_cells(name: str, races: Races) -> None:
    make, structure, width, lacking = CELLS[name]
    model, graph = make().double(), structure()
    x = torch.randn(graph.num_vertices, width, dtype=torch.float64)
    expected = results(model, graph, x, "eager")
    for _ in range(2):
        for key, tensor in results(model, graph, x, "triton").items():
            assert torch.allclose(tensor, expected[key], rtol=1e-10, atol=1e-10), key
    assert races.shared or lacking  # what no kernel expresses has no tiles


@pytest.mark.parametrize("first", range(0, 16, 8))
def test_random_cells(first: int, races: Races) -> None:
    for seed in range(first, first + 8):
        model, graph, x, edges = random_case(seed)
        given: list[Any] = [graph] if x is None else [graph, x]
        options: dict[str, Any] = {} if edges is None else {"edges": edges}
        for _ in range(2):
            assert_equivalent(model, *given, policies=["auto"], backends=["triton"], **options)
    assert races.shared


def test_stages_without_a_barrier_are_noticed(races: Races, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all stages of a step ran at once."""
    right = sweeptext._steps

    def at_once(member: Any, indent: str) -> list[str]:
        lines = right(member, indent)
        ends = [at for at, line in enumerate(lines) if line.strip() == "end_stage()"]
        return [line for at, line in enumerate(lines) if at not in ends[:-1]]

    monkeypatch.setattr(sweeptext, "_steps", at_once)
    graph = weft.Graph.chain(4)
    with warnings.catch_warnings(), pytest.raises(Exception, match="a tile reads what another one of its stage has written"):
        results(weft.nn.TreeGRU(3, 6), graph, torch.randn(4, 3), "triton")
