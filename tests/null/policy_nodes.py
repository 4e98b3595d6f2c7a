"""Programs for the policies, and naive twins of what the policies compute."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.graph.program import Ints
from weft.plan import levels

Arguments = list[list[int]]


@dataclass
class Nodes:
    """A program under construction: `add(type, *arguments)` returns the new node's number."""

    type: list[int]
    arguments: Arguments

    def add(self, type: int, *arguments: int) -> int:
        self.type.append(type)
        self.arguments.append(list(arguments))
        return len(self.type) - 1

    @property
    def arrays(self) -> tuple[Ints, Ints, Ints]:
        return (np.array(self.type, dtype=np.int32), *flat(self.arguments))

    @property
    def num_types(self) -> int:
        return max(self.type, default=-1) + 1


def flat(arguments: Arguments) -> tuple[Ints, Ints]:
    ptr = np.cumsum([0, *map(len, arguments)]).astype(np.int32)
    return ptr, np.array([source for of in arguments for source in of], dtype=np.int32)


def random_nodes(seed: int, most: int = 24, types: int = 4) -> Nodes:
    """A random DAG in random numbering, with empty and repeated arguments."""
    rng = random.Random(seed)
    count = rng.randint(0, most)
    arity = rng.choice([1, 2, 4])
    reach = rng.choice([2, 5, most])
    number = rng.sample(range(count), count)
    nodes = Nodes([rng.randrange(types) for _ in range(count)], [[] for _ in range(count)])
    for at in range(count):
        earlier = [*number[max(0, at - reach) : at], -1]
        nodes.arguments[number[at]] = [rng.choice(earlier) for _ in range(rng.randint(0, arity))]
    return nodes


def random_member(seed: int, count: int) -> levels.Bools | None:
    rng = np.random.default_rng(seed)
    return None if seed % 3 == 0 else rng.random(count) < rng.choice([0.5, 0.9])


def longest(edges: Sequence[list[int]], weight: Sequence[int]) -> list[int]:
    """Naive twin: per node, the largest sum of weights on a path along `edges` that starts at the node, by recursion."""
    known: dict[int, int] = {}

    def best(node: int) -> int:
        if node not in known:
            known[node] = weight[node] + max((best(target) for target in edges[node]), default=0)
        return known[node]

    return [best(node) for node in range(len(edges))]


def member_edges(arguments: Arguments, member: levels.Bools | None) -> Arguments:
    inside = np.ones(len(arguments), dtype=np.bool_) if member is None else member
    return [[s for s in of if s >= 0 and inside[s] and inside[node]] for node, of in enumerate(arguments)]


def naive_levels(arguments: Arguments, member: levels.Bools | None) -> list[int]:
    return [count - 1 for count in longest(member_edges(arguments, member), [1] * len(arguments))]


def naive_agenda(nodes: Nodes, level: Sequence[int], *, fixed_mean: bool) -> list[int]:
    """Naive twin: sets of nodes; `fixed_mean` takes the mean level over all nodes of a type, once, as DyNet's code does."""
    step = [-1] * len(level)
    waiting = set(range(len(level)))
    everything = sorted(waiting)

    def mean(kind: int) -> float:
        of = [level[node] for node in (everything if fixed_mean else waiting) if nodes.type[node] == kind]
        return sum(of) / len(of)

    steps = 0
    while waiting:
        ready = {node for node in waiting if not any(s in waiting for s in nodes.arguments[node])}
        kind = min({nodes.type[node] for node in ready}, key=lambda kind: (mean(kind), kind))
        batch = {node for node in ready if nodes.type[node] == kind}
        for node in batch:
            step[node] = steps
        waiting -= batch
        steps += 1
    return step


def naive_bound(nodes: Nodes) -> int:
    edges = member_edges(nodes.arguments, None)
    return sum(max(longest(edges, [int(kind == own) for own in nodes.type])) for kind in set(nodes.type))


def fewest_steps(nodes: Nodes) -> int:
    """By breadth-first search over what has run: to run all ready nodes of a type is never worse than to run some."""
    everything = frozenset(range(len(nodes.type)))
    reached, steps = {frozenset[int]()}, 0
    while everything not in reached:
        following: set[frozenset[int]] = set()
        for done in reached:
            ready = [n for n in everything - done if all(s < 0 or s in done for s in nodes.arguments[n])]
            following |= {done.union(n for n in ready if nodes.type[n] == kind) for kind in {nodes.type[n] for n in ready}}
        reached, steps = following, steps + 1
    return steps


EMBED, LEAF, NODE, CLASSIFY = range(4)


def classified_trees(count: int, seed: int, most_leaves: int = 30) -> Nodes:
    """Random binary trees over embedded words with a classifier on every node."""
    rng = random.Random(seed)
    nodes = Nodes([], [])
    for _ in range(count):
        roots = [nodes.add(LEAF, nodes.add(EMBED)) for _ in range(rng.randint(2, most_leaves))]
        tree = list(roots)
        while len(roots) > 1:
            at = rng.randrange(len(roots) - 1)
            roots[at : at + 2] = [nodes.add(NODE, *roots[at : at + 2])]
            tree.append(roots[at])
        for vertex in tree:
            nodes.add(CLASSIFY, vertex)
    return nodes


def unary_binary_trees(count: int, seed: int) -> Nodes:
    """Random trees whose inner nodes are binary (type 1) or unary (type 2)."""
    rng = random.Random(seed)
    nodes = Nodes([], [])
    for _ in range(count):
        roots = [nodes.add(0) for _ in range(rng.randint(5, 30))]
        while len(roots) > 1:
            at = rng.randrange(len(roots) - 1)
            if rng.random() < 0.35:
                roots[at] = nodes.add(2, roots[at])
            else:
                roots[at : at + 2] = [nodes.add(1, *roots[at : at + 2])]
    return nodes


def chains(*kinds: str) -> Nodes:
    """One chain per word; each letter is a node of that type (a = 0) that reads the one before."""
    nodes = Nodes([], [])
    for word in kinds:
        last: tuple[int, ...] = ()
        for letter in word:
            last = (nodes.add(ord(letter) - ord("a"), *last),)
    return nodes
