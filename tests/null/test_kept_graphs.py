"""Batches of graphs that C keeps are planned as their programs are, whatever was found out about the graphs before."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from equal_plans import differences

import weft
from weft.api import graph_parts
from weft.api.structure import EVERY_TYPE, ONE_TYPE, Seen, Table, tree_program
from weft.errors import StructureError
from weft.graph.program import NodeType, Port, Program
from weft.plan import native, schedule
from weft.plan.graphs import GraphProgram, Kept, KeptGraphs, collect, plan_graphs
from weft.plan.library import address, library
from weft.plan.plan import Plan
from weft.plan.returns import returns
from weft.plan.shape import PLAN_END, NativePlan
from weft.run.gpu.table import step_table
from weft.run.indices import owners

PORTS = [
    (),
    (Port("slots", (0, 1)),),
    (Port("slots", (2, 0)), Port("sum", (1,))),
    (Port("edges"),),
    (Port("sum"), Port("edges")),
]


@pytest.fixture(autouse=True)
def with_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library() is not None, "these tests need a C compiler: cc, gcc or clang"
    monkeypatch.setattr(import_module("weft.plan.schedule"), "VERIFIES", False)


def random_graph(rng: np.random.Generator, types: int) -> weft.Graph:
    """A DAG, numbered in order or not, in which some types may never read some others."""
    count = int(rng.integers(1, 14))
    number = rng.permutation(count) if rng.random() < 0.3 else np.arange(count)
    children: list[list[int]] = [[] for _ in range(count)]
    for at in range(1, count):
        chosen = rng.integers(-1, at, size=rng.integers(0, 4))
        children[number[at]] = [int(number[child]) if child >= 0 else -1 for child in chosen]
    return weft.Graph(children, types=rng.integers(0, types, size=count))


def random_kinds(rng: np.random.Generator, types: int) -> tuple[NodeType, ...]:
    return tuple(NodeType(f"kind {t}", PORTS[rng.integers(len(PORTS))]) for t in range(types))


def in_numpy(program: Program, max_rows: int | None, monkeypatch: pytest.MonkeyPatch, policy: str = "auto") -> Plan:
    plain = Program(program.types, program.type, program.ptr, program.src)
    with monkeypatch.context() as without:
        without.setattr(native, "library", lambda: None)
        made = schedule.schedule(plain, policy, max_rows)
        returns(made)
    return made


def random_batches(seed: int) -> Iterator[tuple[weft.Graph, Table, tuple[NodeType, ...], int | None]]:
    """The same few graphs in batches of all sizes, seen by models that see them differently."""
    rng = np.random.default_rng(seed)
    pool = [random_graph(rng, 3) for _ in range(12)]
    for _ in range(40):
        chosen = [pool[at] for at in rng.integers(len(pool), size=rng.integers(1, 8))]
        table = (ONE_TYPE, EVERY_TYPE, Table([*rng.permutation(6), *[0] * 57]))[rng.integers(3)]
        yield weft.Graph.batch(chosen), table, random_kinds(rng, 6), (None, 2)[int(rng.random() < 0.3)]


@pytest.mark.parametrize("block", range(4))
def test_batches_are_planned_alike(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from_graphs = 0
    for seed in range(15 * block, 15 * block + 15):
        for graph, table, kinds, max_rows in random_batches(seed):
            program = tree_program(graph, kinds, Seen(graph, table), False)
            assert isinstance(program, GraphProgram)
            from_graphs += plan_graphs(program, "auto", max_rows, 0.0) is not None
            fast, slow = schedule.schedule(program, "auto", max_rows), in_numpy(program, max_rows, monkeypatch)
            found = differences(fast, slow, "plan") + differences(returns(fast), returns(slow), "returns")
            assert not found, (seed, found[:3])
    assert from_graphs > 300  # others have cycles of several types


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("with_returns", [False, True])
def test_a_plan_is_the_same_in_whatever_memory_it_is_made(
    missing: int, with_returns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in memory that just suffices for it, or for it and its returns, and in memory that almost does."""
    whole, at_once = np.empty(1 << 16, np.int32), 0
    for graph, table, kinds, max_rows in random_batches(7):
        program = tree_program(graph, kinds, Seen(graph, table), False)
        assert isinstance(program, GraphProgram)
        known = plan_graphs(program, "auto", max_rows, 0.0)
        if known is None:
            continue
        assert isinstance(known, NativePlan)
        end, slow = known.buffer.item(PLAN_END), in_numpy(program, max_rows, monkeypatch)
        for room in {end - missing, end + known.back_room - missing}:
            whole.fill(-7)
            with monkeypatch.context() as given:
                given.setattr(native.Described, "memory", lambda self, size, room=room: whole[:room])
                fast = plan_graphs(program, "auto", max_rows, 0.0, with_returns)
            assert isinstance(fast, NativePlan)
            assert (whole[room:] == -7).all()
            assert (fast.back is not None) == (with_returns and room >= end + known.back_room > end)
            at_once += fast.back is not None
            found = differences(fast, slow, "plan") + differences(returns(fast), returns(slow), "returns")
            assert not found, (room, found[:3])
    assert (at_once > 10) == (with_returns and not missing)


def test_room_for_a_plan_is_that_of_the_last_one() -> None:
    kinds = (NodeType("node", PORTS[1]), NodeType("leaf"))
    plans = []
    for leaves in (8, 9, 10, 10):
        graph = weft.Graph.batch([weft.Graph.full_binary_tree(leaves)] * 20)
        program = tree_program(graph, kinds, Seen(graph, ONE_TYPE), False)
        assert isinstance(program, GraphProgram)
        plans.append(plan_graphs(program, "auto", None, 0.0, True))
    for plan in plans[1:]:
        assert isinstance(plan, NativePlan)
        assert plan.back is not None
        assert len(plan.buffer) < 1.3 * (plan.buffer.item(PLAN_END) + plan.back_room)


def test_types_that_are_on_a_cycle_only_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself each graph has types on no cycle; in a batch, one feeds the other and the other way round."""
    one, other = weft.Graph([[], [0], [1]], types=[2, 1, 0]), weft.Graph([[], [0], [1]], types=[2, 0, 1])
    kinds = tuple(NodeType(f"kind {t}", (Port("slots"),)) for t in range(6))
    for parts, groups in (([one, one], 3), ([one, other], 2), ([one, one], 3)):
        graph = weft.Graph.batch(parts)
        program = tree_program(graph, kinds, Seen(graph, EVERY_TYPE), False)
        plan = schedule.schedule(program)
        assert len(plan.groups) == groups
        assert differences(plan, in_numpy(program, None, monkeypatch), "plan") == []


def test_a_batch_is_not_merged_to_be_planned() -> None:
    graph = weft.Graph.batch([weft.Graph.full_binary_tree(n) for n in (5, 3, 9)])
    program = tree_program(graph, (NodeType("node", PORTS[1]), NodeType("leaf")), Seen(graph, ONE_TYPE), False)
    assert isinstance(program, GraphProgram)
    assert plan_graphs(program, "auto", None, 0.0) is not None
    assert "_merged" not in graph.__dict__ and "_arrays" not in program.__dict__


def test_a_cycle_is_named() -> None:
    graph = weft.Graph.batch([weft.Graph.chain(2), weft.Graph([[1], [0]])])
    program = tree_program(graph, (NodeType("node", PORTS[1]), NodeType("leaf")), Seen(graph, ONE_TYPE), False)
    with pytest.raises(StructureError, match=r"^cycle: 2 -> 3 -> 2 "):
        schedule.schedule(program)


def test_threads_plan_the_same_graphs_at_once() -> None:
    rng = np.random.default_rng(0)
    kinds = (NodeType("node", PORTS[1]), NodeType("leaf"))
    plans: list[Plan] = []

    def plan(graph: weft.Graph) -> None:
        plans.append(schedule.schedule(tree_program(graph, kinds, Seen(graph, ONE_TYPE), False)))

    for _ in range(20):
        graph = weft.Graph.batch([random_graph(rng, 1) for _ in range(200)])
        plans.clear()
        threads = [threading.Thread(target=plan, args=(graph,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(plans) == 4
        assert not any(differences(plans[0], other, "plan") for other in plans[1:])


class CountingLibrary:
    """Notes which graphs C is to forget."""

    def __init__(self) -> None:
        self.released: list[int] = []

    def weft_release(self, place: bytes) -> None:
        self.released.append(int.from_bytes(place, sys.byteorder))
        library().weft_release(place)


def test_what_c_keeps_goes_with_the_graph_and_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = CountingLibrary()
    monkeypatch.setattr(Kept.__del__, "__defaults__", (lambda: counting,))
    trees = [weft.Graph.full_binary_tree(n) for n in (3, 4)]
    batch = weft.Graph.batch(trees)
    places = [tree._kept.place for tree in trees]
    together = batch.together
    assert isinstance(together, KeptGraphs) and together.found[:2].tolist() == places
    del trees, batch
    gc.collect()
    assert not {*counting.released} & {*places}
    assert together.merged()[0].tolist() == [0, 1, 2, 3, *(5 + child for child in range(6))]
    del together
    assert [counting.released.count(place) for place in places] == [1, 1]


def test_threads_that_batch_a_new_graph_at_once_have_it_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise what one of them has batched by then would be let go of."""
    counting, tree, right = CountingLibrary(), weft.Graph.full_binary_tree(3), graph_parts.keep
    both, done, batches = threading.Barrier(2), threading.Event(), list[weft.Graph]()
    monkeypatch.setattr(Kept.__del__, "__defaults__", (lambda: counting,))

    def keep(*given: Any) -> Kept:
        with contextlib.suppress(threading.BrokenBarrierError):
            if both.wait(0.2):
                done.wait()
        return right(*given)

    def batch() -> None:
        batches.extend([weft.Graph.batch([tree, tree]), weft.Graph.batch([tree, tree])])
        done.set()

    monkeypatch.setattr(graph_parts, "keep", keep)
    threads = [threading.Thread(target=batch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    places = {place for one in batches if isinstance(one.together, KeptGraphs) for place in one.together.found[:2].tolist()}
    assert len(batches) == 4 and places == {tree._kept.place} and not places & {*counting.released}


def test_graphs_are_found_in_memory() -> None:
    trees = tuple(weft.Graph.full_binary_tree(n) for n in (3, 4))
    assert collect(trees) is None  # they are not kept yet
    weft.Graph.batch(trees)
    found = collect(trees)
    assert found is not None and found.found[:2].tolist() == [tree._kept.place for tree in trees]
    for others in ((), (*trees, 3), (*trees, weft.Graph.batch(trees)), (*trees, weft.Graph.chain(2)), ("no graph",)):
        assert collect(others) is None


@pytest.mark.parametrize("seed", range(20))
def test_roots_are_kept(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [random_graph(rng, 3) for _ in range(int(rng.integers(2, 6)))]
    batch = weft.Graph.batch(parts)
    lonely = np.ones(batch.num_vertices, bool)
    lonely[batch.children[batch.children >= 0]] = False
    assert isinstance(batch.together, KeptGraphs)
    assert batch.roots.tolist() == np.flatnonzero(lonely).tolist()
    assert batch.together.root_kinds == sum(1 << kind for kind in set(batch.kinds[lonely].tolist()))
    assert [part.roots.tolist() for part in parts] == [
        (batch.roots[(batch.roots >= start) & (batch.roots < stop)] - start).tolist()
        for start, stop in zip(batch.part_offsets[:-1].tolist(), batch.part_offsets[1:].tolist(), strict=True)
    ]


def device_arrays(plan: Plan) -> list[np.ndarray]:
    found = [*plan.rows, *(read.index for read in plan.reads)]
    found += [read.offsets for read in plan.reads if read.offsets is not None]
    found += [owners(plan, read) for read in plan.reads if read.kind == "edges"]
    return found + [step_table(plan, i) for i, group in enumerate(plan.groups) if group.cyclic]


def test_what_a_device_reads_comes_first_and_aligned() -> None:
    for seed in range(20):
        for graph, table, kinds, max_rows in random_batches(seed):
            plan = schedule.schedule(tree_program(graph, kinds, Seen(graph, table), False), "auto", max_rows)
            backs = returns(plan).values()
            found = [one for back in backs for one in ([back.index, back.offsets] if back.single is None else [back.single])]
            whole, back = native.device_parts(plan, training=True)
            for arrays, part in ((device_arrays(plan), whole), (found, back)):
                for array in arrays:
                    place = address(array) - part[0]
                    assert (place % 16 == 0 and place >= 0 and place + array.nbytes <= 4 * part[1]) or not len(array)


def test_step_tables_and_owners_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = 0
    for seed in range(20):
        for graph, table, kinds, max_rows in random_batches(seed):
            program = tree_program(graph, kinds, Seen(graph, table), False)
            for policy in ("auto", "agenda"):
                fast = schedule.schedule(program, policy, max_rows)
                slow = in_numpy(program, max_rows, monkeypatch, policy)
                for number, group in enumerate(fast.groups):
                    if group.cyclic:
                        tables += 1
                        assert step_table(fast, number).tolist() == step_table(slow, number).tolist()
                for one, other in zip(fast.reads, slow.reads, strict=True):
                    if one.kind == "edges":
                        assert owners(fast, one).tolist() == owners(slow, other).tolist()
    assert tables > 300


def test_graphs_too_large_to_be_told_in_brief_are_planned_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of vertices two bytes can tell so many, and of levels a hundredth of that, with a hundred types; beside small graphs."""
    kinds = (NodeType("node", PORTS[1]), NodeType("leaf"), *[NodeType("unused")] * 98)
    small, most = weft.Graph([[], [], [0, 1], [-1, 2]]), (1 << 16) - 1
    wide, wider = (weft.Graph([*[[]] * (count - 1), [0, count - 2]]) for count in (most, most + 2))
    deep, deeper, deepest = (weft.Graph.chain(count) for count in (most // 100, most // 100 + 5, most // 2))
    for large in ([wide], [wider], [wide, deep, wider], [wide, deeper, wider], [deepest]):
        graph = weft.Graph.batch([small, *large, small])
        program = tree_program(graph, kinds, Seen(graph, ONE_TYPE), False)
        fast = plan_graphs(program, "auto", None, 0.0)
        assert isinstance(program, GraphProgram) and fast is not None
        assert not differences(fast, in_numpy(program, None, monkeypatch), "plan")
