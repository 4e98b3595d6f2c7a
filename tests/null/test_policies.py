"""The scheduling policies, each shown on a program small enough to check by eye and against a naive twin on random ones."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from policy_nodes import (
    CLASSIFY,
    EMBED,
    LEAF,
    NODE,
    Arguments,
    Nodes,
    chains,
    classified_trees,
    fewest_steps,
    flat,
    longest,
    member_edges,
    naive_agenda,
    naive_bound,
    naive_levels,
    random_member,
    random_nodes,
    unary_binary_trees,
)

from weft.errors import StructureError
from weft.graph.program import Ints
from weft.plan import agenda, bound, levels
from weft.plan.agenda import agenda_steps
from weft.plan.bound import lower_bound
from weft.plan.components import components, is_cyclic
from weft.plan.condense import condense, type_edges
from weft.plan.depth import depth_steps


def condensed_steps(nodes: Nodes) -> list[int]:
    """The groups of `condense` one after the other, as one step number per node."""
    step = [-1] * len(nodes.type)
    start = 0
    for group in condense(nodes.num_types, *nodes.arrays):
        for node, own in zip(group.nodes.tolist(), group.step.tolist(), strict=True):
            step[node] = start + own
        start += group.steps
    return step


def assert_valid(nodes: Nodes, step: Sequence[int]) -> None:
    """Every node runs once, after its arguments; a step runs one type; steps are numbered without holes."""
    assert sorted(set(step)) == list(range(max(step, default=-1) + 1))
    kinds: dict[int, int] = {}
    for node, own in enumerate(step):
        assert kinds.setdefault(own, nodes.type[node]) == nodes.type[node]
        assert all(step[source] < own for source in nodes.arguments[node] if source >= 0)


def all_levels(nodes: Nodes) -> Ints:
    return levels.levels(*flat(nodes.arguments))


def steps_by_depth(nodes: Nodes) -> list[int]:
    step: list[int] = depth_steps(nodes.arrays[0], all_levels(nodes)).tolist()
    return step


def steps_by_agenda(nodes: Nodes) -> list[int]:
    type, ptr, src = nodes.arrays
    step: list[int] = agenda_steps(type, all_levels(nodes), ptr, src).tolist()
    return step


@pytest.fixture(params=[0, 2, 32, 10**9], ids=["wide only", "mostly wide", "as shipped", "narrow only"])
def narrow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds walked in numpy, in Python, and in both by turns must not differ."""
    for module in (levels, agenda, bound):
        monkeypatch.setattr(module, "NARROW", request.param)


def order_of(nodes: Nodes, step: Sequence[int]) -> str:
    """The types of the steps in order, as letters."""
    kind = dict(zip(step, nodes.type, strict=True))
    return "".join(chr(ord("a") + kind[at]) for at in range(len(kind)))


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


def test_agenda_and_bound_of_a_deep_narrow_program() -> None:
    nodes = chains("ab" * 50_000, "ba" * 50_000)
    assert max(steps_by_agenda(nodes)) + 1 == 100_001
    assert lower_bound(2, *nodes.arrays) == 100_000


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


@pytest.mark.usefixtures("narrow")
def test_every_order_is_valid_and_none_is_below_the_bound() -> None:
    for seed in range(800):
        nodes = random_nodes(seed, types=1 + seed % 5)
        least = lower_bound(nodes.num_types, *nodes.arrays)
        assert least == naive_bound(nodes), seed
        for step in (steps_by_depth(nodes), steps_by_agenda(nodes), condensed_steps(nodes)):
            assert_valid(nodes, step)
            assert max(step, default=-1) + 1 >= least, seed


@pytest.mark.usefixtures("narrow")
def test_agenda_equals_its_naive_twin() -> None:
    for seed in range(500):
        nodes = random_nodes(seed)
        assert steps_by_agenda(nodes) == naive_agenda(nodes, all_levels(nodes).tolist(), fixed_mean=False), seed


def test_agenda_of_members_is_the_agenda_of_their_subgraph() -> None:
    for seed in range(300):
        nodes = random_nodes(seed, most=60)
        type, ptr, src = nodes.arrays
        member = np.random.default_rng(seed).random(len(type)) < 0.7
        number = np.cumsum(member) - 1
        kept = [[int(number[s]) for s in of] for of in member_edges(nodes.arguments, member)]
        inside = Nodes(type[member].tolist(), [kept[node] for node in np.flatnonzero(member)])
        step = agenda_steps(type, levels.levels(ptr, src, member), ptr, src, member)
        assert step[member].tolist() == steps_by_agenda(inside), seed
        assert set(step[~member].tolist()) <= {-1}


def test_bound_and_orders_enclose_the_fewest_steps() -> None:
    reached = 0
    for seed in range(300):
        nodes = random_nodes(seed, most=9, types=3)
        fewest = fewest_steps(nodes)
        assert lower_bound(nodes.num_types, *nodes.arrays) <= fewest <= max(condensed_steps(nodes), default=-1) + 1, seed
        reached += fewest == max(condensed_steps(nodes), default=-1) + 1
    assert reached > 270


def test_depth_runs_levels_in_order_and_types_in_order_within() -> None:
    nodes = chains("ab", "ba", "c")
    assert order_of(nodes, steps_by_depth(nodes)) == "abcab"


def test_depth_numbers_steps_the_same_when_few_of_many_pairs_occur() -> None:
    level = np.arange(2_000, dtype=np.int32)
    few, many = np.arange(2_000, dtype=np.int32) % 2, np.arange(2_000, dtype=np.int32) % 2 * 1_000
    assert depth_steps(few, level).tolist() == depth_steps(many, level).tolist() == level.tolist()


def test_depth_scatters_the_classifier_over_levels() -> None:
    nodes = classified_trees(64, seed=0)
    type, level = nodes.arrays[0], all_levels(nodes)
    step = depth_steps(type, level)
    tree_levels = len(np.unique(level[(type == LEAF) | (type == NODE)]))
    assert len(np.unique(step[type == CLASSIFY])) == tree_levels > 8


def test_agenda_waits_with_the_type_that_lies_higher() -> None:
    nodes = chains("acb", "ab")
    assert order_of(nodes, steps_by_depth(nodes)) == "abcb"
    assert order_of(nodes, steps_by_agenda(nodes)) == "acb"


def test_agenda_beats_depth_on_unary_binary_trees() -> None:
    for seed in range(5):
        nodes = unary_binary_trees(64, seed)
        assert max(steps_by_agenda(nodes)) < max(steps_by_depth(nodes))


def test_agenda_by_what_is_left_beats_the_fixed_mean_where_types_feed_each_other() -> None:
    for seed in range(5):
        nodes = unary_binary_trees(16, seed)
        assert max(steps_by_agenda(nodes)) < max(naive_agenda(nodes, all_levels(nodes).tolist(), fixed_mean=True))


def test_agenda_by_what_is_left_loses_to_the_fixed_mean_where_a_later_type_is_ready_early() -> None:
    nodes = chains("c", "abbc")
    assert order_of(nodes, steps_by_agenda(nodes)) == "abcbc"
    assert order_of(nodes, naive_agenda(nodes, all_levels(nodes).tolist(), fixed_mean=True)) == "abbc"


def test_agenda_loses_to_depth_where_it_runs_a_low_type_to_its_end() -> None:
    nodes = chains("aa", "bab")
    assert order_of(nodes, steps_by_depth(nodes)) == "abab"
    assert order_of(nodes, steps_by_agenda(nodes)) == "aabab"


def test_condense_runs_what_is_on_no_cycle_once() -> None:
    nodes = classified_trees(64, seed=1)
    type, level = nodes.arrays[0], all_levels(nodes)
    groups = condense(nodes.num_types, *nodes.arrays)
    deepest = int(level[type == NODE].max()) - 1
    assert [(group.types, group.cyclic, group.steps) for group in groups] == [
        ((EMBED,), False, 1),
        ((LEAF,), False, 1),
        ((NODE,), True, deepest),
        ((CLASSIFY,), False, 1),
    ]
    assert sorted(np.concatenate([group.nodes for group in groups]).tolist()) == list(range(len(type)))
    assert deepest + 3 == lower_bound(nodes.num_types, *nodes.arrays)


def test_condense_beats_depth_and_agenda_on_classified_trees() -> None:
    for seed in range(5):
        nodes = classified_trees(64, seed)
        assert max(condensed_steps(nodes)) < 0.7 * max(steps_by_depth(nodes))
        assert max(condensed_steps(nodes)) < max(steps_by_agenda(nodes))


def test_condense_takes_the_better_of_depth_and_agenda_inside_a_cycle() -> None:
    by_agenda, by_depth = chains("acb", "ab", "abc"), chains("aa", "bab")
    assert order_of(by_depth, condensed_steps(by_depth)) == "abab"
    groups = condense(3, *by_agenda.arrays)
    assert [group.types for group in groups] == [(0,), (1, 2)]
    assert max(condensed_steps(by_agenda)) == min(max(steps_by_agenda(by_agenda)), max(steps_by_depth(by_agenda)))
    for seed in range(5):
        nodes = unary_binary_trees(64, seed)
        assert max(condensed_steps(nodes)) < max(steps_by_depth(nodes))


def test_condense_reaches_the_bound_when_no_cycle_has_several_types() -> None:
    reached = 0
    for seed in range(800):
        nodes = random_nodes(seed)
        groups = condense(nodes.num_types, *nodes.arrays)
        if all(len(group.types) == 1 for group in groups):
            assert sum(group.steps for group in groups) == lower_bound(nodes.num_types, *nodes.arrays), seed
            reached += 1
    assert reached > 100


def test_condense_lets_one_odd_example_pull_the_classifier_onto_the_cycle() -> None:
    nodes = classified_trees(8, seed=2)
    plain = sum(group.steps for group in condense(nodes.num_types, *nodes.arrays))
    nodes.add(NODE, nodes.add(CLASSIFY, 0), 0)
    groups = condense(nodes.num_types, *nodes.arrays)
    assert [group.types for group in groups] == [(EMBED,), (LEAF,), (NODE, CLASSIFY)]
    assert_valid(nodes, condensed_steps(nodes))
    assert sum(group.steps for group in groups) > plain


def test_condense_uses_the_levels_it_is_given_and_asks_only_for_cycles() -> None:
    nodes = classified_trees(8, seed=3)
    type, ptr, src = nodes.arrays
    asked: list[tuple[int, ...]] = []

    def level_of(types: tuple[int, ...]) -> Ints:
        asked.append(types)
        return levels.levels(ptr, src, np.isin(type, types))

    given, computed = condense(4, type, ptr, src, level_of), condense(4, type, ptr, src)
    assert asked == [(NODE,)]
    assert [group.step.tolist() for group in given] == [group.step.tolist() for group in computed]


def test_condense_names_a_cycle_of_nodes() -> None:
    nodes = Nodes([0, 1, 2, 1], [[], [0, 3], [1], [2]])
    message = "cycle: 1 -> 3 -> 2 -> 1 (vertex 1 gathers vertex 3, which gathers vertex 2, which gathers vertex 1)"
    with pytest.raises(StructureError, match=f"^{re.escape(message)}$"):
        condense(3, *nodes.arrays)


def test_nothing_to_run_takes_no_steps() -> None:
    nodes = Nodes([], [])
    assert condense(3, *nodes.arrays) == []
    assert lower_bound(3, *nodes.arrays) == 0
    assert steps_by_depth(nodes) == steps_by_agenda(nodes) == []


def test_bound_lies_below_the_fewest_steps_where_types_wait_for_each_other() -> None:
    nodes = chains("ab", "ba")
    assert lower_bound(2, *nodes.arrays) == 2
    assert fewest_steps(nodes) == 3 == max(condensed_steps(nodes)) + 1
