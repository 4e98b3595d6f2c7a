"""Collecting gradients: each step's rows sum what their readers give back, in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from weft.graph.segments import bag_sum
from weft.graph.tape import Value
from weft.run.columns import Addresses, Column, Cut
from weft.run.gather import SMALL, Action, Rows, numbers
from weft.run.indices import BackIndex
from weft.run.somerows import SomeRows, SomeSteps
from weft.run.typerun import TypeRun

How = int | Tensor | tuple[Tensor, Tensor]
"""A slice's first row, an index, or an index with segment bounds."""

Inner = list[tuple[Tensor, BackIndex]]
"""Gradient rows that readers of the same group give back, with the way back."""


class Collecting:
    """The columns of a recurrent output's gradient, and the actions that collect it.

    `outside` is the gradient from outside the group, over all rows; `inner` comes back from steps that ran before. `keep`: the
    collected rows are needed after the sweep. `by_address`: a kernel reads them. `indexed`: a kernel collects them, from memory
    with an index and from `outside`.
    """

    def __init__(
        self,
        run: TypeRun,
        value: Value,
        output: int,
        outside: Tensor | SomeRows | None,
        inner: Inner,
        keep: bool,
        indexed: bool = False,
        by_address: bool = False,
    ) -> None:
        self.run, self.value, self.inner, self.keep = run, value, inner, keep
        self.indexed, self.by_address = indexed, by_address
        self.starts = run.indices.class_starts(run.type, output)
        self.outside: Cut | SomeSteps | None = None
        if isinstance(outside, SomeRows):
            self.outside = SomeSteps(outside.by_step(run.cuts))
        elif outside is not None:
            self.outside = Cut(outside.contiguous() if indexed or by_address else outside, run.cuts)
        self.held: list[Tensor] = []
        """What addresses were given of: it must live as long as this."""

    @property
    def at_once(self) -> bool:
        """Whether the kernel finds everything itself: there is nothing to do before a step."""
        return self.indexed and len(self.inner) == 1 and self.inner[0][1].single is not None

    @cached_property
    def places(self) -> Column:
        """Where each step's gradient is put together."""
        run, value = self.run, self.value
        if self.keep or numbers(run, value) <= SMALL:
            whole = run.empty(value)
            if self.keep:
                run.store[value.name] = whole
            return Cut(whole, run.cuts)
        sizes = run.cuts.sizes
        shape = [size for size in (value.shape or ())[1:] if isinstance(size, int)]
        scratch = torch.empty((max(sizes), *shape), dtype=value.dtype, device=run.indices.device)
        return Rows(scratch, [0] * len(sizes), sizes)

    def both(self, first: int, last: int) -> tuple[Sequence[Sequence[Any]], list[Action | None]]:
        """A block of steps: the columns that say where each gradient will be, and how it gets there (None: it is there)."""
        if not self.indexed:
            places, actions = self._collected(first, last)
            return [[place.data_ptr() for place in places] if self.by_address else places], actions
        if self.at_once:
            return self._through_index(first, last), [None] * (last - first)
        places, actions = self._collected(first, last)
        many = last - first
        in_order, nothing = [self._in_order.data_ptr()] * many, [self._zeros.data_ptr()] * many
        return [[place.data_ptr() for place in places], in_order, nothing, [0] * many], actions

    def _through_index(self, first: int, last: int) -> Sequence[Sequence[int]]:
        """One reader, of whose gradient rows each row gets one (or the zeros behind them), besides what comes from outside."""
        (rows, back), many = self.inner[0], last - first
        assert back.single is not None
        index = back.single.int()
        self.held.append(index)
        pieces = [back.cuts[back.starts[start]] for start in self.starts[first:last]]
        indices = [index.data_ptr() + 4 * piece for piece in pieces]
        if self.outside is None:
            return [[rows.data_ptr()] * many, indices, [self._zeros.data_ptr()] * many, [0] * many]
        if isinstance(self.outside, SomeSteps):
            parts = self.outside.block(first, last)
            outer: Sequence[int] = [(self._zeros if part is None else part).data_ptr() for part in parts]
            apart = [0 if part is None else self._zeros.numel() for part in parts]
            return [[rows.data_ptr()] * many, indices, outer, apart]
        outer = Addresses(self.outside.tensor, self.run.cuts.offsets).block(first, last)
        return [[rows.data_ptr()] * many, indices, outer, [self._zeros.numel()] * many]

    @cached_property
    def _in_order(self) -> Tensor:
        return torch.arange(max(self.run.cuts.sizes, default=0), dtype=torch.int32)

    @cached_property
    def _zeros(self) -> Tensor:
        """A row that adds nothing."""
        return torch.zeros([size for size in (self.value.shape or ())[1:] if isinstance(size, int)], dtype=self.value.dtype)

    def _collected(self, first: int, last: int) -> tuple[list[Tensor], list[Action | None]]:
        places: list[Tensor] = list(self.places.block(first, last))
        actions: list[Action | None] = [None] * len(places)
        outer: Sequence[Tensor | None] = [None] * len(places)
        if self.outside is not None:
            outer = self.outside.block(first, last)
        for step, place in enumerate(places):
            start = self.starts[first + step]
            parts = [(rows, back.piece(back.starts[start])) for rows, back in self.inner]
            found = [(rows, how) for rows, how in parts if how is not None]
            ready = None if self.keep else _as_it_is(place.shape[0], outer[step], found)
            if ready is None:
                actions[step] = _Collect(place, outer[step], found)
            else:
                places[step] = ready
        return places, actions


def _as_it_is(rows: int, outer: Tensor | None, parts: list[tuple[Tensor, How]]) -> Tensor | None:
    """A gradient that exists already: it comes from one place only, in order."""
    if not parts:
        return outer
    source, how = parts[0]
    return source[how : how + rows] if len(parts) == 1 and outer is None and isinstance(how, int) else None


class _Collect:
    """Sum what comes back for a step's rows into `out`."""

    __slots__ = ("out", "outer", "parts")

    def __init__(self, out: Tensor, outer: Tensor | None, parts: list[tuple[Tensor, How]]) -> None:
        self.out, self.outer, self.parts = out, outer, parts

    def __call__(self) -> None:
        out = self.out
        so_far = self.outer
        for rows, how in self.parts:
            if so_far is None and isinstance(how, Tensor):
                torch.index_select(rows, 0, how, out=out)
            elif so_far is None:
                out.copy_(_pulled(rows, how, out.shape[0]))
            else:
                torch.add(so_far, _pulled(rows, how, out.shape[0]), out=out)
            so_far = out
        if so_far is None:
            out.zero_()
        elif so_far is not out:
            out.copy_(so_far)


def _pulled(rows: Tensor, how: How, count: int) -> Tensor:
    if isinstance(how, int):
        return rows[how : how + count]
    return rows.index_select(0, how) if isinstance(how, Tensor) else bag_sum(rows, how[0], how[1])


def pull_all(rows: Tensor, back: BackIndex) -> Tensor:
    """The gradient of all class rows that a group wrote, from one reader outside it."""
    how = back.piece(0)
    assert how is not None
    if isinstance(how, Tensor) and back.back.single is not None and int(back.back.single.max()) >= rows.shape[0]:
        return bag_sum(rows, back.index, back.bounds)  # some rows were not read, and there is no row of zeros
    return _pulled(rows, how, back.back.last - back.back.first)
