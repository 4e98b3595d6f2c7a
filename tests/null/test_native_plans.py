"""Planning in C and its slow twin in numpy make equal plans, array by array."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from equal_plans import differences
from random_programs import random_max_rows, random_program

from weft.errors import StructureError
from weft.graph.program import NodeType, Port, Program
from weft.plan import library, native
from weft.plan.plan import Plan
from weft.plan.returns import returns
from weft.plan.schedule import schedule
from weft.plan.shape import NativePlan

STRUCTURES, BLOCK = 10_000, 1_000
POLICIES = ("condense", "depth", "agenda")


def sized(seed: int) -> Program:
    """Most programs are tiny, some middling, a few large."""
    return random_program(seed, 3000 if seed % 500 == 499 else 120 if seed % 50 == 49 else 10)


@pytest.fixture
def in_numpy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    """Planning without C."""
    assert library.library() is not None, "these tests need a C compiler: cc, gcc or clang"
    monkeypatch.setattr(import_module("weft.plan.schedule"), "VERIFIES", False)

    def plan(program: Program, policy: str = "auto", max_rows: int | None = None) -> Plan:
        with monkeypatch.context() as without:
            without.setattr(native, "library", lambda: None)
            made = schedule(program, policy, max_rows)
            returns(made)
        return made

    return plan


def in_c(program: Program, policy: str = "auto", max_rows: int | None = None) -> Plan:
    plan = schedule(program, policy, max_rows)
    assert isinstance(plan, NativePlan) == (program.num_nodes > 0)
    return plan


def assert_planned_alike(
    program: Program, policy: str, max_rows: int | None, in_numpy: Callable[..., Plan], name: object
) -> None:
    fast, slow = in_c(program, policy, max_rows), in_numpy(program, policy, max_rows)
    assert not isinstance(slow, NativePlan)
    found = differences(fast, slow, "plan") + differences(returns(fast), returns(slow), "returns")
    assert not found, (name, policy, max_rows, found[:3])


@pytest.mark.parametrize("block", range(0, STRUCTURES, BLOCK))
def test_random_structures_are_planned_alike(block: int, in_numpy: Callable[..., Plan]) -> None:
    for seed in range(block, block + BLOCK):
        program = sized(seed)
        for policy in POLICIES:
            assert_planned_alike(program, policy, random_max_rows(seed), in_numpy, seed)


def many_kinds(seed: int) -> Program:
    """An op-level program: many node types, several ports and outputs, in no helpful order, in components of all sizes."""
    rng = np.random.default_rng(seed)
    kinds = int(rng.integers(1, 60))
    count = int(rng.integers(1, 600))
    ports = [Port("slots", (0,)), Port("slots", (0, 1)), Port("slots", (2, 0)), Port("sum", (1,)), Port("edges", (0,))]
    types = tuple(
        NodeType(f"op {t}", tuple(ports[i] for i in rng.integers(len(ports), size=rng.integers(4))), int(rng.integers(1, 4)))
        for t in range(kinds)
    )
    reach = int(rng.choice([1, kinds // 4 + 1, kinds]))  # how far back in the order of types an argument may feed
    type = np.sort(rng.integers(kinds, size=count))
    type = np.clip(type + rng.integers(-reach, reach + 1, size=count), 0, kinds - 1)
    lengths = np.where(np.arange(count) > 0, rng.integers(0, 4, size=count), 0)
    reader = np.repeat(np.arange(count), lengths)
    src = (rng.random(len(reader)) * reader).astype(np.int64)
    src[rng.random(len(src)) < rng.choice([0, 0.1])] = -1
    out = np.where(src >= 0, rng.integers(0, np.array([kind.outputs for kind in types])[type[src]]), 0)
    number = rng.permutation(count) if rng.random() < 0.5 else np.arange(count)
    place = np.argsort(number)
    ptr = np.concatenate(([0], np.cumsum(lengths[place])))
    first = np.concatenate(([0], np.cumsum(lengths)))[:-1]
    at = np.concatenate([np.arange(first[node], first[node] + lengths[node]) for node in place])
    moved = np.where(src >= 0, number[src], -1)
    arrays = (type[place], ptr, moved[at], out[at])
    return Program(types, *(array.astype(np.int32) for array in arrays))


def test_programs_of_many_types_are_planned_alike(in_numpy: Callable[..., Plan]) -> None:
    cyclic = set()
    for seed in range(300):
        program = many_kinds(seed)
        for policy in POLICIES:
            assert_planned_alike(program, policy, (None, None, 3)[seed % 3], in_numpy, seed)
        cyclic |= {(group.cyclic, min(len(group.types), 2)) for group in in_c(program).groups}
    assert cyclic == {(False, 1), (True, 1), (True, 2)}


def test_outputs_that_nobody_names_are_planned_alike(in_numpy: Callable[..., Plan]) -> None:
    """Where a program names no outputs all arguments read the first, however many there are."""
    for seed in range(200):
        program = random_program(seed, 40)
        wide = tuple(replace(kind, outputs=1 + (seed + number) % 3) for number, kind in enumerate(program.types))
        for policy in POLICIES:
            assert_planned_alike(replace(program, types=wide, out=None), policy, None, in_numpy, seed)


def test_what_c_cannot_plan_goes_the_way_of_numpy() -> None:
    types = (NodeType("node", (Port("slots", (0,)),)),)
    one = np.zeros(2, np.int32), np.array([0, 1, 2], np.int32)
    with pytest.raises(StructureError, match=r"^cycle: 0 -> 1 -> 0 "):
        schedule(Program(types, *one, np.array([1, 0], np.int32)))
    wide = Program(types, *(array.astype(np.int64) for array in (*one, np.array([-1, 0]))))
    assert not isinstance(schedule(wide), NativePlan)
    broken = Program(types, *one, np.array([7, 0], np.int32))
    with pytest.raises(IndexError):
        schedule(broken)


def test_a_compiler_that_fails_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (shutil.which("false"), None):
        library.library.cache_clear()
        with monkeypatch.context() as patched:
            patched.setattr(library, "compiler", lambda path=path: path)
            patched.setattr(library, "TEXTS", ("work.c",))  # another text, so that none is found ready
            assert library.library() is None
            assert not isinstance(schedule(random_program(5, 20)), NativePlan)
    library.library.cache_clear()
    assert library.library() is not None
