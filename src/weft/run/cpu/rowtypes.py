"""Node types within recipes on a CPU, in both directions: pieces are walks where they can be, and rows are moved by jobs."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import torch

from weft.graph.tape import Value
from weft.plan.library import address
from weft.run.cpu.jobs import ALL, COLLECT, COPY, NUMBERS, TAKE, JobWriter
from weft.run.cpu.walk import Walk
from weft.run.emit import Code
from weft.run.gpu.bind import offsets_of
from weft.run.indices import Indices
from weft.run.recipe import NoRecipe
from weft.run.recipetypes import TypeText
from weft.run.rowview import row_width

CONSTANT = "0, 0"
"""The end of a line whose number is the same in every step."""


def address_of(indices: Indices, what: Hashable, array: Any) -> int:
    """Where an array of a plan begins, as integers of 32 bits; it stays there as long as the plan's indices do."""
    return address(indices.once(("at", what), lambda: np.ascontiguousarray(array, np.int32)))


class NativeTypeText(TypeText):
    """One node type within a recipe on a CPU: a piece over all rows is one walk where it can be, and rows are moved by jobs."""

    writer: JobWriter

    def run_whole(self, code: Code, destinations: dict[str, str] | None = None) -> None:
        walk: Walk | None = code.walk
        if walk is None or not self._alone(walk):
            super().run_whole(code, destinations)
            return
        self.walk_whole(walk, destinations or {})
        for value, base in walk.views:
            self.store[value.name] = self.writer.let(f"{self.whole(base)}.t()")

    def walk_whole(self, walk: Walk, destinations: dict[str, str]) -> None:
        """Say the call of a walk over all rows; what it computes goes to its destination or joins the store."""
        lines = [line for value in walk.takes for line in self.given(value, walk)]
        lines += [f"{self.begin(self.into(value, destinations))}, {CONSTANT}" for value in walk.into]
        bounds = "0" if self.bag is None else self.at("bounds", self.bag)
        lines += [f"{number}, {CONSTANT}" for number in (self.n, self.e, bounds)]
        scratch = self.scratch(walk, self.n, self.e)
        self.writer.walk(walk, lines, scratch, (self.n, self.e), ("0", "1"))
        self.let_go(scratch)

    def begin(self, place: str) -> str:
        """Where the memory of a variable begins."""
        return f"{place}.data_ptr()"

    def given(self, value: Value, walk: Walk) -> list[str]:
        """The lines of a value that exists for all rows."""
        raise NotImplementedError

    def scratch(self, walk: Walk, rows: str, edges: str) -> str:
        """Memory for a walk while it runs."""
        raise NotImplementedError

    def let_go(self, scratch: str) -> None:
        """What becomes of that memory."""

    def into(self, value: Value, destinations: dict[str, str]) -> str:
        """Where a walk writes a value."""
        if value.name in destinations:
            return destinations[value.name]
        self.store[value.name] = JobWriter.empty(self.writer, self.sizes(value), value.dtype)
        return self.store[value.name]

    def _alone(self, walk: Walk) -> bool:
        type, many = self.type, None if self.bag is None else self.reads[self.bag]
        if torch.get_num_threads() == 1:  # as in every call by this recipe
            return True

        def question(indices: Indices) -> bool:
            plan = indices.plan
            return walk.alone(max(len(plan.rows[type]), 0 if many is None else len(plan.reads[many].index)))

        return self.writer.ask(("alone", type, walk.numbers), question, by_rows=True)

    # Rows that are moved.

    def at(self, what: str, port: int) -> str:
        """Where an array of what a port reads begins."""
        find = {"index": lambda read: read.index, "bounds": offsets_of}[what]
        number = self.reads[port]
        return self.writer.fact(
            ("at", what, number), lambda indices: address_of(indices, (what, number), find(indices.plan.reads[number]))
        )

    def fed_at(self) -> tuple[str, str]:
        """Where it is listed what the type's rows are fed: their nodes, and of each node the row of what is fed."""
        type = self.type
        nodes = self.writer.fact(
            ("at", "nodes", type), lambda indices: address_of(indices, ("nodes", type), indices.plan.rows[type])
        )
        if self.writer.is_picked:
            return nodes, "feed"
        if not self.is_fed():
            return nodes, "0"
        return nodes, self.writer.fact("feed", lambda indices: address_of(indices, "feed", indices.plan.program.feed))

    def in_order(self) -> bool:
        """Whether the type's rows are fed the first rows in order: where each node says what it is fed, nobody looks."""
        return not self.is_fed() and super().in_order()

    def fed_rows(self) -> str:
        if self.writer.is_picked:
            raise NoRecipe("picked rows that only torch can take")
        return super().fed_rows()

    def _gather(self, port: int, name: Any) -> str:
        read, value = self.ports[port], self.code.tape.inputs[name]
        width = row_width(value)
        is_sum = read.kind == "sum"
        if read.value_class < 0 or width is None or value.dtype is None or (is_sum and value.dtype not in NUMBERS):
            return super()._gather(port, name)
        if not is_sum and self.ask("slice", lambda indices, read: indices.read(read).whole_slice is not None, port):
            return super()._gather(port, name)
        arena, out = self.arenas[read.value_class, name[-1]], self.empty(value)
        to, rows = f"{out}.data_ptr()", f"{arena}.data_ptr()"
        if is_sum:
            sizes = self.n, width, value.dtype.itemsize
            self.writer.job(COLLECT, to, rows, self.at("index", port), self.at("bounds", port), *sizes, ALL, 0)
        else:
            many = self.fact("many", lambda indices, read: len(read.index), port)
            slots = read.width if read.kind == "slots" else 1
            self.writer.job(TAKE, to, rows, self.at("index", port), 0, many, width * value.dtype.itemsize // slots)
        return out

    def _fed(self, name: Any) -> str:
        value = self.code.tape.inputs[name]
        if self.in_order() or row_width(value) is None:
            return super()._fed(name)
        out = self.empty(value)
        self.feed_into(name, out)
        return out

    def feed_into(self, name: Any, place: str, take: str | None = None) -> None:
        value = self.code.tape.inputs[name]
        width = row_width(value)
        if width is None or value.dtype is None:
            super().feed_into(name, place, take)
            return
        rows, bytes = self.writer.dense(f"tensors[{self.inputs[self.type, name]}]"), width * value.dtype.itemsize
        if self.in_order():
            self.writer.job(COPY, self.begin(place), f"{rows}.data_ptr()", f"{self.n} * {bytes}")
        else:
            self.writer.job(TAKE, self.begin(place), f"{rows}.data_ptr()", *self.fed_at(), self.n, bytes)
