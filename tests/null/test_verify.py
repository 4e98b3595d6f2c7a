"""Broken programs and plans are rejected, each with its sentence; and what changes a result is broken."""

from __future__ import annotations

import random
from dataclasses import replace
from importlib import import_module

import pytest
from broken_plans import BROKEN_CHAINS, BROKEN_PLANS, chains, read, without_return
from mutations import mutate
from random_programs import random_max_rows, random_program
from small_tree import ints, tree
from symbolic import Crash, run_plan

from weft.errors import StructureError
from weft.graph.verify import verify_program
from weft.plan.plan import Plan
from weft.plan.returns import returns
from weft.plan.schedule import schedule
from weft.plan.verify import verify_plan


def test_the_tree_is_sound() -> None:
    verify_program(tree())
    for policy in ("condense", "depth", "agenda"):
        plan = schedule(tree(), policy)
        verify_plan(plan)
        assert sum(map(len, plan.rows)) == tree().num_nodes


def test_one_sentence_for_each_broken_rule() -> None:
    with pytest.raises(StructureError) as error:
        verify_program(replace(tree(), ptr=ints(1, 1, 1, 1, 2, 4, 6, 8, 8), type=ints(0, 0, 0, 1, 1, 1, 2, 9)))
    assert str(error.value) == (
        "broken program: node 7 has type 9, but there are 3 node types. ptr starts at 1; it must start at 0. "
        "ptr ends at 8; it must end at the number of arguments, 9."
    )


@pytest.mark.parametrize("name", BROKEN_PLANS)
def test_broken_plan(name: str) -> None:
    change, sentence = BROKEN_PLANS[name]
    with pytest.raises(StructureError) as error:
        verify_plan(change(schedule(tree(), "condense")))
    assert str(error.value) == f"broken plan: {sentence}"


@pytest.mark.parametrize("name", BROKEN_CHAINS)
def test_broken_plan_of_chains(name: str) -> None:
    change, sentence = BROKEN_CHAINS[name]
    with pytest.raises(StructureError) as error:
        verify_plan(change(schedule(chains(), "condense")))
    assert str(error.value) == f"broken plan: {sentence}"


def test_an_empty_read_is_told_from_a_class() -> None:
    plan = schedule(replace(chains(), src=ints(-1, -1, -1)), "condense")
    assert plan.reads[0].value_class == -1
    with pytest.raises(StructureError) as error:
        verify_plan(read(0, value_class=0)(plan))
    assert str(error.value) == (
        "broken plan: port 0 of type 1 finds nothing to read, so it must read no class, with an index of zeros."
    )


def test_the_program_and_the_returns_are_left_out_on_request() -> None:
    plan = without_return(schedule(tree(), "condense"))
    with pytest.raises(StructureError, match="broken plan"):
        verify_plan(plan)
    verify_plan(plan, full=False)


def test_plans_are_verified_where_the_environment_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Plan] = []
    monkeypatch.setattr(import_module("weft.plan.schedule"), "verify_plan", asked.append)
    monkeypatch.setattr(import_module("weft.plan.schedule"), "VERIFIES", True)
    plan = schedule(tree())
    monkeypatch.setattr(import_module("weft.plan.schedule"), "VERIFIES", False)
    schedule(tree())
    (seen,) = asked
    returns(seen)
    assert seen.program is plan.program and "returns" not in plan._derived  # what verifying finds out no call may rely on


def test_mutations_that_change_the_result_are_caught() -> None:
    """One number changed anywhere in a valid plan: at least 95 of 100 that change a value or a gradient are rejected."""
    rng = random.Random(0)
    changing = caught = 0
    missed: list[str] = []
    for seed in range(500):
        plan = schedule(random_program(seed, 14), ("condense", "depth", "agenda")[seed % 3], random_max_rows(seed))
        truth = run_plan(plan)
        for _ in range(8 if plan.program.num_nodes else 0):
            place, mutant = mutate(plan, rng)
            try:
                if run_plan(mutant) == truth:
                    continue
            except Crash:
                pass
            changing += 1
            try:
                verify_plan(mutant)
                missed.append(f"seed {seed}: {place}")
            except StructureError:
                caught += 1
    assert changing > 1500
    assert caught >= 0.95 * changing, missed
