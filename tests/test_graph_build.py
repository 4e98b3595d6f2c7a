"""Graph: every constructor against hand-written arrays and against a plain Python twin on random input."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import networkx
import numpy as np
import pytest
import torch

from graph_parts import SEEDS, Lists, Tree, arrays, flat, flat_edges, random_edges, random_lists
from weft.api.graph import Graph


def test_a_list_of_lists_is_laid_out_slot_by_slot() -> None:
    graph = Graph([[], [], [0, 1], [2, -1, 0]])
    assert arrays(graph) == ([0, 1, 2, -1, 0], [0, 0, 0, 2, 5], [0, 1, 2, -1, 3])
    assert (graph.num_vertices, graph.num_edges, graph.num_graphs) == (4, 4, 1)


@pytest.mark.parametrize("make", [np.array, torch.tensor, lambda rows: np.array(rows, np.int8), np.asfortranarray])
def test_a_table_keeps_its_empty_slots(make: Any) -> None:
    graph = Graph(make([[-1, -1], [0, -1], [0, 1]]))
    assert arrays(graph) == ([-1, -1, 0, -1, 0, 1], [0, 2, 4, 6], [-1, -1, 0, -1, 1, 2])
    assert Graph(np.zeros((3, 0), dtype=int)) == Graph([[], [], []])


def test_flat_and_offsets_are_the_arrays_themselves() -> None:
    assert Graph(([0, 1, -1], [0, 0, 0, 3])) == Graph([[], [], [0, 1, -1]])
    assert Graph((torch.tensor([0]), np.array([0, 0, 1], np.uint8))) == Graph.chain(2)
    assert Graph(([], [0])) == Graph([])


@pytest.mark.parametrize("seed", SEEDS)
def test_lists_tables_and_flat_arrays_agree_with_the_twin(seed: int) -> None:
    lists = random_lists(np.random.default_rng(seed))
    graph = Graph(lists)
    assert arrays(graph) == flat(lists)
    assert Graph((graph.children, graph.offsets)) == graph
    width = max(map(len, lists), default=0)
    table = [[*slots, *[-1] * (width - len(slots))] for slots in lists]
    assert arrays(Graph(np.array(table, dtype=int).reshape(len(lists), width))) == flat(table)


def test_parents_give_slots_in_vertex_order_and_edge_rows_in_the_order_of_the_parents() -> None:
    assert arrays(Graph.from_parents([2, 2, 3, -1])) == ([0, 1, 2], [0, 0, 0, 2, 3], [0, 1, 2])
    assert arrays(Graph.from_parents([-1, 3, 0, 0])) == ([2, 3, 1], [0, 2, 2, 2, 3], [1, 2, 0])


@pytest.mark.parametrize("seed", SEEDS)
def test_parents_agree_with_the_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 15))
    renamed = rng.permutation(count)
    parents = np.full(count, -1)
    for v in range(count - 1):
        parents[renamed[v]] = renamed[rng.integers(v + 1, count)] if rng.random() < 0.9 else -1
    edges = [(v, int(p)) for v, p in enumerate(parents) if p >= 0]
    assert arrays(Graph.from_parents(parents)) == flat_edges([v for v, _ in edges], [p for _, p in edges], count)


def test_edges_give_slots_in_edge_order_and_repeated_edges_count() -> None:
    graph = Graph.from_edges([1, 0, 2, 0], [2, 1, 0, 1], 4)
    assert arrays(graph) == ([2, 0, 0, 1], [0, 1, 3, 4, 4], [2, 1, 3, 0])
    assert graph.num_edges == 4


@pytest.mark.parametrize("seed", SEEDS)
def test_edges_agree_with_the_twin(seed: int) -> None:
    src, dst, count = random_edges(np.random.default_rng(seed))
    assert arrays(Graph.from_edges(src, torch.tensor(dst), count)) == flat_edges(src, dst, count)


def test_edges_between_more_vertices_than_16_bits_count_are_still_in_edge_order() -> None:
    rng = np.random.default_rng(0)
    count = 200_000
    src, dst = rng.integers(0, count, (2, count))
    dst[: count // 2] %= 70_000
    graph = Graph.from_edges(src, dst, count)
    order = np.argsort(dst, kind="stable")
    np.testing.assert_array_equal(graph.edge_rows, order)
    np.testing.assert_array_equal(graph.children, src[order])
    np.testing.assert_array_equal(np.diff(graph.offsets), np.bincount(dst, minlength=count))


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_a_chain_gathers_the_one_before(n: int) -> None:
    assert arrays(Graph.chain(n)) == flat([[i - 1] if i else [] for i in range(n)])


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
@pytest.mark.parametrize("cols", [0, 1, 3])
def test_a_grid_gathers_up_and_left(rows: int, cols: int) -> None:
    twin = [[(r - 1) * cols + c if r else -1, r * cols + c - 1 if c else -1] for r in range(rows) for c in range(cols)]
    assert arrays(Graph.grid(rows, cols)) == flat(twin)


@pytest.mark.parametrize("leaves", [1, 2, 3, 4, 5, 8, 13, 256])
def test_a_full_binary_tree_has_leaves_first_and_the_root_last(leaves: int) -> None:
    children: Lists = [[] for _ in range(leaves)]
    waiting = list(range(leaves))
    while len(waiting) > 1:
        children.append(waiting[:2])
        waiting = [*waiting[2:], len(children) - 1]
    graph = Graph.full_binary_tree(leaves)
    assert arrays(graph) == flat(children)
    assert graph.roots.tolist() == [2 * leaves - 2]
    assert graph.depth[-1] == (leaves - 1).bit_length()
    assert (np.diff(graph.depth) >= 0).all()


def test_networkx_nodes_and_edges_keep_their_order() -> None:
    directed = networkx.MultiDiGraph()
    directed.add_nodes_from("cab")
    directed.add_edges_from([("b", "a"), ("c", "a"), ("a", "b"), ("c", "a")])
    pairs = [("cab".index(u), "cab".index(v)) for u, v in directed.edges()]
    assert arrays(Graph.from_networkx(directed)) == flat_edges([u for u, _ in pairs], [v for _, v in pairs], 3)
    assert arrays(Graph.from_networkx(networkx.DiGraph([("x", "y"), ("z", "y")]))) == ([0, 2], [0, 0, 2, 2], [0, 1])


def test_an_undirected_networkx_edge_goes_both_ways_and_a_self_loop_once() -> None:
    graph = Graph.from_networkx(networkx.Graph([(0, 1), (1, 1), (1, 2)]))
    assert graph == Graph.from_edges([0, 1, 1, 1, 2], [1, 0, 1, 2, 1], 3)
    assert Graph.from_networkx(networkx.Graph()) == Graph([])


def test_an_nltk_tree_is_numbered_in_post_order() -> None:
    sentence = Tree("S", [Tree("NP", ["I"]), Tree("VP", [Tree("V", ["saw"]), Tree("NP", ["him"]), Tree("*", [])])])
    graph = Graph.from_nltk(sentence)
    assert graph.labels == ["I", "NP", "saw", "V", "him", "NP", "*", "VP", "S"]
    assert arrays(graph)[:2] == flat([[], [0], [], [2], [], [4], [], [3, 5, 6], [1, 7]])[:2]
    assert graph == Graph.from_parents([1, 8, 3, 7, 5, 7, 7, 8, -1])
    both = Graph.batch([graph, graph])
    assert both.labels == graph.labels * 2
    assert Graph.batch([graph, Graph.chain(2)]).labels is None


def test_an_nltk_tree_may_be_deeper_than_the_recursion_limit() -> None:
    tree = Tree("0", ["leaf"])
    for level in range(1, 20_000):
        tree = Tree(str(level), [tree])
    graph = Graph.from_nltk(tree)
    assert graph == Graph.chain(20_001)


def test_pyg_data_is_edge_index_and_num_nodes() -> None:
    data = SimpleNamespace(edge_index=torch.tensor([[1, 0, 2, 0], [2, 1, 0, 1]]), num_nodes=4)
    assert Graph.from_pyg(data) == Graph.from_edges([1, 0, 2, 0], [2, 1, 0, 1], 4)


def test_reversed_turns_edges_round_and_keeps_their_rows() -> None:
    tree = Graph.from_parents([-1, 3, 0, 0])
    assert arrays(tree.reversed()) == ([3, 0, 0], [0, 0, 1, 2, 3], [0, 1, 2])
    assert arrays(Graph([[2, -1], [2, 0], []]).reversed()) == ([1, 0, 1], [0, 1, 1, 3], [2, 0, 1])
    named = Graph.chain(2, types=["a", "b"]).reversed()
    assert named.types == ["a", "b"]


@pytest.mark.parametrize("seed", SEEDS)
def test_reversing_is_exchanging_src_and_dst(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graphs = [random_edges(rng) for _ in range(int(rng.integers(1, 4)))]
    batch = Graph.batch([Graph.from_edges(src, dst, count) for src, dst, count in graphs])
    assert batch.reversed() == Graph.batch([Graph.from_edges(dst, src, count) for src, dst, count in graphs])
    assert batch.reversed().reversed() == batch
    assert arrays(batch.reversed().reversed()) == arrays(batch)


def python_steps(make: Callable[[], Graph]) -> tuple[Graph, int]:
    """A graph, and how many lines of Python made it."""
    steps = 0

    def count(*_: Any) -> Any:
        nonlocal steps
        steps += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        return make(), steps
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Graph.chain(10**6),
        lambda: Graph.grid(1000, 1000),
        lambda: Graph.full_binary_tree(5 * 10**5),
        lambda: Graph.from_parents(np.minimum(np.arange(10**6) * 7919 % 10**6, np.arange(10**6) - 1)),
        lambda: Graph.from_edges(np.arange(10**6), np.arange(10**6)[::-1] // 2, 10**6),
    ],
    ids=["chain", "grid", "full_binary_tree", "from_parents", "from_edges"],
)
def test_a_million_vertices_take_a_few_lines_of_python(make: Callable[[], Graph]) -> None:
    graph, steps = python_steps(make)
    assert graph.num_vertices >= 10**6 - 1
    assert 10 < steps < 1000
    assert len(graph.reversed().key) == 16


def test_batching_takes_as_many_lines_of_python_for_large_graphs_as_for_small() -> None:
    def batched(leaves: int) -> int:
        trees = [Graph.full_binary_tree(leaves) for _ in range(256)]

        def make() -> Graph:
            batch = Graph.batch(trees)
            assert len(batch.children) == len(batch.edge_rows) < len(batch.offsets)
            return batch

        return python_steps(make)[1]

    batched(2)  # compiles what it needs
    assert 256 < batched(2000) < 2 * batched(20)
