"""Straight runs become blocks, and blocks stay right; failures that other systems are known for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import weft
import weft.testing
from lazy_parts import TREES, assert_equals_loop, tree_net
from weft.lazy.chains import Chains, Recorded
from weft.lazy.kinds import kind_of
from weft.lazy.ops import Arg, Op
from weft.lazy.state import state_of

KIND = kind_of((2,), torch.float32)


def unary() -> Op:
    return Op("tanh", torch.tanh, ((Arg(0),), {}), [KIND], [])


def binary() -> Op:
    return Op("add", torch.add, ((Arg(0), Arg(1)), {}), [KIND, KIND], [])


def recorded(types: list[int], arguments: list[int], starts: list[int]) -> Recorded:
    """Calls by type; arguments are call numbers, those below zero come from outside."""
    flags = np.zeros(len(types) + 1, bool)
    flags[[0, -1, *starts]] = True
    refs = np.array([call << 12 if call >= 0 else call for call in arguments], np.int64)
    return Recorded(np.array(types, np.int32), refs, np.empty(0, np.int32), {}, flags)


def test_what_always_follows_is_one_block() -> None:
    chains = Chains()
    chains.see([unary(), unary(), unary()], recorded([0, 1, 2, 0, 1, 2], [-1, 0, 1, 2, 3, 4], []))
    assert chains.blocks == [[0, 1, 2]]


def test_a_second_successor_cuts_the_block() -> None:
    chains, ops = Chains(), [unary(), unary(), unary()]
    chains.see(ops, recorded([0, 1, 0, 1], [-1, 0, -1, 2], []))
    version = chains.version
    assert chains.blocks == [[0, 1]]
    chains.see(ops, recorded([0, 2], [-1, 0], []))
    assert chains.blocks == [[0], [1], [2]] and chains.version > version


def test_nothing_is_joined_across_examples() -> None:
    chains = Chains()
    chains.see([unary(), unary()], recorded([0, 1, 0, 1], [-1, -1, -1, -1], [1, 2, 3]))
    assert chains.blocks == [[0], [1]]


def test_an_argument_that_is_sometimes_from_inside_cuts_the_block() -> None:
    chains = Chains()
    chains.see([unary(), binary()], recorded([0, 1, 0, 1], [-1, 0, 0, 1, 2, 1], [2]))
    assert chains.blocks == [[0], [1]], "its second argument is call 0 here, and from outside there"
    always = Chains()
    always.see([unary(), binary()], recorded([0, 1, 0, 1], [-1, 0, -1, 1, 2, -1], [2]))
    assert always.blocks == [[0, 1]] and always.source(1, 0, 1) == (0, 0) and always.source(1, 1, 1) is None


def test_unmarked_code_records_into_few_call_types() -> None:
    model = tree_net()
    weft.batched(model)(TREES)
    names = [kind.name for kind in state_of(model).library.types]
    assert names == ["Embedding", "Linear", "cat+Linear+tanh"]


def test_blocks_are_redone_when_a_later_recording_contradicts() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(3, 3).double()

    def fn(x: Tensor, twice: bool) -> Tensor:
        h = torch.tanh(linear(x))
        if twice:
            h = torch.tanh(linear(h))
        return h * 2

    x = torch.randn(4, 3, dtype=torch.float64)
    assert_equals_loop(fn, x, [False] * 4)
    assert_equals_loop(fn, x, [False, True, False, True])
    assert_equals_loop(fn, x, [False] * 4)
    net = weft.batched(fn, cache=lambda x, twice: (tuple(x.tolist()), twice))
    expected = torch.stack([fn(row, i % 2 == 1) for i, row in enumerate(x)])
    for _ in range(2):
        assert torch.allclose(net(x, [False, True, False, True]), expected)


def test_equal_code_at_two_places_equals_the_loop() -> None:
    weight = nn.Parameter(torch.ones(3))

    def fn(first: bool, n: int) -> Tensor:
        h = weight * 1.5
        for _ in range(n):
            h = torch.sin(h) if first else torch.cos(h)
            h = h * weight
            h = h * weight
        return h

    assert_equals_loop(fn, [True, False, True], [1, 2, 3], tolerance=1e-6)


# Known failures of others.


def test_every_reader_gets_its_own_slice() -> None:
    """An argument that was computed in a batch is read by its own row, whatever else was computed beside it."""
    torch.manual_seed(0)
    linear = nn.Linear(4, 8).double()

    def fn(x: Tensor, way: int) -> Tensor:
        parts = linear(x).chunk(4)
        return parts[way] * parts[(way + 1) % 4] - parts[0]

    assert_equals_loop(
        fn, torch.randn(8, 4, dtype=torch.float64), [0, 1, 2, 3, 3, 2, 1, 0], policies=["auto", "depth", "agenda"]
    )


def test_mutually_recursive_kinds_of_calls_always_have_a_candidate() -> None:
    torch.manual_seed(0)
    a, b = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()

    def fn(x: Tensor, word: str) -> Tensor:
        h = {"a": a(x), "b": b(x)}
        for letter in word:
            h = (
                {"a": torch.tanh(a(h["b"])), "b": h["b"]}
                if letter == "a"
                else {"a": h["a"], "b": torch.tanh(b(h["a"]) + h["b"])}
            )
        return h["a"] + h["b"]

    words = ["abab", "ba", "aabb", "", "bbbaaa"]
    assert_equals_loop(fn, torch.randn(5, 3, dtype=torch.float64), words, policies=["auto", "depth", "agenda", "condense"])


def test_dropout_runs_as_one_batch() -> None:
    model = nn.ModuleDict({"linear": nn.Linear(3, 3), "drop": nn.Dropout(0.5)})
    numbers = weft.plan(lambda x: model["drop"](model["linear"](x)), torch.ones(50, 3)).stats()
    assert numbers["batches"] <= 2 and numbers["rows_max"] == 50 and numbers["fallbacks"] == 0


def test_a_value_asked_for_in_the_middle_leaves_the_rest_right() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(3, 3).double()

    def fn(x: Tensor, ask: bool) -> Any:
        first = linear(x)
        second = torch.tanh(first)
        seen = second.sum().item() if ask else 0.0
        third = linear(second) + first
        return third, second, seen

    x = torch.randn(6, 3, dtype=torch.float64)
    got = weft.batched(fn)(x, [True, False] * 3)
    for i, row in enumerate(x):
        for a, b in zip(got, fn(row, i % 2 == 0), strict=True):
            assert torch.allclose(a[i], torch.as_tensor(b, dtype=a.dtype))


@pytest.mark.parametrize("granularity", ["auto", "cell", "operator"])
def test_a_batch_is_far_fewer_batches_than_nodes(granularity: str) -> None:
    """What makes a batch slower than the loop is one small batch after the other."""
    trees: list[Any] = TREES * 16
    numbers = weft.plan(tree_net(), trees, granularity=granularity).stats()
    assert numbers["nodes"] >= 16 * 15 and numbers["batches"] <= 20
