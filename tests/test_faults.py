"""The equivalence suite notices faults: each deliberate one makes a quick part of it fail, and without them it passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import weft
from faults import FAULTS, FAULTS_OF_KERNELS, FAULTS_OF_TRACING
from weft.api.modelcache import ModelCache
from weft.plan.schedule import PlanCache
from weft.testing import assert_equivalent, random_program, random_structure
from weft.testing.programs import SAMPLES

torch.set_num_threads(1)

QUICK = (
    ("chain", "tree"),
    ("gru", "dag"),
    ("n-ary tree-lstm", "holes"),
    ("n-ary tree-lstm", "tree"),
    ("child-sum tree-lstm", "dag"),
    ("reductions", "repeated"),
    ("defaults", "holes"),
    ("edges", "forest"),
    ("two types", "batch"),
    ("gated", "cyclic"),
)
"""Kinds of program and of structure that together meet every part of the engine."""

POLICIES = ("condense", "depth")


TRACED: dict[str, Any] = {}
"""Models that keep their traces from test to test; what is planned is planned anew under each fault."""


def check_quick_suite(models: dict[str, Any], backend: str = "eager") -> None:
    for model in models.values():
        ModelCache.of(model).plans = PlanCache()
    for seed, (sample, kind) in enumerate(QUICK):
        graph = random_structure(seed, kind, types=SAMPLES[sample].types)
        program, inputs = random_program(seed, models=models, sample=sample, structure=graph)
        program.rounds = 3 if SAMPLES[sample].rounds else None
        assert_equivalent(program, *inputs, policies=POLICIES, backends=[backend])
    check_other_structure()
    check_what_changes_between_calls()


class Scaled(weft.VertexFunction):
    """Reads a number and a plain tensor, which may be replaced between calls."""

    def __init__(self) -> None:
        super().__init__(state={"h": (2,)})
        self.w, self.scale, self.shift = nn.Linear(2, 2), 1.0, torch.ones(2, dtype=torch.float64)

    def forward(self, v: Any) -> None:
        h = torch.tanh(self.w(v.pull() + v.gather().sum("h")) * self.scale + self.shift)
        v.scatter(h=h)
        v.push(h)


def check_other_structure() -> None:
    torch.manual_seed(0)
    model, x = Scaled().double(), torch.randn(6, 2, dtype=torch.float64)
    for parents in ([5, 5, 5, 4, 5, -1], [1, 2, 3, 4, 5, -1]):
        assert_equivalent(model, weft.Graph.from_parents(parents), x, policies=POLICIES)


def check_what_changes_between_calls() -> None:
    torch.manual_seed(0)
    model, graph, x = Scaled().double(), weft.Graph.chain(4), torch.randn(4, 2, dtype=torch.float64)
    assert_equivalent(model, graph, x, policies=POLICIES)
    model.scale = 0.5
    assert_equivalent(model, graph, x, policies=POLICIES)
    model.shift = torch.zeros(2, dtype=torch.float64)
    assert_equivalent(model, graph, x, policies=POLICIES)


@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_without_faults_the_quick_suite_passes(backend: str) -> None:
    check_quick_suite(TRACED, backend)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_noticed(name: str) -> None:
    models = {} if name in FAULTS_OF_TRACING else TRACED
    backend = "auto" if name in FAULTS_OF_KERNELS else "eager"
    with FAULTS[name](), pytest.raises(AssertionError, match=rf"^policy '\w+', backend '{backend}': (output|gradient of )"):
        check_quick_suite(models, backend)


def test_after_all_faults_the_engine_is_whole_again() -> None:
    for make in FAULTS.values():
        with make():
            pass
    check_quick_suite(TRACED)


def test_there_are_at_least_ten() -> None:
    assert len(FAULTS) >= 10
