"""`weft.plan`: numbers, text, page and trace of plans; counts are compared with what the engine really calls."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import weft
import weft.nn
from plan_parts import Fold, Given, Size, chains, two_trees, two_types_on_a_cycle
from weft.graph.ops import PRODUCTS
from weft.testing import assert_equivalent
from weft.tools.planned import Planned

CONTRACT = (
    "examples nodes edges types levels batches lower_bound gathers gathers_avoided rows_max arena_bytes record_s plan_s cached "
    "fallbacks complete"
).split()


def timeless(planned: Planned) -> str:
    planned.record_s, planned.plan_s = 0.0021, 0.00034
    return planned.explain()


def test_stats_have_all_promised_keys_and_are_plain_numbers() -> None:
    numbers = weft.plan(*two_trees()).stats()
    assert set(CONTRACT) <= set(numbers)
    assert all(type(value) in (int, float) for value in numbers.values())


def test_numbers_of_two_trees() -> None:
    numbers = weft.plan(*two_trees()).stats()
    known = {
        "examples": 2,
        "nodes": 8,
        "edges": 6,
        "types": 2,
        "groups": 2,
        "levels": 3,
        "steps": 3,
        "batches": 4,  # leaves once, two steps of nodes, the classifier of all nodes once
        "lower_bound": 4,
        "gathers": 4,  # h and c in each of two steps
        "gathers_avoided": 0,
        "rows_max": 5,
        "arena_bytes": 2 * 8 * 16 * 4,
        "cached": 0,
        "fallbacks": 0,
        "complete": 1,
    }
    assert {key: numbers[key] for key in known} == known


def test_chains_read_views_only() -> None:
    numbers = weft.plan(*chains()).stats()
    assert (numbers["levels"], numbers["batches"], numbers["lower_bound"]) == (6, 1 + 1 + 5, 1 + 1 + 5)
    assert (numbers["gathers"], numbers["gathers_avoided"]) == (0, 2 * 5)
    assert numbers["rows_max"] == 9  # the input projection of all vertices that have a child


def test_a_full_tree_takes_one_batch_per_level() -> None:
    numbers = weft.plan(Size(), weft.Graph.full_binary_tree(64)).stats()
    assert (numbers["nodes"], numbers["levels"], numbers["batches"], numbers["lower_bound"]) == (127, 7, 7, 7)


def test_rounds_are_levels() -> None:
    numbers = weft.plan(Size(), weft.Graph.chain(5), rounds=3).stats()
    assert (numbers["nodes"], numbers["levels"], numbers["edges"]) == (3 * 5, 3, 3 * 4)
    assert (numbers["types"], numbers["batches"], numbers["lower_bound"]) == (2, 1 + 3, 1 + 3)  # the first states are a batch


class Decays(weft.VertexFunction):
    """Reads its own state and, if told to, that of its children."""

    def __init__(self, slots: int) -> None:
        super().__init__(state={"n": ()})
        self.slots = slots

    def forward(self, v: Any) -> None:
        v.scatter(n=v.state["n"] / 2 + sum(v.gather(slot)["n"] for slot in range(self.slots)))


class Pulls(weft.VertexFunction):
    """Reads no state at all."""

    def __init__(self) -> None:
        super().__init__(state={"n": ()})

    def forward(self, v: Any) -> None:
        v.scatter(n=2 * v.pull())
        v.push(v.pull() + 1)


@pytest.mark.parametrize("policy", ["auto", "condense", "depth", "agenda"])
def test_rounds_count_the_states_that_are_read(policy: str) -> None:
    ring = weft.Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_vertices=4)
    keys = ("nodes", "edges", "levels", "batches", "lower_bound")
    for model, expected in (
        (Pulls(), (12, 0, 1, 1, 1)),
        (Decays(0), (12, 3 * 4, 3, 4, 4)),
        (Decays(1), (12, 3 * (4 + 4), 3, 4, 4)),
        (Size(), (12, 3 * 4, 3, 4, 4)),
    ):
        x = torch.ones(4) if isinstance(model, Pulls) else None
        numbers = weft.plan(model, ring, x, rounds=3, policy=policy).stats()
        assert tuple(numbers[key] for key in keys) == expected, model
        assert_equivalent(model, ring, x, rounds=3, policies=[policy])


def test_rounds_are_explained_by_what_is_read() -> None:
    ring = weft.Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_vertices=4)
    nothing = weft.plan(Pulls(), ring, torch.ones(4), rounds=3).explain()
    assert nothing.startswith("Pulls: 1 example, 12 nodes, 0 edges, 2 types, 1 level\n1 batch, and no order has fewer;")
    assert "feeds itself" not in nothing and "once: no state of it is read here" not in nothing
    both = weft.plan(Decays(1), ring, rounds=3).explain()
    assert "  - Decays gathers n of its own state and slot 0 by index: " in both


def test_the_second_plan_of_a_structure_comes_from_the_cache() -> None:
    model, graph, x = chains()
    first, second = weft.plan(model, graph, x), weft.plan(model, graph, x)
    assert (first.stats()["cached"], second.stats()["cached"]) == (0, 1)
    assert first.plan is second.plan
    assert first.plan_s > 0 and second.plan_s == 0
    assert "found in the cache" in second.explain()
    model(graph, x)
    assert weft.plan(model, graph, x).cached


def test_max_rows_cuts_steps() -> None:
    model, graph, x = chains()
    numbers = weft.plan(model, graph, x, max_rows=2).stats()
    assert numbers["steps"] > 6 and numbers["batches"] > numbers["lower_bound"] == 7
    assert "  - Steps of more than 2 rows are cut: max_rows=2." in weft.plan(model, graph, x, max_rows=2).explain()


def random_graph(seed: int) -> weft.Graph:
    """A graph without cycles in which every vertex reads up to three earlier ones, some of them twice."""
    chosen = random.Random(seed)
    children = [[chosen.randrange(i) for _ in range(chosen.randint(0, min(i, 3)))] for i in range(chosen.randint(1, 40))]
    types = ["leaf" if not kids else chosen.choice("ab") for kids in children]
    return weft.Graph(children, types=types)


def test_no_plan_has_fewer_batches_than_the_bound() -> None:
    model = weft.Typed({"a": Fold(), "b": Fold(), "leaf": Given()})
    for seed in range(25):
        graph = random_graph(seed)
        for policy in ("condense", "depth", "agenda"):
            planned = weft.plan(model, graph, torch.ones(graph.num_vertices, 4), policy=policy)
            numbers = planned.stats()
            batches = list(planned.pieces.batches())
            assert numbers["lower_bound"] <= numbers["batches"] == len(batches), f"seed {seed}, {policy}"
            assert numbers["rows_max"] == max(batch.rows for batch in batches), f"seed {seed}, {policy}"


class Calls(TorchDispatchMode):
    """Counts the operations that torch is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    @property
    def products(self) -> int:
        return sum(count for name, count in self.names.items() if name in PRODUCTS)


CASES = {"trees": two_trees, "chains": chains, "two types": two_types_on_a_cycle}


@pytest.mark.parametrize("case", CASES)
def test_products_are_those_that_the_engine_computes(case: str) -> None:
    model, graph, x = CASES[case]()
    model(graph, x)
    numbers = weft.plan(model, graph, x).stats()
    with Calls() as inference, torch.no_grad():
        model(graph, x)
    with Calls() as forward:
        out = model(graph, x)
    with Calls() as backward:
        out.sum().backward()
    assert (inference.products, forward.products) == (numbers["products"], numbers["products"])
    assert backward.products == numbers["products_backward"]


@pytest.mark.parametrize(("case", "others"), [("trees", 2), ("chains", 3), ("two types", 2)])
def test_gathers_are_those_that_the_engine_does(case: str, others: int) -> None:
    """Besides states, types that pull select their rows of x unless these come first, and results are selected in order."""
    model, graph, x = CASES[case]()
    model(graph, x)
    numbers = weft.plan(model, graph, x).stats()
    with Calls() as calls, torch.no_grad():
        model(graph, x, backend="eager")  # kernels gather by themselves
    assert calls.names["index_select"] == numbers["gathers"] + others


TWO_TREES = """\
NaryTreeLSTM: 2 examples, 8 nodes, 6 edges, 2 types, 3 levels
4 batches, and no order has fewer; the largest has 5 rows
4 gathers by index, 0 avoided (views); arenas of 1.0 KiB
policy 'auto', recorded in 2.1 ms, planned in 340 µs

Groups, in order
  group  type                             rows  steps  runs
      1  NaryTreeLSTM.leaf (no children)     5      1  once: on no cycle
      2  NaryTreeLSTM.node                   3      2  step by step: feeds itself

Rows of each step
  group 2: NaryTreeLSTM.node
    1 ████████████████████████████████████████████████ 2
    2 ████████████████████████ 1
"""


def test_explain_of_two_trees() -> None:
    text = timeless(weft.plan(*two_trees()))
    assert text.startswith(TWO_TREES)
    assert "  matrix products forward: 3 once + 1 at each of 2 steps\n" in text
    assert text.endswith(
        "What did not merge, and why\n"
        "  - NaryTreeLSTM.node feeds itself: 2 steps, each reads what earlier ones computed.\n"
        "  - NaryTreeLSTM.node gathers h, c of slots 0, 1 by index: children come from several steps (1 of 2\n"
        "    steps); children are read in another order than they are computed (1 of 2 steps)."
    )


ALL_LEAVES = """\
Size: 1 example, 3 nodes, 0 edges, 1 type, 1 level
1 batch, and no order has fewer; the largest has 3 rows
0 gathers by index, 0 avoided (views); arenas of 12 B
policy 'auto', recorded in 2.1 ms, planned in 340 µs

Groups, in order
  group  type                rows  steps  runs
      1  Size (no children)     3      1  once: on no cycle

Operations of each piece, matrix products among them in brackets; before, after, late and sums
run once over all rows, during and back once per step
                      before  during  after  late  back  sums
  Size (no children)       2       -      -     -     -     -
  matrix products forward: 0 once
  backward: nothing requires a gradient

Everything merged: each type runs once, and nothing is gathered by index."""


def test_explain_where_everything_merges() -> None:
    assert timeless(weft.plan(Size(), weft.Graph([[], [], []]))) == ALL_LEAVES


def reasons_in(planned: Planned) -> list[str]:
    _, _, text = planned.explain().partition("What did not merge, and why\n")
    return re.sub(r"\n    ", " ", text).removeprefix("  - ").split("\n  - ")


def test_explain_names_types_on_one_cycle_empty_slots_and_shared_children() -> None:
    assert reasons_in(weft.plan(*two_types_on_a_cycle())) == [
        "Typed.a and Typed.b feed each other, so they are on one cycle: 5 steps, each of one type.",
        "Typed.a gathers h of slots 0, 1 by index: some slots are empty (2 of 3 steps); "
        "some children are read more than once (1 of 3 steps).",
        "Typed.b gathers h of slots 0, 1 by index: children come from several steps (2 of 2 steps).",
    ]


def test_explain_says_what_another_policy_would_save() -> None:
    classify = weft.Typed({"leaf": Given(), "node": Fold(), "top": Fold()})
    graph = weft.Graph([[], [], [0, 1], [2, 0], [2, 1], [3, 1]], types=["leaf", "leaf", "node", "node", "top", "top"])
    x = torch.ones(6, 4)
    assert reasons_in(weft.plan(classify, graph, x, policy="depth"))[0] == (
        "Policy 'depth' keeps all types in one order of 5 steps; policy 'condense' would run Typed.top once."
    )
    assert reasons_in(weft.plan(classify, graph, x))[0].startswith("Typed.node feeds itself: 2 steps")


def test_explain_says_what_is_summed_and_what_is_a_view() -> None:
    model = weft.nn.ChildSumTreeLSTM(3, 4)
    graph = weft.Graph.from_parents([2, 2, 3, -1])
    planned = weft.plan(model, graph, torch.ones(4, 3))
    assert reasons_in(planned) == [
        "ChildSumTreeLSTM feeds itself: 2 steps, each reads what earlier ones computed.",
        "ChildSumTreeLSTM without children is a type of its own: it has no recurrence to wait for, and runs once.",
        "ChildSumTreeLSTM gathers h of all children, summed, by index: children are added up while they are gathered.",
    ]
    views = "Gathers avoided\n  ChildSumTreeLSTM reads h, c as views: the rows of all 2 steps are consecutive\n"
    assert views in planned.explain()


def test_explain_joins_many_steps_and_stays_within_100_columns() -> None:
    model, graph = Size(), weft.Graph.batch([weft.Graph.chain(500), weft.Graph.chain(250)])
    text = weft.plan(model, graph).explain()
    assert "\n       1-41 ████████████████████████████████████████████████ 2\n" in text
    assert max(map(len, text.splitlines())) <= 100


class Branching(weft.VertexFunction):
    """Depends on the values of tensors, so that it cannot be traced."""

    def __init__(self) -> None:
        super().__init__(state={"h": (4,)})

    def forward(self, v: Any) -> None:
        h = v.gather(0)["h"] + v.pull()
        v.scatter(h=2 * h if h.sum().item() > 0 else h)


def test_a_cell_that_falls_back_counts_and_is_explained() -> None:
    with pytest.warns(weft.FallbackWarning):
        planned = weft.plan(Branching(), weft.Graph.chain(4), torch.ones(4, 4))
    numbers = planned.stats()
    assert (numbers["fallbacks"], numbers["batches"], numbers["lower_bound"]) == (2, 4, 4)
    first, second, *_ = reasons_in(planned)
    assert first.startswith(
        "Branching (no children) runs by slower batching, its operations do not show here: what it does depends on"
    )
    assert second.startswith(
        "Branching runs by slower batching, its operations do not show here: what it does depends on the values"
    )


def test_an_empty_batch_has_a_plan() -> None:
    planned = weft.plan(Size(), weft.Graph([]))
    assert planned.explain() == "Size: no nodes, nothing to run"
    numbers = planned.stats()
    assert (numbers["nodes"], numbers["batches"], numbers["lower_bound"], numbers["levels"], numbers["rows_max"]) == (0,) * 5
    assert "0 examples" not in planned._repr_html_() and "0 nodes" in planned._repr_html_()


def test_repr_is_one_line() -> None:
    assert repr(weft.plan(*two_trees())) == (
        "<plan of NaryTreeLSTM: examples=2, nodes=8, types=2, levels=3, batches=4, lower_bound=4, gathers=4, gathers_avoided=0>"
    )


@pytest.mark.parametrize(
    ("fn", "inputs", "message"),
    [
        (3, (1,), "weft.plan: expected a model, a block or a function, got int"),
        (nn.Linear(1, 1), (1,), "no argument holds examples: pass a list, a tuple or a tensor of them"),
        (Size(), (), "weft.plan: Size takes a graph and, perhaps, x; got 0 inputs besides the model"),
        (Size(), ([[]],), "Size: expected a weft.Graph, got list"),
    ],
)
def test_what_cannot_be_planned_is_said(fn: Any, inputs: tuple[Any, ...], message: str) -> None:
    with pytest.raises(weft.TypeMismatch) as caught:
        weft.plan(fn, *inputs)
    assert str(caught.value) == message


def test_a_collated_batch_is_planned_as_its_graphs() -> None:
    model, graphs = Size(), [weft.Graph.chain(3), weft.Graph.full_binary_tree(4)]
    batch, _ = weft.data.collate(model)(graphs)
    numbers = weft.plan(model, batch).stats()
    assert (numbers["examples"], numbers["nodes"]) == (2, 10)


def test_unknown_options_are_named() -> None:
    with pytest.raises(weft.TypeMismatch, match="unknown option 'polcy'"):
        weft.plan(Size(), weft.Graph.chain(2), polcy="depth")


def test_planning_runs_nothing() -> None:
    model = weft.nn.LSTM(3, 4)
    weft.plan(model, weft.Graph.chain(4), torch.ones(4, 3))
    with Calls() as calls:
        planned = weft.plan(model, weft.Graph.chain(10), torch.ones(10, 3))
        planned.stats(), planned.explain(), planned._repr_html_()
    assert not planned.cached and calls.products == 0 and not calls.names.keys() & {"tanh", "sigmoid", "index_select"}


IMPORTS = """
import sys, torch
lines = ["import weft", "import weft.plan", "import weft.plan.levels", "from weft.plan import schedule", "import weft.nn"]
for first in lines:
    for name in [name for name in sys.modules if name.split(".")[0] == "weft"]:
        del sys.modules[name]
    space = {}
    for line in (first, "import weft", "import weft.plan.schedule", "from weft.plan.levels import levels"):
        exec(line, space)
    assert space["weft"].plan.__module__ == "weft.tools.planned", first
    assert space["levels"].__module__ == "weft.plan.levels", first
    assert sys.modules["weft.plan.schedule"].schedule.__module__ == "weft.plan.schedule", first
print("both")
"""


def test_the_function_and_the_folder_of_the_same_name_both_work_in_any_order_of_imports() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert done.stdout == "both\n", done.stderr
