"""From the results of the examples to the result of the batch: leaf by leaf, stacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import ShapeError, StructureError, TypeMismatch
from weft.graph.program import Ints
from weft.graph.recording import References
from weft.graph.uncast import stack
from weft.lazy.kinds import Kind, kind_of
from weft.lazy.nests import Structure, build, flatten, paths, sorted_structure
from weft.lazy.value import Value
from weft.run.calls import Group, in_order, stacked

WAY_OUT = "use weft.batched(fn, stack=False) for a list of the examples' results"


@dataclass(eq=False, slots=True)
class Outcome:
    """One example's result: its structure and its leaves."""

    structure: Structure
    leaves: list[Any]

    @staticmethod
    def of(result: Any) -> Outcome:
        leaves: list[Any] = []
        structure = flatten(result, leaves)
        for at, leaf in enumerate(leaves):
            if leaf.__class__ is Value:
                if leaf._tape.watchful:
                    leaves[at] = leaf._tape.settled(leaf)
            elif isinstance(leaf, Value):
                leaves[at] = leaf._plain()
        return Outcome(structure, leaves)

    def ordered_as(self, structure: Structure) -> Outcome:
        """The same with the keys of dictionaries in another order, if nothing else differs."""
        if self.structure == structure or sorted_structure(self.structure) != sorted_structure(structure):
            return self
        leaves = dict(zip(paths(self.structure), self.leaves, strict=True))
        return Outcome(structure, [leaves[path] for path in paths(structure)])


def wanted_references(outcomes: Sequence[Outcome]) -> References:
    """The references that the results hold, each once, in ascending order."""
    refs = np.array([leaf._ref for outcome in outcomes for leaf in outcome.leaves if leaf.__class__ is Value], np.int64)
    refs.sort()
    repeats = refs[1:] == refs[:-1]
    return refs[np.append(True, ~repeats)] if repeats.any() else refs


class Gathered:
    """The tensors of a batch's wanted references, and how to get at them."""

    def __init__(self, wanted: References, groups: Sequence[Group]) -> None:
        self.wanted, self.groups = wanted, groups
        self._single: dict[int, Tensor] | None = None

    def stacked(self, refs: Sequence[int]) -> Tensor:
        positions: Ints = np.searchsorted(self.wanted, np.array(refs, np.int64)).astype(np.int32)
        return stacked(self.groups, positions)

    def column(self, leaves: list[Any]) -> Tensor:
        """One leaf of all examples, some of which may be tensors already."""
        if set(map(type, leaves)) == {Value}:
            return self.stacked([leaf._ref for leaf in leaves])
        return stack([self.one(leaf._ref) if leaf.__class__ is Value else leaf for leaf in leaves])

    def one(self, ref: int) -> Tensor:
        return self.singly()[ref]

    def singly(self) -> dict[int, Tensor]:
        """The tensor of every reference."""
        if self._single is None:
            tensors = in_order(self.groups, len(self.wanted))
            self._single = dict(zip(self.wanted.tolist(), tensors, strict=True))
        return self._single


def separate(outcomes: Sequence[Outcome], gathered: Gathered) -> list[Any]:
    """The list of the examples' own results."""

    tensors = gathered.singly()
    found = []
    for outcome in outcomes:
        leaves = [tensors[leaf._ref] if leaf.__class__ is Value else leaf for leaf in outcome.leaves]
        found.append(build(outcome.structure, iter(leaves)))
    return found


def joined(outcomes: Sequence[Outcome], stack: Callable[[list[Any]], Any], device: str) -> Any:
    """One nest of the structure that all results have, with the leaves of all examples stacked; tensors by `stack`."""
    structure = outcomes[0].structure
    if any(outcome.structure != structure for outcome in outcomes):
        outcomes = [outcome.ordered_as(structure) for outcome in outcomes]
    for number, outcome in enumerate(outcomes):
        if outcome.structure != structure:
            raise StructureError(
                f"examples 0 and {number} return different structures: {_shown(outcomes[0])} and {_shown(outcome)}; {WAY_OUT}"
            )
    names = list(paths(structure))
    leaves = [_column(name, [outcome.leaves[at] for outcome in outcomes], stack, device) for at, name in enumerate(names)]
    return build(structure, iter(leaves))


def _shown(outcome: Outcome) -> str:
    names = iter([str(kind) if isinstance(kind := _kind(leaf), Kind) else type(leaf).__name__ for leaf in outcome.leaves])
    return repr(build(outcome.structure, names)).replace("'", "")


def _column(name: str, column: list[Any], stack: Callable[[list[Any]], Any], device: str) -> Any:
    """One leaf of all examples."""
    kinds = list(map(_kind, column))
    first = kinds[0]
    if kinds.count(first) < len(kinds):
        number, other = next((number, kind) for number, kind in enumerate(kinds) if kind is not first)
        _refuse(name, number, first, other)
    if isinstance(first, Kind):
        return stack(column)
    if first in (bool, int, float):
        return _numbers(name, column, device)
    return None if first is None else column


def _numbers(name: str, column: list[Any], device: str) -> Tensor:
    try:
        return torch.tensor(column, device=device)
    except (ValueError, OverflowError, RuntimeError):
        large = next(
            (at for at, number in enumerate(column) if type(number) is int and not -(1 << 63) <= number < 1 << 63), None
        )
        if large is None:
            raise
        raise TypeMismatch(
            f"result{name} of example {large}: {column[large]} is no int64, so it cannot be stacked; {WAY_OUT}"
        ) from None


def _kind(leaf: Any) -> Any:
    if leaf.__class__ is Value:
        return leaf._kind
    if leaf is None or leaf.__class__ in (bool, int, float):
        return None if leaf is None else leaf.__class__
    return kind_of(leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else object


def _refuse(name: str, number: int, first: Any, other: Any) -> None:
    where = f"result{name} of examples 0 and {number}"
    if isinstance(first, Kind) and isinstance(other, Kind):
        raise ShapeError(f"{where}: {first} and {other} cannot be stacked; {WAY_OUT}")
    raise StructureError(f"{where}: {_word(first)} and {_word(other)} cannot be stacked; {WAY_OUT}")


def _word(kind: Any) -> str:
    if isinstance(kind, Kind):
        return f"a tensor {kind}"
    return "None" if kind is None else "an object" if kind is object else f"a Python {kind.__name__}"
