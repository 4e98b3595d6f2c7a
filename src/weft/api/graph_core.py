"""What a graph holds, base graph or batch, and what makes two of them equal. `graph.py` has the ways to make one."""

from __future__ import annotations

from functools import cached_property
from hashlib import blake2b
from typing import Any, Self

import numpy as np
import torch

from weft.api import graph_parts as merging
from weft.api.graph_build import Arrays, Ints, Types, freeze
from weft.api.graph_check import LARGEST, check_size
from weft.errors import StructureError
from weft.plan.graphs import Keepable, KeptGraphs
from weft.plan.levels import levels
from weft.plan.levels import offsets as offsets_from


class GraphCore(Keepable):
    """Flat arrays of one base graph, or of a batch, whose arrays are merged from its parts when first read."""

    num_vertices: int
    type_names: tuple[str, ...] | None
    device: torch.device | None
    cache: dict[Any, Any]
    _parts: tuple[Self, ...] | None

    def _set_base(self, arrays: Arrays, types: Types, labels: list[Any] | None) -> None:
        self._parts, self.device, self.cache = None, None, {}
        self._arrays, self._types = arrays, types
        self.num_vertices = len(arrays.offsets) - 1
        self.type_names = types.names
        self.labels = labels

    def _set_batch(self, parts: tuple[Self, ...], device: torch.device | None, together: KeptGraphs | merging.Together) -> None:
        self._parts, self.device, self.cache, self.together = parts, device, {}, together
        self.num_vertices = together.vertices
        self.__dict__["key"] = together.digest  # the place of a cached property: it is known already
        if together.vertices >= LARGEST:
            check_size(together.vertices, 0)
        alike = together.types != merging.MIXED and parts
        self.type_names = parts[0].type_names if alike else merging.common_type_names(parts)

    @cached_property
    def together(self) -> KeptGraphs | merging.Together:
        """What the parts are together."""
        return merging.together(self.parts)

    @property
    def parts(self) -> tuple[Self, ...]:
        """The base graphs in order; a base graph is its own only part."""
        return (self,) if self._parts is None else self._parts

    @property
    def num_graphs(self) -> int:
        """How many base graphs; one that is a forest is still one graph."""
        return len(self.parts)

    @cached_property
    def part_offsets(self) -> Ints:
        """Where each part's vertices start, and where the last one's end."""
        return freeze(offsets_from(np.array([part.num_vertices for part in self.parts], dtype=np.int64)))

    @cached_property
    def _arrays(self) -> Arrays:
        return Arrays(self.children, self.offsets, self.edge_rows)

    @cached_property
    def _merged(self) -> merging.Merged:
        return merging.merge(self.parts, self.part_offsets, self.together)

    @cached_property
    def kinds(self) -> Ints:
        """Twice the type of every vertex, and one more if it gathers nobody."""
        if self._parts is not None and self.together.types != merging.MIXED:
            return self._merged.kinds
        ids = self.type_ids
        return self.childless if ids is None else freeze(self.childless + np.int32(2) * ids)

    @cached_property
    def childless(self) -> Ints:
        """1 for every vertex that gathers nobody, else 0."""
        if self._parts is not None:
            return freeze(self._merged.kinds & np.int32(1))
        filled = offsets_from(self.children >= 0)[self.offsets]
        return freeze(np.diff(filled) == 0)

    @cached_property
    def children(self) -> Ints:
        """The children of all vertices, slot after slot; -1 is an empty slot."""
        return self._merged.children if self._parts is not None else self._arrays.children

    @cached_property
    def offsets(self) -> Ints:
        """Vertex v has the slots `offsets[v]` up to `offsets[v + 1]`."""
        return self._merged.offsets if self._parts is not None else self._arrays.offsets

    @cached_property
    def edge_rows(self) -> Ints:
        """The number of the edge in each slot, counted as the constructor got the edges; -1 at an empty slot."""
        return merging.merge_edge_rows(self._parts) if self._parts is not None else self._arrays.edge_rows

    @cached_property
    def num_edges(self) -> int:
        """How many slots are not empty."""
        if self._parts is not None:
            return self.together.edges
        return int(np.count_nonzero(self.children >= 0))

    @cached_property
    def _types(self) -> Types:
        found = self.together
        if found.types in (merging.MIXED, merging.NO_TYPES) or found.kinds == merging.MANY:
            return merging.merge_types(self.parts, self.type_names)
        return Types(freeze(self.kinds >> 1), self.type_names)

    @cached_property
    def type_ids(self) -> Ints | None:
        """The type of every vertex, as an index into `type_names` where types were given as names."""
        return self._types.ids

    @cached_property
    def has_types(self) -> bool:
        """Whether vertices have types."""
        return self.together.types > merging.NO_TYPES or (self.together.types == merging.MIXED and self.type_ids is not None)

    @cached_property
    def highest_type(self) -> int:
        """The highest type id of any vertex, -1 where there is none."""
        found = self.together
        if found.types == merging.MIXED or found.kinds == merging.MANY:
            return -1 if self.type_ids is None else int(self.type_ids.max(initial=-1))
        return (found.kinds.bit_length() + 1) // 2 - 1 if self.has_types else -1

    @cached_property
    def labels(self) -> list[Any] | None:
        """What `from_nltk` found at every vertex; None where a graph has other origins."""
        every = [part.labels for part in self.parts]
        known = [labels for labels in every if labels is not None]
        return [label for labels in known for label in labels] if every and len(known) == len(every) else None

    @cached_property
    def _depth(self) -> Ints:
        try:
            return freeze(levels(self.offsets, self.children))
        except StructureError:
            for i, part in enumerate(self._parts or ()):
                try:
                    levels(part.offsets, part.children)
                except StructureError as error:
                    raise StructureError(f"graph {i} of {self.num_graphs}: {error}") from None
            raise

    @cached_property
    def key(self) -> bytes:
        """A digest of structure, edge order and types; that of a batch is made from those of its parts."""
        return self.digest

    @cached_property
    def digest(self) -> bytes:
        if self._parts is not None:
            return self.together.digest
        header = (self.num_vertices, len(self.children), self.type_ids is not None, self.type_names)
        digest = blake2b(repr(header).encode(), digest_size=16, person=b"graph")
        for array in (*self._arrays, self.type_ids):
            if array is not None:
                digest.update(array.data)
        return digest.digest()

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, GraphCore) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(vertices={self.num_vertices}, edges={self.num_edges}, graphs={self.num_graphs})"

    def __getstate__(self) -> dict[str, Any]:
        if self._parts is not None:
            return {"parts": self._parts, "device": self.device}
        return {"arrays": self._arrays, "types": self._types, "labels": self.labels, "device": self.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "parts" in state:
            self._set_batch(state["parts"], state["device"], merging.together(state["parts"]))
            return
        # Copied and unpickled arrays come back writeable.
        ids, names = state["types"]
        types = Types(None if ids is None else freeze(ids), names)
        self._set_base(Arrays(*map(freeze, state["arrays"])), types, state["labels"])
        self.device = state["device"]
