"""Random structures: every shape that has its own way to go wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from weft.api.graph import Graph
from weft.errors import TypeMismatch

Random = np.random.Generator
Lists = list[list[int]]


def random_structure(seed: int, kind: str | None = None, *, size: int = 16, types: int = 0) -> Graph:
    """A random graph of about `size` vertices, the same for the same arguments.

    `kind` is one of `KINDS`; by default the seed picks one. With `types` every vertex gets a type id below it. All kinds but
    "cyclic" (never picked by itself; it needs `rounds=`) can be computed children first; often vertices are numbered at random.

    >>> import weft.testing
    >>> weft.testing.random_structure(0, "grid").num_graphs
    1
    >>> weft.testing.random_structure(7) == weft.testing.random_structure(7)
    True
    """
    random = np.random.default_rng([seed, 1])
    if kind is None:
        kind = str(random.choice([name for name in KINDS if name != "cyclic"]))
    if kind not in KINDS:
        raise TypeMismatch(f"kind: expected one of {', '.join(map(repr, KINDS))}, got {kind!r}")
    if size < 1:
        raise TypeMismatch(f"size: expected a positive number of vertices, got {size!r}")
    if kind == "batch":
        parts = [name for name in KINDS if name not in ("batch", "cyclic")]
        count = int(random.integers(2, 6))
        return Graph.batch([_one(random, str(random.choice(parts)), max(1, size // 3), types) for _ in range(count)])
    return _one(random, kind, size, types)


def _one(random: Random, kind: str, size: int, types: int) -> Graph:
    children = KINDS[kind](random, size)
    if kind not in ("chain", "grid") and random.random() < 0.5:
        children = _renumbered(random, children)
    ids = random.integers(0, types, len(children)) if types else None
    return Graph(children, types=ids)


def _renumbered(random: Random, children: Lists) -> Lists:
    number = random.permutation(len(children))
    moved: Lists = [[] for _ in children]
    for vertex, mine in enumerate(children):
        moved[number[vertex]] = [int(number[child]) if child >= 0 else -1 for child in mine]
    return moved


def _from_parents(parents: npt.NDArray[np.int64]) -> Lists:
    children: Lists = [[] for _ in parents]
    for vertex, parent in enumerate(parents.tolist()):
        if parent >= 0:
            children[parent].append(vertex)
    return children


def _tree(random: Random, size: int) -> Lists:
    """Every vertex hangs below a later one, often the next: some deep, some bushy."""
    n = int(random.integers(min(2, size), size + 1))
    reach = int(random.integers(1, max(2, n)))
    parents = np.array([min(n - 1, v + 1 + int(random.integers(0, reach))) for v in range(n - 1)] + [-1])
    return _from_parents(parents)


def _binary_tree(random: Random, size: int) -> Lists:
    children: Lists = [[] for _ in range(int(random.integers(2, max(3, size // 2 + 1))))]
    open_roots = list(range(len(children)))
    while len(open_roots) > 1:
        at = int(random.integers(0, len(open_roots) - 1))
        children.append([open_roots[at], open_roots[at + 1]])
        open_roots[at : at + 2] = [len(children) - 1]
    return children


def _chain(random: Random, size: int) -> Lists:
    return [[v - 1] if v else [] for v in range(int(random.integers(1, size + 1)))]


def _dag(random: Random, size: int) -> Lists:
    """Children are any earlier vertices, so that many are shared."""
    n = int(random.integers(min(2, size), size + 1))
    return [random.permutation(v)[: int(random.integers(0, 4))].tolist() for v in range(n)]


def _repeated(random: Random, size: int) -> Lists:
    """The same child in several slots of a vertex."""
    n = int(random.integers(min(2, size), size + 1))
    return [random.integers(0, v, int(random.integers(1, 5))).tolist() if v else [] for v in range(n)]


def _grid(random: Random, size: int) -> Lists:
    cols = int(random.integers(1, 5))
    rows = max(1, size // cols)
    return [[v - cols if v >= cols else -1, v - 1 if v % cols else -1] for v in range(rows * cols)]


def _star(random: Random, size: int) -> Lists:
    return [*([] for _ in range(size - 1)), list(range(size - 1))]


def _forest(random: Random, size: int) -> Lists:
    parents = np.array([int(random.integers(v + 1, size)) for v in range(size - 1)] + [-1])
    return _from_parents(np.where(random.random(size) < 0.7, parents, -1))


def _holes(random: Random, size: int) -> Lists:
    """Empty slots anywhere, also vertices with nothing but empty slots."""
    n = int(random.integers(1, size + 1))
    return [[int(random.integers(0, v)) if v and random.random() < 0.5 else -1 for _ in range(3)] for v in range(n)]


def _cyclic(random: Random, size: int) -> Lists:
    """Any vertex may gather any, itself included."""
    n = int(random.integers(1, size + 1))
    return [random.integers(-1, n, int(random.integers(0, 4))).tolist() for _ in range(n)]


KINDS: dict[str, Callable[[Random, int], Lists]] = {
    "tree": _tree,
    "binary tree": _binary_tree,
    "chain": _chain,
    "dag": _dag,
    "repeated": _repeated,
    "grid": _grid,
    "star": _star,
    "forest": _forest,
    "holes": _holes,
    "single": lambda random, size: [[]],
    "lonely": lambda random, size: [[] for _ in range(size)],
    "empty": lambda random, size: [],
    "batch": lambda random, size: [],
    "cyclic": _cyclic,
}
"""The kinds of structure by name; "batch" is several of the others side by side."""
