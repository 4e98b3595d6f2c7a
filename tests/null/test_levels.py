"""Levels, cycles and components, each by hand and against a naive twin on random programs."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from policy_nodes import (
    Arguments,
    flat,
    longest,
    member_edges,
    naive_levels,
    random_member,
    random_nodes,
)

from weft.errors import StructureError
from weft.graph.program import Ints
from weft.plan import agenda, bound, levels
from weft.plan.bound import lower_bound
from weft.plan.components import components, is_cyclic
from weft.plan.condense import condense, type_edges


@pytest.fixture(params=[0, 2, 32, 10**9], ids=["wide only", "mostly wide", "as shipped", "narrow only"])
def narrow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds walked in numpy, in Python, and in both by turns must not differ."""
    for module in (levels, agenda, bound):
        monkeypatch.setattr(module, "NARROW", request.param)


@pytest.mark.usefixtures("narrow")
def test_levels_count_edges_on_the_longest_path() -> None:
    for seed in range(800):
        arguments = random_nodes(seed).arguments
        member = random_member(seed, len(arguments))
        assert levels.levels(*flat(arguments), member).tolist() == naive_levels(arguments, member), seed


@pytest.mark.usefixtures("narrow")
def test_colevels_count_edges_towards_consumers() -> None:
    for seed in range(800):
        arguments = random_nodes(seed).arguments
        member = random_member(seed, len(arguments))
        readers: Arguments = [[] for _ in arguments]
        for node, of in enumerate(member_edges(arguments, member)):
            for source in of:
                readers[source].append(node)
        expected = [count - 1 for count in longest(readers, [1] * len(readers))]
        assert levels.colevels(*flat(arguments), member).tolist() == expected, seed


def test_levels_within_equal_levels_of_every_group_by_itself() -> None:
    for seed in range(300):
        nodes = random_nodes(seed, most=40)
        label = np.array(nodes.type, dtype=np.int32)
        together = levels.levels_within(*flat(nodes.arguments), label)
        for kind in set(nodes.type):
            alone = levels.levels(*flat(nodes.arguments), label == kind)
            assert together[label == kind].tolist() == alone[label == kind].tolist(), seed


def test_consumers_list_readers_in_the_order_of_arguments() -> None:
    for seed in range(300):
        arguments = random_nodes(seed).arguments
        ptr, readers = levels.consumers(*flat(arguments))
        for node in range(len(arguments)):
            expected = [reader for reader, of in enumerate(arguments) for source in of if source == node]
            assert readers[ptr[node] : ptr[node + 1]].tolist() == expected, seed


def test_stable_order_sorts_keys_beyond_sixteen_bits() -> None:
    keys = np.random.default_rng(0).integers(0, 200_000, 5_000).astype(np.int32) // 7 * 7
    assert levels.stable_order(keys, 200_000).tolist() == sorted(range(len(keys)), key=lambda at: keys[at])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([[], [1]], "cycle: 1 -> 1 (vertex 1 gathers itself)"),
        ([[], [2], [0, 1]], "cycle: 1 -> 2 -> 1 (vertex 1 gathers vertex 2, which gathers vertex 1)"),
        ([[1], [0, 2], [2]], "cycle: 2 -> 2 (vertex 2 gathers itself)"),
        (
            [[2], [0], [1], [0], [3]],
            "cycle: 0 -> 2 -> 1 -> 0 (vertex 0 gathers vertex 2, which gathers vertex 1, which gathers vertex 0)",
        ),
        (
            [[1], [2], [3, 0], [4], [0]],
            "cycle: 0 -> 1 -> 2 -> 0 (vertex 0 gathers vertex 1, which gathers vertex 2, which gathers vertex 0)",
        ),
        (
            [[(node + 1) % 100] for node in range(100)],
            "cycle: 0 -> 1 -> 2 -> ... -> 99 -> 0 "
            "(100 vertices: vertex 0 gathers vertex 1, which gathers vertex 2, ..., which gathers vertex 0)",
        ),
    ],
    ids=["itself", "two", "itself beside two", "three", "a shorter way round", "long"],
)
@pytest.mark.parametrize("function", [levels.levels, levels.colevels])
def test_a_cycle_is_named(arguments: Arguments, message: str, function: Callable[[Ints, Ints], Ints]) -> None:
    with pytest.raises(StructureError, match=f"^{re.escape(message)}$"):
        function(*flat(arguments))


@pytest.mark.usefixtures("narrow")
def test_what_is_named_is_a_cycle_and_every_cycle_is_found() -> None:
    found = 0
    for seed in range(400):
        rng = random.Random(seed)
        count = rng.randint(1, 12)
        arguments = [[rng.randrange(-1, count) for _ in range(rng.randint(0, 2))] for _ in range(count)]
        member = random_member(seed, count)
        edges = member_edges(arguments, member)
        graph = nx.DiGraph([(node, source) for node, of in enumerate(edges) for source in of])
        if nx.is_directed_acyclic_graph(graph):
            assert levels.levels(*flat(arguments), member).tolist() == naive_levels(arguments, member), seed
            continue
        for function in (levels.levels, levels.colevels):
            with pytest.raises(StructureError) as caught:
                function(*flat(arguments), member)
            named = re.findall(r"\d+|\.\.\.", str(caught.value).partition("(")[0])
            assert named[0] == named[-1]
            assert all(graph.has_edge(int(a), int(b)) for a, b in pairwise(named) if "..." not in (a, b))
        found += 1
    assert found > 100


def test_a_cycle_outside_the_members_does_not_matter() -> None:
    member = np.array([True, False, True])
    assert levels.levels(*flat([[1], [0], [0]]), member).tolist() == [0, 0, 1]


def test_levels_of_a_chain_of_a_million() -> None:
    count = 1_000_000
    ptr = np.maximum(np.arange(-1, count), 0).astype(np.int32)
    src = np.arange(count - 1, dtype=np.int32)
    assert np.array_equal(levels.levels(ptr, src), np.arange(count))
    assert np.array_equal(levels.colevels(ptr, src), np.arange(count)[::-1])
    (group,) = condense(1, np.zeros(count, dtype=np.int32), ptr, src)
    assert group.steps == count == lower_bound(1, np.zeros(count, dtype=np.int32), ptr, src)


def test_levels_of_a_wide_graph_of_a_million() -> None:
    count = 1_000_000
    src = (np.random.default_rng(0).random((count, 2)) * np.arange(count)[:, None]).astype(np.int32) - 1
    ptr = (np.arange(count + 1) * 2).astype(np.int32)
    level = levels.levels(ptr, src.ravel())
    below = np.where(src >= 0, level[src], -1).max(axis=1)
    assert np.array_equal(level, below + 1)


def test_components_agree_with_networkx_and_come_producers_first() -> None:
    for seed in range(1500):
        rng = random.Random(seed)
        count = rng.randint(0, 12)
        edges = [(rng.randrange(count), rng.randrange(count)) for _ in range(rng.randint(0, 2 * count))] if count else []
        found = components(count, edges)
        graph = nx.DiGraph(edges)
        graph.add_nodes_from(range(count))
        assert {frozenset(of) for of in found} == {frozenset(of) for of in nx.strongly_connected_components(graph)}, seed
        place = {kind: at for at, of in enumerate(found) for kind in of}
        assert all(place[producer] <= place[consumer] for producer, consumer in edges), seed
        assert found == components(count, rng.sample(edges, len(edges)))
        assert all(list(of) == sorted(of) for of in found)
        on_cycles = {kind for of in nx.simple_cycles(graph) for kind in of} if count < 7 else None
        if on_cycles is not None:
            assert {kind for of in found if is_cyclic(of, edges) for kind in of} == on_cycles, seed


def test_components_of_a_long_chain_of_types_need_no_recursion() -> None:
    count = 50_000
    assert components(count, [(kind + 1, kind) for kind in range(count - 1)])[0] == (count - 1,)
    assert len(components(count, [(kind, (kind + 1) % count) for kind in range(count)])) == 1


def test_type_edges_are_the_same_for_few_types_and_for_thousands() -> None:
    for seed in range(200):
        nodes = random_nodes(seed)
        expected = {(nodes.type[s], nodes.type[node]) for node, of in enumerate(nodes.arguments) for s in of if s >= 0}
        assert type_edges(4, *nodes.arrays) == expected == type_edges(5_000, *nodes.arrays)
