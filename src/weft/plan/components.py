r"""Strongly connected components of the type graph, producers first.

The rule: draw an edge from type A to type B where some output of A feeds B. Types that reach each other, and only those,
share a component; the components then form no cycle, and are listed so that each comes after all that feed it.

    embed --> leaf --> node <--> unary --> classify        components: (embed) (leaf) (node unary) (classify)

Cost: O(types + edges), by Tarjan's algorithm (R. Tarjan, Depth-first search and linear graph algorithms, 1972) with a stack
of its own instead of recursion. It sees the union over the mini-batch: one odd example that feeds a node back into `embed`
puts `embed` on a cycle for all of them, which costs steps, never correctness.
"""

from __future__ import annotations

from collections.abc import Iterable

_UNSEEN = -1


def components(num_types: int, edges: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """The components of types 0..num_types-1, members ascending; `(a, b)` among the edges says that a feeds b.

    >>> components(4, [(0, 2), (2, 1), (1, 2), (1, 3)])
    [(0,), (1, 2), (3,)]
    """
    fed_by: list[set[int]] = [set() for _ in range(num_types)]
    for producer, consumer in edges:
        fed_by[consumer].add(producer)
    producers = [sorted(types) for types in fed_by]
    place = [_UNSEEN] * num_types
    found: list[tuple[int, ...]] = []
    for root in range(num_types):
        if place[root] == _UNSEEN:
            _visit(root, producers, place, found)
    return found


def is_cyclic(component: tuple[int, ...], edges: Iterable[tuple[int, int]]) -> bool:
    """Whether the types of a component feed themselves: there are several of them, or the only one has an edge to itself.

    >>> is_cyclic((1,), [(0, 1)]), is_cyclic((1,), [(0, 1), (1, 1)])
    (False, True)
    """
    return len(component) > 1 or (component[0], component[0]) in edges


def _visit(root: int, producers: list[list[int]], place: list[int], found: list[tuple[int, ...]]) -> None:
    """Depth first towards producers, so that a component is complete, and listed, only after all that feed it.

    `place` is a type's place among the open ones, those seen but not listed yet; listed ones lie beyond every place.
    """
    listed = len(place)
    open_types = [root]
    place[root] = 0
    reaches = {root: 0}  # the first place that is known to be reachable from an open type
    path = [(root, iter(producers[root]))]
    while path:
        here, rest = path[-1]
        ahead = next((producer for producer in rest if place[producer] < listed), None)
        if ahead is None:
            path.pop()
            if path:
                behind = path[-1][0]
                reaches[behind] = min(reaches[behind], reaches[here])
            if reaches[here] == place[here]:
                members = open_types[place[here] :]
                del open_types[place[here] :]
                found.append(tuple(sorted(members)))
                for member in members:
                    place[member] = listed
        elif place[ahead] == _UNSEEN:
            place[ahead] = reaches[ahead] = len(open_types)
            open_types.append(ahead)
            path.append((ahead, iter(producers[ahead])))
        else:
            reaches[here] = min(reaches[here], place[ahead])
