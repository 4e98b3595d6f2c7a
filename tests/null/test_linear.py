"""Planning costs the same for every node, however many there are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import numpy as np
import pytest

import weft
from weft.api.structure import ONE_TYPE, Seen, tree_program
from weft.graph.program import NodeType, Port, Program, merge
from weft.plan.schedule import schedule

TYPES = NodeType("node", (Port("slots", (0, 1)),)), NodeType("leaf")
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
REPEATS = (15, 15, 15, 9, 7, 5, 3)


def random_tree(leaves: int, rng: np.random.Generator) -> Program:
    """A random binary tree over a sentence: neighbours join until one is left, as in a parsed treebank."""
    roots, reads = list(range(leaves)), []
    while len(roots) > 1:
        at = int(rng.integers(len(roots) - 1))
        reads += [roots[at], roots[at + 1]]
        roots[at : at + 2] = [leaves + len(reads) // 2 - 1]
    inner = leaves - 1
    return Program(
        TYPES,
        np.array([1] * leaves + [0] * inner, dtype=np.int32),
        np.concatenate((np.zeros(leaves, np.int32), np.arange(0, 2 * inner + 1, 2, dtype=np.int32))),
        np.array(reads, dtype=np.int32),
    )


def trees_with(nodes: int, kept: list[Program], rng: np.random.Generator) -> Program:
    """A merged batch of trees with at least this many nodes."""
    mean = sum(tree.num_nodes for tree in kept) / len(kept)
    return merge([kept[i] for i in rng.integers(len(kept), size=1 + int(nodes / mean))])


@contextmanager
def unverified(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as context:
        context.setattr(import_module("weft.plan.schedule"), "VERIFIES", False)
        yield


def seconds_to_plan(program: Program, repeats: int) -> float:
    """The median of processor time, which other work on the machine disturbs less than the clock."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        schedule(program, "condense")
        times.append(time.process_time() - started)
    return float(np.median(times))


def seconds_to_pass(nodes: int, rng: np.random.Generator) -> float:
    """A few passes over as many numbers as a plan has, in random order: linear, and as far from the caches as planning is."""
    order = rng.permutation(2 * nodes)
    times = []
    for _ in range(5):
        started = time.process_time()
        for _ in range(6):
            order.take(order)
        times.append(time.process_time() - started)
    return float(np.median(times))


def test_planning_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slope of time over nodes, both as logarithms, from a thousand to a million nodes."""
    rng = np.random.default_rng(0)
    kept = [random_tree(int(leaves), rng) for leaves in np.clip(rng.normal(19, 9, 300), 2, 52)]
    nodes, times = [], []
    with unverified(monkeypatch):
        schedule(trees_with(1_000, kept, rng))
        for size, repeats in zip(SIZES, REPEATS, strict=True):
            program = trees_with(size, kept, rng)
            nodes.append(program.num_nodes)
            times.append(seconds_to_plan(program, repeats))
    slope = float(np.polyfit(np.log(nodes), np.log(times), 1)[0])
    assert slope <= 1.1, list(zip(nodes, times, strict=True))
    # Without the fixed cost of small plans; large ones leave the caches, as any pass over so many numbers does.
    passes = [seconds_to_pass(nodes[at], rng) for at in (-3, -1)]
    tail = float(np.log(times[-1] / passes[1] / (times[-3] / passes[0])) / np.log(nodes[-1] / nodes[-3]))
    assert tail <= 0.3, (list(zip(nodes, times, strict=True)), passes)


def test_merging_and_planning_kept_graphs_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for batches of graphs that were planned before, as later epochs bring them."""
    rng = np.random.default_rng(0)
    programs = [random_tree(int(leaves), rng) for leaves in np.clip(rng.normal(19, 9, 300), 2, 52)]
    trees = [weft.Graph((program.src, program.ptr)) for program in programs]
    mean = sum(tree.num_vertices for tree in trees) / len(trees)
    nodes, times = [], []
    with unverified(monkeypatch):
        for size, repeats in zip((1_000, *SIZES), (1, *REPEATS), strict=True):
            chosen = [trees[i] for i in rng.integers(len(trees), size=1 + int(size / mean))]
            nodes.append(sum(tree.num_vertices for tree in chosen))
            times.append(seconds_to_batch(chosen, repeats))
    slope = float(np.polyfit(np.log(nodes[1:]), np.log(times[1:]), 1)[0])
    assert slope <= 1.1, list(zip(nodes, times, strict=True))


def seconds_to_batch(trees: list[weft.Graph], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.process_time()
        batch = weft.Graph.batch(trees)
        plan = schedule(tree_program(batch, TYPES, Seen(batch, ONE_TYPE), False))
        times.append(time.process_time() - started)
        assert plan.program.num_nodes == batch.num_vertices
    return float(np.median(times))
