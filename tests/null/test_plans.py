"""Plans of random structures hold to all rules and compute what the program says; and what layout promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from random_programs import random_max_rows, random_program
from symbolic import run_plan, run_program

from weft.errors import StructureError, TypeMismatch
from weft.graph.program import Ints, NodeType, Port, Program, merge
from weft.plan.bound import lower_bound
from weft.plan.plan import NOT_A_SLICE, Plan
from weft.plan.returns import returns
from weft.plan.schedule import POLICIES, VERIFIES, PlanCache, schedule
from weft.plan.verify import verify_plan

STRUCTURES, BLOCK = 10_000, 1_000
TREE_TYPES = NodeType("leaf"), NodeType("node", (Port("slots", (0, 1)),))
CHAIN_TYPES = NodeType("first"), NodeType("next", (Port("slots", (0,)),))


def sized(seed: int) -> Program:
    """Most programs are tiny, some middling, a few large."""
    return random_program(seed, 3000 if seed % 500 == 499 else 120 if seed % 50 == 49 else 10)


def bound_of(program: Program) -> int:
    return lower_bound(len(program.types), program.type, program.ptr, program.src)


@pytest.mark.parametrize("block", range(0, STRUCTURES, BLOCK))
def test_random_structures_hold_to_all_rules(block: int) -> None:
    """Planned by every policy; every twentieth structure is computed as well."""
    assert VERIFIES  # the environment asks for it: planning verifies what it makes
    for seed in range(block, block + BLOCK):
        program = sized(seed)
        least = bound_of(program)
        for policy in ("condense", "depth", "agenda"):
            try:
                plan = schedule(program, policy, random_max_rows(seed))
                assert plan.num_steps >= least
                if seed % 20 == 0:
                    assert run_plan(plan) == run_program(program)
            except Exception as error:
                error.add_note(f"random_program({seed}) under {policy}, max_rows={random_max_rows(seed)}")
                raise


def test_a_middling_structure_computes_the_same_under_all_policies() -> None:
    for seed in range(12):
        program = random_program(seed, 300)
        truth = run_program(program)
        for policy in POLICIES:
            for max_rows in (None, 7):
                assert run_plan(schedule(program, policy, max_rows)) == truth, (seed, policy, max_rows)


def chain_batch(lengths: Sequence[int]) -> Program:
    chains = [
        Program(
            CHAIN_TYPES,
            np.array([0] + [1] * (length - 1), dtype=np.int32),
            np.array([0, *range(length)], dtype=np.int32),
            np.arange(length - 1, dtype=np.int32),
        )
        for length in lengths
    ]
    return merge(chains)


def full_tree(leaves: int) -> Program:
    """A full binary tree numbered level by level, leaves first."""
    inner = leaves - 1
    ptr = np.concatenate((np.zeros(leaves, np.int32), np.arange(0, 2 * inner + 1, 2, dtype=np.int32)))
    types = np.array([0] * leaves + [1] * inner, dtype=np.int32)
    return Program(TREE_TYPES, types, ptr, np.arange(2 * inner, dtype=np.int32))


def all_slices(plan: Plan) -> bool:
    forth = all((read.slices != NOT_A_SLICE).all() for read in plan.reads)
    return forth and all(((back.slices != NOT_A_SLICE) | back.nothing).all() for back in returns(plan).values())


@pytest.mark.parametrize("policy", POLICIES)
def test_chains_sorted_by_length_read_slices_only(policy: str) -> None:
    plan = schedule(chain_batch([9, 9, 7, 4, 4, 4, 2, 2]), policy)
    assert all((read.slices != NOT_A_SLICE).all() for read in plan.reads)


def test_chains_in_any_order_of_length_read_slices_only() -> None:
    lengths = np.random.default_rng(0).integers(2, 30, 50).tolist()
    plan = schedule(chain_batch(lengths), "condense")
    assert all((read.slices != NOT_A_SLICE).all() for read in plan.reads)


def test_full_trees_read_and_return_slices_only() -> None:
    plan = schedule(merge([full_tree(8), full_tree(8), full_tree(8)]), "condense")
    assert all_slices(plan)
    assert plan.num_steps == bound_of(plan.program) == 4


def test_irregular_trees_gather_by_index() -> None:
    left_deep = Program(
        TREE_TYPES,
        np.array([0, 0, 0, 1, 1], np.int32),
        np.array([0, 0, 0, 0, 2, 4], np.int32),
        np.array([1, 0, 3, 2], np.int32),
    )
    assert not all_slices(schedule(left_deep, "condense"))


def test_condense_runs_what_is_on_no_cycle_once() -> None:
    classify = NodeType("classify", (Port("slots", (0,)),))
    tree = full_tree(8)
    n = tree.num_nodes
    program = Program(
        (*TREE_TYPES, classify),
        np.concatenate((tree.type, np.full(n, 2, np.int32))),
        np.concatenate((tree.ptr, tree.ptr[-1] + np.arange(1, n + 1, dtype=np.int32))),
        np.concatenate((tree.src, np.arange(n, dtype=np.int32))),
    )
    steps = {policy: schedule(program, policy).num_steps for policy in POLICIES}
    assert steps == {"auto": 5, "condense": 5, "agenda": 6, "depth": 8}


def test_max_rows_cuts_steps() -> None:
    program = merge([full_tree(4)] * 5)
    for most in (1, 3, 100):
        plan = schedule(program, "condense", most)
        sizes = np.concatenate([group.step_hi - group.step_lo for group in plan.groups])
        assert sizes.max() == min(most, 20) and sizes.sum() == program.num_nodes


def test_a_program_whose_arguments_are_all_absent() -> None:
    types = (NodeType("pair", (Port("slots", (0, 1)), Port("sum")), 2),)
    none = np.zeros(0, dtype=np.int32)
    program = Program(types, np.zeros(3, np.int32), np.zeros(4, np.int32), none, out=none, edge=none)
    plan = schedule(program)
    assert [read.value_class for read in plan.reads] == [-1, -1]
    assert run_plan(plan) == run_program(program)


def test_an_empty_program() -> None:
    none = np.zeros(0, dtype=np.int32)
    for policy in POLICIES:
        plan = schedule(Program(TREE_TYPES, none, np.zeros(1, np.int32), none), policy)
        assert (plan.groups, plan.reads, plan.num_steps, returns(plan)) == ((), (), 0, {})


@pytest.mark.parametrize("policy", POLICIES)
def test_deep_and_wide(policy: str) -> None:
    """A chain of 20,000, whose sort keys outgrow 32 bits, and a star of as many."""
    n = 20_000
    deep = chain_batch([n * 5 // 2])
    assert schedule(deep, policy).num_steps == n * 5 // 2
    star = Program(
        (NodeType("leaf"), NodeType("hub", (Port("sum"),))),
        np.array([0] * n + [1], dtype=np.int32),
        np.array([0] * (n + 1) + [n], dtype=np.int32),
        np.arange(n, dtype=np.int32),
    )
    assert schedule(star, policy).num_steps == 2


def shifted(program: Program, feed: int, edge: int) -> Program:
    own = np.arange(program.num_nodes, dtype=np.int32) if program.feed is None else program.feed
    edges = None if program.edge is None else program.edge + np.int32(edge)
    return replace(program, feed=own + np.int32(feed), edge=edges)


def test_a_merged_program_computes_what_its_parts_do() -> None:
    for seed in range(60):
        first = random_program(seed, 20)
        parts = [shifted(first, 0, 0), shifted(first, 3, 0), shifted(first, 0, 5), shifted(first, 0, 0)]
        whole = run_plan(schedule(merge(parts), POLICIES[seed % 4], random_max_rows(seed))).values
        feed = edge = 0
        for number, part in enumerate(parts):
            mine = whole[number * first.num_nodes : (number + 1) * first.num_nodes]
            assert np.array_equal(mine, run_program(shifted(part, feed, edge)).values), seed
            feed += int(part.feed.max(initial=-1)) + 1 if part.feed is not None else 0
            edge += int(part.edge.max(initial=-1)) + 1 if part.edge is not None else 0


def test_what_cannot_be_merged() -> None:
    plain, other = full_tree(2), chain_batch([2])
    fed = replace(plain, feed=np.zeros(3, np.int32))
    for programs, message in (
        ([], "merge: expected at least one program, came none"),
        ([plain, other], "merge: expected the node types of program 0 in all, came others in program 1"),
        ([plain, fed], "merge: expected feed rows in all programs or none, came some in 1 and none in 0"),
        ([fed, fed, plain], "merge: expected feed rows in all programs or none, came some in 0 and none in 2"),
    ):
        with pytest.raises(StructureError) as error:
            merge(programs)
        assert str(error.value) == message


def test_saved_programs_load_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "program.npz"
    for seed in range(40):
        program = random_program(seed, 30)
        program.save(path)
        again = Program.load(path)
        assert again.types == program.types
        for name in ("type", "ptr", "src", "out", "feed", "edge"):
            before: Ints | None = getattr(program, name)
            after: Ints | None = getattr(again, name)
            if before is None or after is None:
                assert before is after
            else:
                assert before.dtype == after.dtype and np.array_equal(before, after)
        verify_plan(schedule(again))


def test_plans_that_were_used_last_are_kept() -> None:
    cache = PlanCache(3)
    made: list[str] = []

    def get(key: str) -> None:
        cache.get(key, lambda: made.append(key) or key)

    for key in "abcadab":
        get(key)
    assert made == ["a", "b", "c", "d", "b"]
    assert len(cache) == 3 and "c" not in cache and all(key in cache for key in "abd")
    for number in range(100):
        get(str(number))
    assert len(cache) == 3


def test_unknown_policy_and_max_rows() -> None:
    with pytest.raises(TypeMismatch) as error:
        schedule(full_tree(2), "deepest")
    assert str(error.value) == "policy: expected one of 'auto', 'depth', 'agenda', 'condense', got 'deepest'"
    with pytest.raises(TypeMismatch) as error:
        schedule(full_tree(2), max_rows=0)
    assert str(error.value) == "max_rows: expected a positive number or None, got 0"
