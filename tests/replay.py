"""Replay one random program of the equivalence tests: `python -m tests.replay SEED`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from weft.api.function import VertexFunction
from weft.testing import RandomProgram, assert_equivalent, random_program


def options_of(seed: int) -> dict[str, Any]:
    """Every so often a cap on the rows of a step, or recomputation in the backward pass."""
    options: dict[str, Any] = {}
    if seed % 5 == 0:
        options["max_rows"] = 1 + seed % 4
    if seed % 7 == 0:
        options["recompute"] = True
    return options


def assert_programs_agree(seed: int, models: dict[str, VertexFunction] | None = None, **chosen: Any) -> RandomProgram:
    """One random program under every policy; a failure names the seed and how to see it again."""
    program, inputs = random_program(seed, models=models)
    try:
        assert_equivalent(program, *inputs, seed=seed, **{**options_of(seed), **chosen})
    except Exception as error:
        error.add_note(f"random program {seed} ({program.name}); replay it with: python -m tests.replay {seed}")
        raise
    return program


def main(arguments: Sequence[str]) -> None:
    torch.set_num_threads(1)
    for seed in map(int, arguments):
        program, (graph, *_) = random_program(seed)
        print(f"seed {seed}: {program.name}, rounds={program.rounds}, options {options_of(seed)}")
        print(f"  {graph}: children {graph.children.tolist()}, offsets {graph.offsets.tolist()}, types {graph.types}")
        assert_programs_agree(seed)
        print("  batched equals one by one under every policy")


if __name__ == "__main__":
    main(sys.argv[1:])
