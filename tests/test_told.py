"""What a plan's numbers tell is what its arrays say; and plans of equal traits answer alike."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch

from weft.graph.program import NodeType, Port, Program
from weft.plan.plan import NOT_A_SLICE, Plan
from weft.plan.returns import returns
from weft.plan.schedule import schedule
from weft.plan.shape import native
from weft.run.gpu.onecall.numbers import floor
from weft.run.gpu.table import largest_step, step_sizes, step_table
from weft.run.indices import Indices
from weft.run.told import FACTS, PLAN, Told

CPU = torch.device("cpu")
BINARY, BAG, EACH = Port("slots", (0, 1)), Port("sum", (0,)), Port("edges", (0,))
KINDS = [
    (NodeType("leaf"), NodeType("node", (BINARY,))),
    (NodeType("leaf"), NodeType("node", (BAG,)), NodeType("top", (EACH,), outputs=2)),
    (NodeType("a", (BINARY, EACH)), NodeType("b", (BAG,))),
    (NodeType("cell", (Port("slots", (0,)),)),),
]


def random_plan(seed: int) -> Plan:
    """Nodes that read one of the nodes before them each, or several, or none; numbered up or down."""
    rng = np.random.default_rng(seed)
    types, n = KINDS[seed % len(KINDS)], int(rng.integers(1, 14))
    once, chain = rng.random() < 0.5, rng.random() < 0.3
    type = rng.integers(len(types), size=n) if not chain else np.minimum(np.arange(n), len(types) - 1)
    free, lists = list[int](), list[list[int]]()
    for node in range(n):
        many = int(rng.integers(0, 3)) if not chain else min(node, 1)
        if once:
            lists.append([free.pop() for _ in range(min(many, len(free)))])
        else:
            lists.append([node - 1 if chain else int(rng.integers(-1, node)) for _ in range(many)])
        free.append(node)
    ptr = np.cumsum([0, *map(len, lists)])
    arrays = type, ptr, np.array([one for each in lists for one in each])
    return schedule(Program(types, *[array.astype(np.int32) for array in arrays]))


def brought(plan: Plan) -> Indices:
    indices = Indices.of(plan, CPU)
    indices.bring(True)
    return indices


def facts(plan: Plan) -> dict[Hashable, Callable[[Indices], Any]]:
    """All that can be told of a plan, by the keys of recipes, and how it is found otherwise."""
    found: dict[Hashable, Any] = {"nodes": lambda i: i.plan.program.num_nodes}
    for t in plan.present:
        found["rows", t] = lambda i, t=t: len(i.plan.rows[t])
        found["nodes", t] = found["fed rows", t] = lambda i, t=t: i.tensor(i.plan.rows[t])
        found["part of rows", t, 2] = lambda i, t=t: len(i.plan.rows[t]) // 2
        found["widest", t, None] = lambda i, t=t: max(i.step_cuts(t).sizes)
    for number, one in enumerate(plan.classes):
        found["class", number] = lambda i, one=one: one.rows + one.has_empty
    for output, rows in plan.class_row.items():
        found["class first", *output] = lambda i, rows=rows: int(rows[0])
    for number, read in enumerate(plan.reads):
        found["index", number] = lambda i, read=read: i.tensor(read.index)
        found["many", number] = found["edges", number] = lambda i, read=read: len(read.index)
        found["first", number] = lambda i, read=read: int(read.slices[0])
        found["starts", number] = lambda i, read=read: read.slices.ctypes.data
        found["class rows", number] = lambda i, read=read: i.plan.classes[read.value_class].rows
        if read.offsets is not None:
            found["bounds", number] = lambda i, read=read: i.tensor(read.offsets)
        if read.kind == "edges":
            found["owners", number] = lambda i, read=read: i.owners(read)
    for number, group in enumerate(plan.groups):
        where = group.step_lo.ctypes.data, group.step_hi.ctypes.data, group.steps
        found["steps", number] = found["turns", number, False, 0, ()] = lambda i, where=where: where
        if group.cyclic:
            found["table", number] = lambda i, number=number: i.tensor(step_table(i.plan, number))
    for way, back in returns(plan).items():
        found["many", way] = lambda i, back=back: back.last - back.first
        found["first of", way] = lambda i, back=back: back.first
        found["slice", way] = lambda i, back=back: int(back.slices[0])
        found["back index", way] = lambda i, way=way: i.back(*way).index
        found["back bounds", way] = lambda i, way=way: i.back(*way).bounds
        found["from", *way[:1], 0, way] = lambda i, way=way, back=back: int(i.plan.class_row[way[0], 0][0]) - back.first
        if back.single is not None:
            found["single", way] = lambda i, way=way: i.back(*way).single
    return found


def value(told: Told, indices: Indices) -> Any:
    """What a text means: a number, or the integers at an address."""
    space: dict[str, Any] = {"FLOOR": floor, **dict(zip(PLAN, indices.told, strict=True))}
    number = eval(told.text, space)
    return number if told.rows is None else list((ctypes.c_int32 * eval(told.rows, space)).from_address(number))


def kind(key: Any) -> tuple[Any, ...]:
    what, *rest = key if isinstance(key, tuple) else (key,)
    return what, len(rest), *[isinstance(one, tuple) for one in rest[-1:]]


def test_what_numbers_tell_is_what_the_arrays_say() -> None:
    seen = set()
    for seed in range(400):
        plan = random_plan(seed)
        indices, expected = brought(plan), facts(plan)
        texts, space = indices.texts(expected), dict(zip(PLAN, indices.told, strict=True))
        for numbers, place in ((space["n"], space["n_at"]), (space["b"], space["b_at"])):  # C reads them there
            assert list((ctypes.c_int32 * len(numbers)).from_address(place)) == numbers
        for key, told in texts.items():
            wanted = expected[key](indices)
            assert value(told, indices) == (wanted.tolist() if isinstance(wanted, torch.Tensor) else wanted), (seed, key)
            seen.add(kind(key))
        untold = {kind(key)[0] for key in expected.keys() - texts.keys()}
        assert untold <= {"widest", "class rows", "back index", "back bounds"}
    assert seen == set(FACTS)


def answers(indices: Indices) -> dict[Hashable, Any]:
    """To everything that recipes ask and that does not depend on numbers of rows."""
    plan, found = indices.plan, dict[Hashable, Any]()
    for t in plan.present:
        found["in order", t], found["all nodes", t] = indices.rows(t) is None, indices.nodes(t) is None
    for output in plan.class_row:
        found["range", output] = isinstance(indices.class_rows(*output), tuple)
    for read in plan.reads:
        one = indices.read(read)
        found["slice", read.type, read.port], found["slices", read.type, read.port] = (
            one.whole_slice is not None,
            one.all_slices,
        )
    for way, back in returns(plan).items():
        one_reader = back.single is not None
        found[way] = one_reader, one_reader and back.count == len(back.single), back.slices[0] != NOT_A_SLICE
        (mine,) = [read.value_class for read in plan.reads if (read.type, read.port) == way[:2]]
        for output in [one for one in plan.classes[mine].members if plan.group_of[one[0]] == back.group]:
            found[way, output] = indices.class_rows(*output) == (back.first, back.last)
    found["empty"] = [one.has_empty for one in plan.classes]
    return found


def test_plans_of_equal_traits_answer_alike() -> None:
    known: dict[Hashable, Any] = {}
    repeated = 0
    for seed in range(3000):
        plan = random_plan(seed)
        indices = brought(plan)
        now = answers(indices)
        repeated += indices.traits(back=True) in known
        assert known.setdefault(indices.traits(back=True), now) == now, seed
    assert len(known) > 100 and repeated > 500


def test_rows_that_a_program_names_are_not_told() -> None:
    program = random_plan(0).program
    fed = Program(program.types, program.type, program.ptr, program.src, feed=program.type)
    plan = schedule(fed)
    indices = brought(plan)
    t = plan.present[0]
    assert indices.texts([("fed rows", t), ("nodes", t)]).keys() == {("nodes", t)}
    known: Any = native(plan)
    assert indices.traits(back=True) == (known.layout, known.back_traits, False)


def test_the_largest_step_is_told() -> None:
    for seed in range(50):
        plan = random_plan(seed)
        for number in range(len(plan.groups)):
            assert largest_step(plan, number) == max(step_sizes(plan, number))
