"""Every model of examples/ equals its loop in outputs and gradients."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import weft
import weft.testing

sys.path.insert(0, str(Path(__file__).parents[1]))

EXAMPLES = ("tree_lstm", "tagger", "parser", "tree_decoder", "early_exit", "sampler", "module_network")
BY_VALUE = ("parser", "tree_decoder", "early_exit", "sampler")


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_equals_its_loop(name: str) -> None:
    fn, *inputs = import_module(f"examples.{name}").example(6)
    weft.testing.assert_equivalent(fn, *inputs, policies=["auto"], backends=["auto"])


@pytest.mark.parametrize("name", BY_VALUE)
def test_examples_that_depend_on_values_do_branch(name: str) -> None:
    fn, *inputs = import_module(f"examples.{name}").example(12)
    with torch.no_grad():
        *_, steps = weft.batched(fn)(*inputs)
    assert len(set(steps.tolist())) > 1, "the examples go different ways"
    assert weft.plan(fn, *inputs).stats()["complete"] == 0
