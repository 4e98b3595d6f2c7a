"""The compiled backend: the same numbers at every size, and at most two compilations of a piece over changing sizes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo import lookup_backend

import weft
from weft.api.function import VertexFunction
from weft.testing import assert_equivalent, random_program, random_structure

torch.set_num_threads(1)

# Inductor's own imports are deprecated in places.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")

SAMPLES = ("lstm", "reductions", "edges", "gated")
ROWS = (1, 2, 3, 5, 16, 33)
PROGRAMS = 5

plain_compile = torch.compile


class Compilations:
    """In the place of `torch.compile`: counts how often each function that was given to it is compiled."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def __call__(self, function: Callable[..., Any], **options: Any) -> Any:
        place = len(self.counts)
        self.counts.append(0)

        def backend(graph: Any, inputs: Any) -> Any:
            compiled = lookup_backend("inductor")(graph, inputs)
            self.counts[place] += 1  # a compilation that asks to be started again does not come here
            return compiled

        return plain_compile(function, backend=backend, **options)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Compilations:
    counting = Compilations()
    monkeypatch.setattr(torch, "compile", counting)
    return counting


def levels_of(rows: int, seed: int) -> weft.Graph:
    """The same tree `rows` times, so that no step has fewer rows."""
    return weft.Graph.batch([random_structure(seed, "tree", size=7)] * rows)


@pytest.mark.parametrize("sample", SAMPLES)
def test_sizes_and_programs_agree_with_at_most_two_compilations_of_a_piece(sample: str, compilations: Compilations) -> None:
    assert shutil.which("c++") or shutil.which("g++") or shutil.which("clang++"), "Inductor needs a C++ compiler on the path"
    models: dict[str, VertexFunction] = {}
    structures = [levels_of(rows, rows) for rows in ROWS]
    structures += [random_structure(seed, ("dag", "forest", "holes", "batch", "star")[seed]) for seed in range(PROGRAMS)]
    for seed, structure in enumerate(structures):
        program, inputs = random_program(seed, models=models, sample=sample, structure=structure)
        assert_equivalent(program, *inputs, policies=["auto"], backends=["compiled"])
    assert max(compilations.counts) <= 2
    assert sum(count > 0 for count in compilations.counts) >= 2, "the steps of both directions are compiled"


def test_a_step_of_one_row_compiles_nothing(compilations: Compilations) -> None:
    """One row is a size that the compiler would treat apart; such steps run as they are."""
    program, inputs = random_program(0, sample="chain", structure=weft.Graph.chain(6))
    assert_equivalent(program, *inputs, policies=["auto"], backends=["compiled"])
    assert compilations.counts and not any(compilations.counts)


def test_inference_is_compiled_too(compilations: Compilations) -> None:
    program, inputs = random_program(0, sample="chain", structure=levels_of(6, 1))
    with torch.no_grad():
        found, expected = (program(*inputs, backend=backend) for backend in ("compiled", "reference"))
    assert any(compilations.counts)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
