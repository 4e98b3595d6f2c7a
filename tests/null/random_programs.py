"""Random programs: several node types with several ports and outputs, shared, repeated, empty and unread arguments."""

from __future__ import annotations

import random

import numpy as np

from weft.graph.program import Ints, NodeType, Port, Program

PORTS: tuple[tuple[Port, ...], ...] = (
    (),
    (Port("slots", (0,)),),
    (Port("slots", (0, 1)),),
    (Port("slots", (1, 0)),),
    (Port("sum", (0,)),),
    (Port("edges", (0,)),),
    (Port("slots", (0,)), Port("edges", (1,))),
    (Port("sum", (1,)), Port("slots", (0, 2))),
    (Port("edges", (0,)), Port("sum", (0,))),
    (Port("slots", (1,)),),  # leaves argument 0 unread
    (Port("slots", (2,)), Port("slots", (0, 1))),
)
SHAPES = ("any", "chain", "tree", "star", "layers")


def random_program(seed: int, most: int = 12) -> Program:
    """A program with up to `most` nodes; node numbers are in no order that helps."""
    rng = random.Random(seed)
    several = rng.random() < 0.4
    types = tuple(
        NodeType(f"type {t}", rng.choice(PORTS), rng.choice((1, 2, 3)) if several else 1) for t in range(rng.randint(1, 4))
    )
    count = rng.randint(0, most)
    arguments = _arguments(rng, count)
    number = rng.sample(range(count), count) if rng.random() < 0.5 else list(range(count))
    lists: list[list[int]] = [[] for _ in range(count)]
    for node, reads in enumerate(arguments):
        lists[number[node]] = [number[source] if source >= 0 else -1 for source in reads]
    kinds = _kinds(rng, count, len(types), lists)
    src = [source for reads in lists for source in reads]
    out = [rng.randrange(types[kinds[source]].outputs) if source >= 0 else 0 for source in src]
    return Program(
        types,
        np.array(kinds, dtype=np.int32),
        np.cumsum([0, *map(len, lists)]).astype(np.int32),
        np.array(src, dtype=np.int32),
        np.array(out, dtype=np.int32) if several else None,
        _rows(rng, count) if rng.random() < 0.3 else None,
        _rows(rng, len(src)) if rng.random() < 0.3 else None,
    )


def _arguments(rng: random.Random, count: int) -> list[list[int]]:
    """What each node reads, sources before readers."""
    shape = rng.choice(SHAPES)
    arity, reach, empty = rng.choice((1, 2, 4)), rng.choice((2, 5, count + 1)), rng.choice((0.0, 0.0, 0.2, 1.0))
    reads: list[list[int]] = []
    roots: list[int] = []
    for node in range(count):
        if shape == "chain":
            mine = [node - 1] if node and rng.random() < 0.8 else []
        elif shape == "tree":
            mine = [roots.pop() for _ in range(rng.randint(0, min(arity, len(roots))))]
            roots.append(node)
        elif shape == "star":
            mine = list(range(node)) if node == count - 1 else []
        elif shape == "layers":
            width = 1 + count // 4
            mine = [rng.randrange(max(0, node - node % width - width), node - node % width)] * 2 if node >= width else []
        else:
            mine = [rng.randrange(max(0, node - reach), node) for _ in range(rng.randint(0, arity))] if node else []
        reads.append([-1 if rng.random() < empty else source for source in mine])
    return reads


def _kinds(rng: random.Random, count: int, types: int, lists: list[list[int]]) -> list[int]:
    """The type of every node: drawn at random, or by whether it reads anything, as front ends do."""
    if types > 1 and rng.random() < 0.4:
        return [0 if not reads else 1 + rng.randrange(types - 1) for reads in lists]
    return [rng.randrange(types) for _ in range(count)]


def _rows(rng: random.Random, count: int) -> Ints:
    return np.array([rng.randrange(count + 1) for _ in range(count)], dtype=np.int32)


def random_max_rows(seed: int) -> int | None:
    return random.Random(seed).choice((None, None, 1, 2, 5))
