"""What a vertex function keeps between calls."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import nn

from weft.graph.program import NodeType
from weft.graph.rows import Spec, TensorSpec
from weft.graph.tape import Name
from weft.plan.schedule import PlanCache
from weft.run.call import CompiledCell


class ModelCache:
    """What a vertex function keeps between calls: traces by signature, plans by structure."""

    def __init__(self) -> None:
        self.cells: dict[Hashable, list[CompiledCell]] = {}
        self.specs: dict[Hashable, tuple[tuple[Spec, Spec], int]] = {}
        self.kinds: dict[Hashable, tuple[list[NodeType], Any]] = {}
        self.plans = PlanCache()
        self.reads_type: dict[int, bool] = {}
        self.warned: set[str] = set()
        self.foreseen: dict[Name, TensorSpec] = {}
        """Inputs that code with value-dependent paths asked for late."""

    @staticmethod
    def of(model: nn.Module) -> ModelCache:
        found: ModelCache | None = model.__dict__.get("_weft")
        if found is None:
            found = model.__dict__["_weft"] = ModelCache()
        return found
