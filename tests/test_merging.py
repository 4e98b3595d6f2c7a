"""Merging graphs and making programs in C and in numpy give the same arrays; a plan's arrays travel together."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.api import graph_parts, structure
from weft.graph.program import NodeType, Port, Program
from weft.plan.library import library
from weft.plan.returns import returns
from weft.plan.schedule import schedule
from weft.run.indices import Indices

READS, SILENT = NodeType("reads", (Port("slots", (0, 1)),)), NodeType("silent")


def random_graph(rng: np.random.Generator, types: str) -> weft.Graph:
    count = int(rng.integers(0, 12))
    children = [[int(c) for c in rng.integers(-1, v, size=rng.integers(0, 4))] if v else [] for v in range(count)]
    ids = rng.integers(0, 3, size=count)
    given = {"none": None, "ids": ids, "names": [("leaf", "node", "root")[i] for i in ids]}[types]
    return weft.Graph(children, types=given)


def seen_in(graph: weft.Graph, many: bool) -> structure.Seen:
    return structure.Seen(graph, structure.EVERY_TYPE if many else structure.ONE_TYPE)


def program_of(graph: weft.Graph, many: bool, with_edges: bool) -> Program:
    kinds = (READS, SILENT, SILENT, READS, READS, SILENT)
    return structure.tree_program(graph, kinds, seen_in(graph, many), with_edges)


def arrays_of(parts: list[weft.Graph], many: bool, with_edges: bool) -> list[Any]:
    graph = weft.Graph.batch(parts)
    program = program_of(graph, many, with_edges)
    present = seen_in(graph, many).present
    found = [
        graph.children,
        graph.offsets,
        graph.childless,
        graph.type_ids,
        program.type,
        program.ptr,
        program.src,
        program.edge,
    ]
    return [*found, np.array(present), graph.num_edges, graph.key, graph.type_names]


@pytest.mark.parametrize("types", ["none", "ids", "names"])
def test_graphs_are_merged_alike(types: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library() is not None, "this test needs a C compiler: cc, gcc or clang"
    rng = np.random.default_rng(0)
    for round in range(60):
        parts = [random_graph(rng, types) for _ in range(int(rng.integers(2, 9)))]
        for many, with_edges in ((True, False), (False, True)):
            fast = arrays_of(parts, many, with_edges)
            with monkeypatch.context() as without:
                without.setattr(graph_parts, "library", lambda: None)
                slow = arrays_of([pickle.loads(pickle.dumps(part)) for part in parts], many, with_edges)
            for one, other in zip(fast, slow, strict=True):
                if isinstance(one, np.ndarray):
                    assert one.dtype == other.dtype and np.array_equal(one, other), round
                else:
                    assert one == other, round


def test_types_without_number() -> None:
    """More types than a set of them has places."""
    graph = weft.Graph([[], [0], [], []], types=[3, 700, 3, 0])
    assert seen_in(weft.Graph.batch([graph, graph]), many=True).present == [1, 7, 1400]
    assert seen_in(weft.Graph([], types=[]), many=True).present == []


def test_merged_arrays_cannot_be_changed() -> None:
    graph = weft.Graph.batch([weft.Graph.chain(3), weft.Graph.chain(2)])
    for array in (graph.children, graph.offsets, graph.childless):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_a_graph_sent_elsewhere_is_batched_there() -> None:
    chain = weft.Graph.chain(3)
    weft.Graph.batch([chain, chain])
    sent = chain.to("meta")
    assert weft.Graph.batch([sent, sent]).device == torch.device("meta")
    assert weft.Graph.batch([sent, chain]).device == torch.device("meta")
    assert weft.Graph.batch([chain, chain]).device is None


def test_the_arrays_of_a_plan_reach_a_device_in_one_copy() -> None:
    graph = weft.Graph.batch([weft.Graph.full_binary_tree(n) for n in (5, 3, 9)])
    plan = schedule(structure.tree_program(graph, (READS, SILENT), seen_in(graph, many=False), False))
    there = Indices(plan, torch.device("cpu"))
    there.bring(training=True)
    arrays = [*plan.rows, *(read.index for read in plan.reads)]
    arrays += [back.index if back.single is None else back.single for back in returns(plan).values()]
    assert all(there.tensor(array).tolist() == array.tolist() for array in arrays)
    assert len({there.tensor(array).untyped_storage().data_ptr() for array in arrays}) == 1
    assert there.tensor(plan.row).tolist() == plan.row.tolist()  # what was not brought comes by itself
