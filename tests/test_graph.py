"""Graph: every constructor against hand-written arrays and against a plain Python twin on random input."""

from __future__ import annotations

import copy
import pickle
import time
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import networkx
import numpy as np
import pytest
import torch

from weft.api.graph import Graph
from weft.errors import StructureError

SEEDS = range(60)
Lists = list[list[int]]


def arrays(graph: Graph) -> tuple[list[int], list[int], list[int]]:
    for array in (graph.children, graph.offsets, graph.edge_rows, graph.part_offsets):
        assert array.dtype == np.int32
        assert array.flags.c_contiguous
        assert not array.flags.writeable
    return graph.children.tolist(), graph.offsets.tolist(), graph.edge_rows.tolist()


def flat(children: Lists, rows: Lists | None = None) -> tuple[list[int], list[int], list[int]]:
    """Twin of the layout: children, offsets and edge rows (counted slot by slot unless given)."""
    offsets, out, out_rows, edge = [0], [], [], 0
    for vertex, slots in enumerate(children):
        for slot, child in enumerate(slots):
            out.append(child)
            out_rows.append(-1 if child < 0 else edge if rows is None else rows[vertex][slot])
            edge += child >= 0
        offsets.append(len(out))
    return out, offsets, out_rows


def flat_edges(src: list[int], dst: list[int], count: int) -> tuple[list[int], list[int], list[int]]:
    """Twin of from_edges."""
    children: Lists = [[] for _ in range(count)]
    rows: Lists = [[] for _ in range(count)]
    for row, (u, v) in enumerate(zip(src, dst, strict=True)):
        children[v].append(u)
        rows[v].append(row)
    return flat(children, rows)


def random_lists(rng: np.random.Generator, acyclic: bool = False) -> Lists:
    count = int(rng.integers(0, 12))
    return [
        [int(rng.integers(-1, v if acyclic else count)) for _ in range(rng.integers(0, 4))] if rng.random() < 0.7 else []
        for v in range(count)
    ]


def random_edges(rng: np.random.Generator) -> tuple[list[int], list[int], int]:
    count = int(rng.integers(1, 10))
    edges = int(rng.integers(0, 25))
    return rng.integers(0, count, edges).tolist(), rng.integers(0, count, edges).tolist(), count


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


class Tree(list[Any]):
    """What `nltk.Tree` offers, as far as it is read."""

    def __init__(self, label: str, children: list[Any]) -> None:
        super().__init__(children)
        self._label = label

    def label(self) -> str:
        return self._label


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


@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_counts_on_from_part_to_part(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [Graph(random_lists(rng)) if rng.random() < 0.5 else Graph.from_edges(*random_edges(rng)) for _ in range(4)]
    children, offsets, rows, vertices, edges = [], [0], [], 0, 0
    for part in parts:
        children += [c + vertices if c >= 0 else -1 for c in part.children.tolist()]
        rows += [r + edges if r >= 0 else -1 for r in part.edge_rows.tolist()]
        offsets += [o + offsets[-1] for o in np.diff(part.offsets).cumsum().tolist()]
        vertices += part.num_vertices
        edges += part.num_edges
    batch = Graph.batch(parts)
    assert arrays(batch) == (children, offsets, rows)
    assert (batch.num_vertices, batch.num_edges, batch.num_graphs) == (vertices, edges, 4)
    assert sorted(rows)[rows.count(-1) :] == list(range(edges))
    assert batch.graph_of.tolist() == [i for i, part in enumerate(parts) for _ in range(part.num_vertices)]
    nested = Graph.batch([Graph.batch(parts[:2]), Graph.batch([]), parts[2], Graph.batch(parts[3:])])
    assert nested == batch
    assert all(a is b for a, b in zip(nested.parts, parts, strict=True))


def test_batches_of_none_and_of_one() -> None:
    empty = Graph.batch([])
    assert (empty.num_vertices, empty.num_edges, empty.num_graphs) == (0, 0, 0)
    assert arrays(empty) == ([], [0], [])
    assert empty.parts == () and empty.part_offsets.tolist() == [0]
    assert empty.split(torch.zeros(0, 3)) == [] and empty.split(np.zeros((0, 3))) == []
    assert empty.depth.tolist() == empty.roots.tolist() == empty.leaves.tolist() == empty.graph_of.tolist() == []
    assert repr(empty) == "Graph(vertices=0, edges=0, graphs=0)"
    one = Graph.chain(3)
    assert Graph.batch([one]) is one
    assert Graph.batch(iter([one])).parts == (one,)


@pytest.mark.parametrize("seed", SEEDS)
def test_roots_leaves_and_depth_agree_with_the_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [random_lists(rng, acyclic=True) for _ in range(3)]
    depth: list[int] = []
    roots, leaves, base = [], [], 0
    for lists in parts:
        for slots in lists:
            depth.append(max([depth[base + c] + 1 for c in slots if c >= 0], default=0))
        gathered = {c for slots in lists for c in slots}
        roots += [base + v for v in range(len(lists)) if v not in gathered]
        leaves += [base + v for v, slots in enumerate(lists) if all(c < 0 for c in slots)]
        base += len(lists)
    graph = Graph.batch([Graph(lists) for lists in parts])
    assert (graph.roots.tolist(), graph.leaves.tolist(), graph.depth.tolist()) == (roots, leaves, depth)


def test_a_cycle_may_be_built_and_only_depth_refuses_it() -> None:
    graph = Graph([[1], [2], [0], []])
    assert graph.roots.tolist() == [3] and graph.leaves.tolist() == [3]
    with pytest.raises(StructureError) as error:
        _ = graph.depth
    assert str(error.value).startswith("cycle: ")
    with pytest.raises(StructureError) as error:
        _ = Graph.batch([Graph.chain(3), Graph([[1], [0]])]).depth
    assert str(error.value) == "graph 1 of 2: cycle: 0 -> 1 -> 0 (vertex 0 gathers vertex 1, which gathers vertex 0)"


def test_types_are_ids_or_names() -> None:
    ids = Graph.chain(3, types=torch.tensor([2, 0, 2]))
    assert (ids.type_ids.tolist(), ids.type_names, ids.types.tolist()) == ([2, 0, 2], None, [2, 0, 2])
    names = Graph.chain(3, types=np.array(["node", "leaf", "node"]))
    assert (names.type_ids.tolist(), names.type_names, names.types) == ([1, 0, 1], ("leaf", "node"), ["node", "leaf", "node"])
    none = Graph.chain(3)
    assert (none.type_ids, none.type_names, none.types) == (None, None, None)
    assert Graph([], types=[]).type_ids.tolist() == []
    assert len({ids, names, none, Graph.chain(3, types=[1, 0, 1])}) == 4


def test_a_batch_counts_type_names_anew() -> None:
    parts = [Graph.chain(1, types=["b"]), Graph.chain(2, types=["c", "a"]), Graph([]), Graph.chain(2, types=["b", "b"])]
    batch = Graph.batch(parts)
    assert (batch.type_names, batch.types) == (("a", "b", "c"), ["b", "c", "a", "b", "b"])
    assert batch.type_ids.dtype == np.int32 and not batch.type_ids.flags.writeable
    assert Graph.batch([parts[0], parts[3]]).type_names == ("b",)
    ids = Graph.batch([Graph.chain(2, types=[3, 1]), Graph([]), Graph.chain(1, types=[7])])
    assert (ids.type_names, ids.types.tolist()) == (None, [3, 1, 7])
    assert Graph.batch([Graph.chain(2), Graph.chain(1)]).types is None


def test_split_gives_one_view_per_graph() -> None:
    graph = Graph.batch([Graph.chain(2), Graph([]), Graph.chain(3)])
    rows = torch.arange(10.0).reshape(5, 2)
    pieces = graph.split(rows)
    assert [piece.tolist() for piece in pieces] == [rows[:2].tolist(), [], rows[2:].tolist()]
    assert pieces[2].data_ptr() == rows[2:].data_ptr()
    pair = namedtuple("pair", "a b")
    nests = graph.split({"h": rows, "deep": pair(rows[:, 0], [graph.depth])})
    assert [list(nest) for nest in nests] == [["h", "deep"]] * 3
    assert nests[2]["deep"].a.tolist() == [4.0, 6.0, 8.0]
    assert nests[0]["deep"].b[0].tolist() == [0, 1]
    assert Graph.chain(5).split(rows)[0].equal(rows)


def test_graphs_are_equal_by_structure_edge_order_types_and_parts() -> None:
    graph = Graph([[], [], [0, 1]])
    same = Graph.from_parents([2, 2, -1])
    assert graph == same and hash(graph) == hash(same) and len(graph.key) == 16
    others = [
        Graph([[], [], [1, 0]]),
        Graph([[], [], [0, 1, -1]]),
        Graph.from_edges([0, 1], [1, 2], 3),
        Graph.from_edges([1, 0], [2, 1], 3),
        Graph([[], [], [0, 1]], types=[0, 0, 0]),
        Graph([[], [], [0, 1]], types=["a", "a", "a"]),
        Graph([[], [], [0, 1]], types=["b", "b", "b"]),
        Graph.batch([graph, Graph([])]),
        Graph.batch([graph, graph]),
        Graph.batch([]),
        Graph([]),
    ]
    assert len({graph, *others}) == len(others) + 1
    assert graph != "graph"


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))])
def test_copies_are_equal_frozen_and_start_with_an_empty_cache(clone: Any) -> None:
    tree = Graph.from_nltk(Tree("S", ["a", "b"]), types=["word", "word", "node"]).to("cpu")
    batch = Graph.batch([tree, Graph.chain(2, types=["word", "node"])])
    for graph in (tree, batch):
        graph.cache["plan"] = object()
        twin = clone(graph)
        assert twin == graph and twin.cache == {} and twin.device == torch.device("cpu")
        assert arrays(twin) == arrays(graph)
        assert (twin.types, twin.labels, twin.num_graphs) == (graph.types, graph.labels, graph.num_graphs)
        assert not twin.type_ids.flags.writeable


def test_to_remembers_the_device_and_shares_the_arrays() -> None:
    graph = Graph.chain(3)
    assert graph.reversed().device is None
    moved = graph.to("meta")
    assert (graph.device, moved.device) == (None, torch.device("meta"))
    assert moved == graph and moved.children is graph.children and moved.cache is not graph.cache
    assert moved.to("meta") is moved and moved.parts == (moved,)
    assert moved.reversed().device == torch.device("meta") and moved.reversed() is moved.reversed()
    assert Graph.batch([moved, graph]).device == torch.device("meta")
    assert Graph.batch([graph, graph]).to("meta").reversed().device == torch.device("meta")


def test_a_graph_neither_keeps_nor_gives_away_writeable_memory() -> None:
    given, offsets, types = np.array([0, 1], np.int32), np.array([0, 0, 0, 2], np.int32), np.array([5, 5, 6], np.int32)
    graph = Graph((given, offsets), types=types)
    key = graph.key
    given[:], offsets[:], types[:] = 0, 0, 0
    assert (arrays(graph), graph.types.tolist()) == (([0, 1], [0, 0, 0, 2], [0, 1]), [5, 5, 6])
    for name in ("roots", "leaves", "graph_of", "depth", "types"):
        before = getattr(graph, name).tolist()
        getattr(graph, name)[:] = 9
        assert getattr(graph, name).tolist() == before
    assert Graph((graph.children, graph.offsets), types=[5, 5, 6]).key == key
    with pytest.raises(ValueError, match="read-only"):
        graph.children[0] = 1


def test_repr_is_one_short_line() -> None:
    assert repr(Graph.batch([Graph.from_parents([2, 2, 3, -1]), Graph.chain(7)])) == "Graph(vertices=11, edges=9, graphs=2)"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Graph.chain(10**6),
        lambda: Graph.grid(1000, 1000),
        lambda: Graph.full_binary_tree(5 * 10**5),
        lambda: Graph.from_parents(np.minimum(np.arange(10**6) * 7919 % 10**6, np.arange(10**6) - 1)),
        lambda: Graph.from_edges(np.arange(10**6), np.arange(10**6)[::-1] // 2, 10**6),
        lambda: Graph.batch([Graph.chain(38)] * 26_316),
    ],
    ids=["chain", "grid", "full_binary_tree", "from_parents", "from_edges", "batch"],
)
def test_a_million_vertices_take_less_than_a_second(make: Any) -> None:
    start = time.process_time()
    graph = make()
    seconds = time.process_time() - start
    assert graph.num_vertices >= 10**6 - 1
    assert len(graph.reversed().key) == 16
    assert seconds < 1.0


def test_batching_256_small_trees_takes_far_less_than_walking_their_vertices() -> None:
    trees = [Graph.full_binary_tree(19) for _ in range(256)]
    times = []
    for _ in range(20):
        start = time.perf_counter()
        batch = Graph.batch(trees)
        assert len(batch.children) == len(batch.edge_rows) < len(batch.offsets)
        times.append(time.perf_counter() - start)
    assert min(times) < 1e-3
