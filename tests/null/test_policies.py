"""The scheduling policies, each shown on a program small enough to check by eye and against a naive twin on random ones."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from policy_nodes import (
    CLASSIFY,
    EMBED,
    LEAF,
    NODE,
    Nodes,
    chains,
    classified_trees,
    fewest_steps,
    flat,
    member_edges,
    naive_agenda,
    naive_bound,
    random_nodes,
    unary_binary_trees,
)

from weft.errors import StructureError
from weft.graph.program import Ints
from weft.plan import agenda, bound, levels
from weft.plan.agenda import agenda_steps
from weft.plan.bound import lower_bound
from weft.plan.condense import condense
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


def test_agenda_and_bound_of_a_deep_narrow_program() -> None:
    nodes = chains("ab" * 50_000, "ba" * 50_000)
    assert max(steps_by_agenda(nodes)) + 1 == 100_001
    assert lower_bound(2, *nodes.arrays) == 100_000


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
