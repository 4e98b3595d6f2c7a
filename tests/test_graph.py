"""Graph: batches, what a graph tells of itself, copies."""

from __future__ import annotations

import copy
import pickle
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from graph_parts import SEEDS, Tree, arrays, random_edges, random_lists
from weft.api.graph import Graph
from weft.errors import StructureError


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
