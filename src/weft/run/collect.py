"""Collecting gradients: each step's rows sum what their readers give back, in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.graph.segments import bag_sum
from weft.graph.tape import Value
from weft.run.columns import Cut
from weft.run.gather import SMALL, Action, Rows, numbers
from weft.run.indices import BackIndex
from weft.run.typerun import TypeRun

How = int | Tensor | tuple[Tensor, Tensor]
"""A slice's first row, an index, or an index with segment bounds."""

Inner = list[tuple[Tensor, BackIndex]]
"""Gradient rows that readers of the same group give back, with the way back."""


class Collecting:
    """The column of a recurrent output's gradient, and the actions that collect it.

    `outside` is the gradient from outside the group, over all rows; `inner` comes back from steps that ran before.
    """

    def __init__(self, run: TypeRun, value: Value, output: int, outside: Tensor | None, inner: Inner, keep: bool) -> None:
        self.inner, self.keep = inner, keep
        self.starts = run.indices.class_starts(run.type, output)
        self.outside = None if outside is None else Cut(outside, run.cuts)
        if keep or numbers(run, value) <= SMALL:
            whole = run.empty(value)
            if keep:
                run.store[value.name] = whole
            self.places: Any = Cut(whole, run.cuts)
        else:
            sizes = run.cuts.sizes
            shape = [size for size in (value.shape or ())[1:] if isinstance(size, int)]
            scratch = torch.empty((max(sizes), *shape), dtype=value.dtype, device=run.indices.device)
            self.places = Rows(scratch, [0] * len(sizes), sizes)

    def both(self, first: int, last: int) -> tuple[Sequence[Tensor], list[Action | None]]:
        """A block of steps: where each gradient will be, and how it gets there (None: it is there)."""
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
