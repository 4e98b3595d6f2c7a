"""Graph: what it says about bad input, word for word."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from weft.api.graph import Graph
from weft.errors import ShapeError, StructureError, TypeMismatch, WeftError

two = Graph.batch([Graph.chain(2), Graph.chain(3)])
of_parents = "For one parent per vertex use Graph.from_parents"

CASES: list[tuple[Callable[[], Any], type[WeftError], str]] = [
    (
        lambda: Graph([[], [0, 9]]),
        StructureError,
        "Graph: vertex 1, slot 1: child 9 is out of range; a graph of 2 vertices has 0 to 1, and -1 for an empty slot",
    ),
    (
        lambda: Graph([[], [], [0, 1], [-2]]),
        StructureError,
        "Graph: vertex 3, slot 0: child -2 is out of range; a graph of 4 vertices has 0 to 3, and -1 for an empty slot",
    ),
    (
        lambda: Graph([[], [2**70]]),
        StructureError,
        f"Graph: vertex 1, slot 0: child {2**70} is out of range; a graph of 2 vertices has 0 to 1, and -1 for an empty slot",
    ),
    (
        lambda: Graph(np.array([[-1, 0], [0, 7]], np.int8)),
        StructureError,
        "Graph: vertex 1, slot 1: child 7 is out of range; a graph of 2 vertices has 0 to 1, and -1 for an empty slot",
    ),
    (
        lambda: Graph(([0, 5], [0, 0, 2])),
        StructureError,
        "Graph: vertex 1, slot 1: child 5 is out of range; a graph of 2 vertices has 0 to 1, and -1 for an empty slot",
    ),
    (
        lambda: Graph([[], [0], [1.5, 0]]),
        TypeMismatch,
        "Graph: vertex 2, slot 0: expected an integer child index, came float 1.5",
    ),
    (
        lambda: Graph([[], [0, None]]),
        TypeMismatch,
        "Graph: vertex 1, slot 1: expected an integer child index, came NoneType None",
    ),
    (lambda: Graph([[], [True]]), TypeMismatch, "Graph: vertex 1, slot 0: expected an integer child index, came bool True"),
    (
        lambda: Graph([[], 0]),
        TypeMismatch,
        f"Graph: vertex 1: expected a list of child indices, came int 0. {of_parents}",
    ),
    (
        lambda: Graph([torch.tensor(1)]),
        TypeMismatch,
        f"Graph: vertex 0: expected a list of child indices, came Tensor tensor(1). {of_parents}",
    ),
    (
        lambda: Graph(None),
        TypeMismatch,
        "Graph: expected a list of child lists, an int array [N, k] or (flat, offsets), came NoneType None",
    ),
    (lambda: Graph(np.zeros((2, 2))), TypeMismatch, "Graph: children: expected integers, came float64"),
    (
        lambda: Graph(np.array([1, 2, -1])),
        ShapeError,
        f"Graph: children: expected an int array [N, k], came shape [3]. {of_parents}",
    ),
    (
        lambda: Graph(np.array([[1], [0, 1]], dtype=object)),
        TypeMismatch,
        "Graph: children: expected an int array [N, k], came an array of objects. Pass a list of lists",
    ),
    (
        lambda: Graph(([], [0], [1])),
        StructureError,
        "Graph: a tuple means (flat, offsets); came a tuple of 3. For child lists pass a list",
    ),
    (lambda: Graph(([], [])), ShapeError, "Graph: offsets: expected one more entry than vertices, came none"),
    (lambda: Graph(([0], [1, 1])), StructureError, "Graph: offsets: expected to start at 0, came 1"),
    (
        lambda: Graph(([0, 0], [0, 2, 1, 2])),
        StructureError,
        "Graph: offsets: expected not to fall, came 2 then 1 at vertex 1",
    ),
    (lambda: Graph(([0, 0], [0, 1])), ShapeError, "Graph: offsets: expected to end at 2, the length of flat, came 1"),
    (
        lambda: Graph(([[0], [1, 2]], [0, 1])),
        ShapeError,
        "Graph: flat: expected a flat list of integers, came lists of different lengths",
    ),
    (lambda: Graph(([0, "a"], [0, 2])), TypeMismatch, "Graph: flat: entry 1: expected an integer, came str 'a'"),
    (
        lambda: Graph.from_parents([1, 4, -1]),
        StructureError,
        "Graph.from_parents: vertex 1: parent 4 is out of range; expected 0 to 2, or -1 for a root",
    ),
    (
        lambda: Graph.from_parents([-3]),
        StructureError,
        "Graph.from_parents: vertex 0: parent -3 is out of range; expected 0 to 0, or -1 for a root",
    ),
    (
        lambda: Graph.from_parents([1, 1]),
        StructureError,
        "Graph.from_parents: vertex 1 is its own parent; a root has parent -1",
    ),
    (
        lambda: Graph.from_parents([0.0, -1]),
        TypeMismatch,
        "Graph.from_parents: parents: entry 0: expected an integer, came float 0.0",
    ),
    (
        lambda: Graph.from_parents([[1], [-1]]),
        ShapeError,
        "Graph.from_parents: parents: expected a flat list of integers, came shape [2, 1]",
    ),
    (
        lambda: Graph.from_parents(3),
        ShapeError,
        "Graph.from_parents: parents: expected a flat list of integers, came int 3",
    ),
    (
        lambda: Graph.from_parents([1, 2, 0]).depth,
        StructureError,
        "cycle: 0 -> 2 -> 1 -> 0 (vertex 0 gathers vertex 2, which gathers vertex 1, which gathers vertex 0)",
    ),
    (
        lambda: Graph.from_edges([0, 3], [1, 1], 3),
        StructureError,
        "Graph.from_edges: edge 1: src 3 is out of range; a graph of 3 vertices has 0 to 2",
    ),
    (
        lambda: Graph.from_edges([0, 1], [-1, 1], 3),
        StructureError,
        "Graph.from_edges: edge 0: dst -1 is out of range; a graph of 3 vertices has 0 to 2",
    ),
    (
        lambda: Graph.from_edges([0], [0], 0),
        StructureError,
        "Graph.from_edges: edge 0: src 0 is out of range; the graph has no vertices",
    ),
    (
        lambda: Graph.from_edges([0, 1], [1], 3),
        ShapeError,
        "Graph.from_edges: src and dst: expected the same length, came 2 and 1",
    ),
    (lambda: Graph.from_edges([], [], -1), StructureError, "Graph.from_edges: num_vertices: expected at least 0, came -1"),
    (lambda: Graph.chain(2.0), TypeMismatch, "Graph.chain: n: expected an integer, came float 2.0"),
    (lambda: Graph.grid(2, -1), StructureError, "Graph.grid: cols: expected at least 0, came -1"),
    (lambda: Graph.full_binary_tree(0), StructureError, "Graph.full_binary_tree: leaves: expected at least 1, came 0"),
    (
        lambda: Graph.grid(50_000, 50_000),
        StructureError,
        "Graph: expected fewer than 2147483647 vertices and slots, came 2500000000 and 5000000000",
    ),
    (lambda: Graph.chain(3, types=[0, 1]), ShapeError, "Graph: types: expected 3 entries, one per vertex, came 2"),
    (
        lambda: Graph.chain(2, types=[0, -1]),
        StructureError,
        "Graph: types: vertex 1: expected a type id from 0 to 2147483647, came -1",
    ),
    (lambda: Graph.chain(2, types=[0, "a"]), TypeMismatch, "Graph: types: entry 1: expected an integer, came str 'a'"),
    (lambda: Graph.chain(2, types=["a", 0]), TypeMismatch, "Graph: types: vertex 1: expected a name, came int 0"),
    (lambda: Graph.chain(2, types="ab"), TypeMismatch, "Graph: types: expected one id or name per vertex, came str 'ab'"),
    (
        lambda: Graph.batch(two),
        TypeMismatch,
        "Graph.batch: expected a list of graphs, came Graph Graph(vertices=5, edges=3, graphs=2)",
    ),
    (lambda: Graph.batch([two, [[]]]), TypeMismatch, "Graph.batch: item 1: expected a Graph, came list [[]]"),
    (
        lambda: Graph.batch([Graph.chain(1), Graph.chain(2), Graph.chain(2, types=[0, 1])]),
        StructureError,
        "Graph.batch: expected all graphs with type ids, all with named types or all with no types, "
        "came graph 0 with no types and graph 2 with type ids",
    ),
    (
        lambda: Graph.batch([Graph.chain(1, types=["a"]), Graph.chain(1, types=["b"]), Graph.chain(2, types=[0, 1])]),
        StructureError,
        "Graph.batch: expected all graphs with type ids, all with named types or all with no types, "
        "came graph 0 with named types and graph 2 with type ids",
    ),
    (
        lambda: Graph.batch([Graph.chain(1).to("meta"), Graph.chain(1).to("cpu")]),
        StructureError,
        "Graph.batch: expected graphs on one device, came cpu and meta",
    ),
    (lambda: two.split(torch.zeros(4, 2)), ShapeError, "Graph.split: expected 5 rows, one per vertex, came shape [4, 2]"),
    (lambda: two.split({"h": torch.zeros(())}), ShapeError, "Graph.split: expected 5 rows, one per vertex, came shape []"),
    (lambda: two.split("rows"), TypeMismatch, "Graph.split: expected a tensor [5, ...] or a nest of them, came str 'rows'"),
    (lambda: Graph.from_networkx([]), TypeMismatch, "Graph.from_networkx: expected a networkx graph, came list []"),
    (lambda: Graph.from_nltk("word"), TypeMismatch, "Graph.from_nltk: expected an nltk.Tree, came str 'word'"),
    (
        lambda: Graph.from_pyg(SimpleNamespace(edge_index=torch.zeros(2, 0, dtype=torch.long))),
        TypeMismatch,
        "Graph.from_pyg: expected an object with edge_index and num_nodes, came SimpleNamespace",
    ),
    (
        lambda: Graph.from_pyg(SimpleNamespace(edge_index=torch.zeros(3, 2, dtype=torch.long), num_nodes=4)),
        ShapeError,
        "Graph.from_pyg: edge_index: expected shape [2, E], came [3, 2]",
    ),
]


@pytest.mark.parametrize(("call", "kind", "message"), CASES, ids=[message for _, _, message in CASES])
def test_bad_input_is_named(call: Callable[[], Any], kind: type[WeftError], message: str) -> None:
    with pytest.raises(kind) as error:
        call()
    assert str(error.value) == message
    assert type(error.value) is kind
