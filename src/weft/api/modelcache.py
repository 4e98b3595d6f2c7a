"""What a vertex function keeps between calls."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from torch import nn

from weft.graph.held import Held
from weft.graph.program import NodeType
from weft.graph.rows import Spec, TensorSpec
from weft.graph.tape import Name
from weft.plan.schedule import PlanCache
from weft.run.call import CompiledCell

KEPT_SPECS = 64
"""How many kinds of input are remembered, with the traces made for them."""

State = tuple[tuple[str, TensorSpec], ...]


class Kinds(NamedTuple):
    """The node types of a program, and a number for them: equal types have equal numbers."""

    types: tuple[NodeType, ...]
    number: int


@dataclass(frozen=True, eq=False)
class Settled:
    """What the vertices of some types compute."""

    cells: dict[int, CompiledCell]
    kinds: Kinds
    tree: Any
    """The structure of what is pushed; None if nothing is."""
    silent: list[int]
    """The node types that push nothing."""


class ModelCache:
    """What a vertex function keeps between calls: traces by signature, plans by structure."""

    def __init__(self, model: nn.Module) -> None:
        self.model = weakref.ref(model)
        self.cells: dict[Hashable, list[CompiledCell]] = {}
        self.states: dict[Hashable, State] = {}
        self.specs: OrderedDict[Hashable, tuple[tuple[Spec, Spec], int]] = OrderedDict()
        self._numbered: dict[tuple[NodeType, ...], Kinds] = {}
        self._numbers = count()
        self.settled: dict[tuple[int, ...], list[tuple[Held, Settled]]] = {}
        """By the number of the kind of input and other numbers; good for as long as all the traces hold."""
        self.repeats: dict[Hashable, Any] = {}
        """What calls found out (`weft.api.repeat`), by their looks."""
        self.plans = PlanCache()
        self.reads_type: dict[int, bool] = {}
        self.warned: set[str] = set()
        self.foreseen: dict[Name, TensorSpec] = {}
        """Inputs that code with value-dependent paths asked for late."""

    def numbered(self, kinds: Sequence[NodeType]) -> Kinds:
        """Types as plans are told apart by them: a number is compared faster."""
        types = tuple(kinds)
        return self._numbered.setdefault(types, Kinds(types, next(self._numbers)))

    def specs_of(self, key: Hashable, make: Callable[[], tuple[Spec, Spec]]) -> tuple[tuple[Spec, Spec], int]:
        """What rows of one kind of input look like, and a number for it, which is the last part of keys of `cells`."""
        found = self.specs.get(key)
        if found is not None:
            self.specs.move_to_end(key)  # one step, which nothing interrupts
            return found
        found = self.specs[key] = make(), next(self._numbers)
        if len(self.specs) > KEPT_SPECS:
            oldest = self.specs.popitem(last=False)[1][1]
            for cell in list(self.cells):
                if isinstance(cell, tuple) and cell[-1] == oldest:
                    self.cells.pop(cell, None)
            self.settled = {key: kept for key, kept in self.settled.items() if key[0] != oldest}
        return found

    @staticmethod
    def of(model: nn.Module) -> ModelCache:
        found: ModelCache | None = model.__dict__.get("_weft")
        if found is None or found.model() is not model:  # replicas of a model start with its attributes
            found = model.__dict__["_weft"] = ModelCache(model)
        return found
