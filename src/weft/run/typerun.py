"""One node type within one call: its whole-row tensors, and the columns of views that its per-step pieces run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from weft.graph.ports import port_of, slots_port
from weft.graph.segments import bag_sum
from weft.graph.tape import Name, Value
from weft.plan.plan import Read
from weft.run.code import CellCode
from weft.run.columns import Column, Cut, Cuts, Listed, Same
from weft.run.emit import Code
from weft.run.indices import Indices, ReadIndex
from weft.run.spare import empty

Arenas = dict[tuple[int, Name], Tensor]

MANY_STEPS = 8
"""From so many steps of some rows on, a copy of a turned weight pays."""


class TypeRun:
    """A type's rows in one call. `store` maps values (by name) to tensors over all rows."""

    def __init__(
        self,
        type: int,
        code: CellCode,
        indices: Indices,
        arenas: Arenas,
        fed: Callable[..., Tensor],
        records: dict[Any, Any],
        fresh: Callable[..., Tensor] = empty,
    ) -> None:
        self.records, self.fresh = records, fresh
        self.type, self.code, self.indices, self.arenas, self.fed = type, code, indices, arenas, fed
        plan = indices.plan
        self.rows = len(plan.rows[type])
        self.kinds = plan.program.types[type].ports
        self.ports: dict[int, Read] = {read.port: read for read in plan.reads if read.type == type}
        bag = next((read for read in self.ports.values() if read.kind == "edges"), None)
        self.bag = bag
        self.edges = 0 if bag is None else len(bag.index)
        self.cuts = indices.step_cuts(type)
        self.store: dict[str, Tensor] = {}
        self.fed_on: dict[str, Tensor] = {}
        """Inputs of a sweep that stores them, too: then the store has the place where they go."""
        self.in_class: dict[str, tuple[int, Name]] = {}
        """Values that exist only in their class arena, between rows of other types."""
        self.gradients: dict[str, Any] = {}
        """For a kernel that walks all steps: where the gradients of recurrent outputs come from."""

    # Whole rows.

    def whole(self, value: Value) -> Tensor:
        """The tensor of a value over all rows."""
        found = self.store.get(value.name)
        if found is None:
            found = self._from_class(value) if value.name in self.in_class else self.input(self.code.input_name[value.name])
            self.store[value.name] = found
        return found

    def has(self, value: Value) -> bool:
        return value.name in self.store or value.name in self.in_class

    def _from_class(self, value: Value) -> Tensor:
        output, key = self.in_class[value.name]
        where = self.indices.class_rows(self.type, output)
        assert isinstance(where, Tensor)
        return self.arenas[self.indices.plan.class_of[self.type, output], key].index_select(0, where)

    def input(self, name: Any) -> Tensor:
        kind, port = name[0], port_of(self.kinds, name)
        if port is not None:
            read = self.ports[port]
            if read.value_class < 0:
                return self.empty(self.code.tape.inputs[name]).zero_()
            return self._gather(read, name[-1])
        if kind == "filled":
            return self._filled(name[1])
        if kind == "count":
            return self._count()
        if kind == "seg":
            assert self.bag is not None
            return self.indices.seg(self.bag)[0]
        return self.fed(self.type, name)

    def _gather(self, read: Read, key: Name) -> Tensor:
        """All rows that a port reads, at once."""
        at = self.indices.read(read)
        arena = self.arenas[read.value_class, key]
        if read.kind == "sum":
            assert read.offsets is not None
            return bag_sum(arena, at.index, self.indices.seg(read)[1])
        first = at.whole_slice
        rows = arena.index_select(0, at.index) if first is None else arena.narrow(0, first, at.cuts.offsets[-1])
        return rows.view(self.gathered_shape(read, arena, len(rows) // (read.width if read.kind == "slots" else 1)))

    def gathered_shape(self, read: Read, arena: Tensor, rows: int) -> tuple[int, ...]:
        tail = tuple(arena.shape[1:])
        return (rows, read.width, *tail) if read.kind == "slots" else (rows, *tail)

    def _filled(self, position: int) -> Tensor:
        read = self.ports[slots_port(self.kinds, position)]
        plan = self.indices.plan
        column = self.kinds[read.port].positions.index(position)
        rows = plan.classes[read.value_class].rows if read.value_class >= 0 else 0
        return (self.indices.read(read).index.view(-1, read.width)[:, column] < rows).contiguous()

    def _count(self) -> Tensor:
        read = self.bag or next(read for read in self.ports.values() if read.kind == "sum")
        spec = self.code.tape.inputs[("count",)]
        return self.indices.seg(read)[1].diff().to(spec.dtype)

    def run_whole(self, code: Code, destinations: Mapping[str, Tensor]) -> None:
        """Run a piece over all rows; what it returns joins the store."""
        takes = [self.whole(value) for value in code.takes]
        into = [destinations[value.name] for value in code.stores]
        bounds = None if self.bag is None else self.indices.seg(self.bag)[1]
        results = code.run(*takes, *into, self.rows, self.edges, bounds, self.records)
        for value, result in zip(code.returns, results, strict=True):
            self.store[value.name] = result

    # Per step.

    def column(self, value: Value) -> Column:
        """A value's tensor cut into the steps' rows."""
        rows = value.rows
        if rows is None:
            return Same(self._turned(value) if value.target is torch.ops.aten.t.default else self.whole(value))
        if self.code.input_name.get(value.name) == ("seg",):
            assert self.bag is not None
            return self.indices.seg(self.bag)[2]
        cuts = self.cuts if rows.kind == "n" else self.edge_cuts()
        return Cut(self.whole(value), cuts, rows.times, value.row_dim or 0)

    def _turned(self, value: Value) -> Tensor:
        """A transposed weight, as it is or copied.

        CPU libraries multiply some rows with a contiguous matrix faster, which pays for the copy after some such steps.
        """
        whole = self.whole(value)
        if whole.device.type != "cpu" or self.cuts.narrow < MANY_STEPS:
            return whole
        return self.fresh(whole.shape, whole.dtype, whole.device).copy_(whole)

    def edge_cuts(self) -> Cuts:
        assert self.bag is not None
        return self.indices.edge_cuts(self.bag)

    def shape(self, value: Value) -> list[int]:
        """The sizes of a value over all rows."""
        shape = []
        for size in value.shape or ():
            rows = self.rows if not isinstance(size, int) and size.kind == "n" else self.edges
            shape.append(size if isinstance(size, int) else size.times * rows)
        return shape

    def empty(self, value: Value) -> Tensor:
        """Fresh memory for a value over all rows."""
        assert value.dtype is not None
        return self.fresh(self.shape(value), value.dtype, self.indices.device)

    def tail(self) -> list[Column]:
        """The last columns of every per-step piece: numbers of rows and edges, segment bounds, the call's records."""
        records = Same(self.records)
        if self.bag is None:
            return [Listed(self.cuts.sizes), Same(0), Same(None), records]
        return [Listed(self.cuts.sizes), Listed(self.edge_cuts().sizes), self.indices.seg(self.bag)[3], records]

    def recurrent(self, value: Value) -> ReadIndex | None:
        """The read behind a value if it is gathered from rows that are still being computed."""
        name: Any = self.code.input_name.get(value.name)
        if name is None or name not in self.code.role.recurrent_in:
            return None
        port = port_of(self.kinds, name)
        assert port is not None
        return self.indices.read(self.ports[port])
