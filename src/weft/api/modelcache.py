"""What a vertex function keeps between calls."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from torch import nn

from weft.graph.program import NodeType
from weft.graph.rows import Spec, TensorSpec
from weft.graph.tape import Name
from weft.plan.schedule import PlanCache
from weft.run.call import CompiledCell


class Kinds(NamedTuple):
    """The node types of a program, and a number for them: equal types have equal numbers."""

    types: tuple[NodeType, ...]
    number: int


class ModelCache:
    """What a vertex function keeps between calls: traces by signature, plans by structure."""

    def __init__(self) -> None:
        self.cells: dict[Hashable, list[CompiledCell]] = {}
        self.specs: dict[Hashable, tuple[tuple[Spec, Spec], int]] = {}
        self.kinds: dict[Hashable, tuple[Kinds, Any]] = {}
        self._numbered: dict[tuple[NodeType, ...], Kinds] = {}
        self.plans = PlanCache()
        self.reads_type: dict[int, bool] = {}
        self.warned: set[str] = set()
        self.foreseen: dict[Name, TensorSpec] = {}
        """Inputs that code with value-dependent paths asked for late."""

    def numbered(self, kinds: Sequence[NodeType]) -> Kinds:
        """Types as plans are told apart by them: a number is compared faster."""
        types = tuple(kinds)
        return self._numbered.setdefault(types, Kinds(types, len(self._numbered)))

    @staticmethod
    def of(model: nn.Module) -> ModelCache:
        found: ModelCache | None = model.__dict__.get("_weft")
        if found is None:
            found = model.__dict__["_weft"] = ModelCache()
        return found
