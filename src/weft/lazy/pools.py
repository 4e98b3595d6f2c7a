"""Results of flushes, kept so that later calls can take them again.

Results of one kind go into one *pool*, flush after flush, and whatever a flush takes of them is one gather: of what a few
flushes gave, as long as that is little, or most of it is taken; else of a buffer that holds all of them. Gradients come back
the same way: what was taken of the buffer adds to another one, and every flush gets its part of that. A token that goes from
node to node keeps the order; backward, from the right to the left:

    flush 1 -> exchange -> token -> exchange <- flush 2        an exchange takes in what the last flush gave,
                  |                    |                       and gives out what the next one needs
                  rows for flush 2     rows for flush 3
"""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.graph.recording import Picked, Table, as_tensor
from weft.graph.uncast import cat
from weft.lazy.chains import Flags, Longs
from weft.lazy.kinds import Kind, kind_of
from weft.run.batched import Once

ROW_BITS = 32
"""Where a result is, as one integer: `source << ROW_BITS | row`."""
ROW = (1 << ROW_BITS) - 1
LEAST_ROWS = 64
FEW_BYTES = 1 << 17
"""To copy so much memory, to clear it and to add it up takes less time than an exchange."""


_alone = object()
_UNHELD = 1 + sys.getrefcount(_alone)
"""The count of references to what a variable holds, and a list."""


def _holders(tensor: Tensor) -> int:
    """How many tensors, arrays of numpy and handles lie in the same memory."""
    storage = tensor.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata))


_UNSHARED = _holders(torch.zeros(1))


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bits."""
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


class Rows:
    """Results of one kind from one flush."""

    number = -1
    """Which source of its tape it is."""
    pool: Pool | None = None
    """Results of the same kind; none where the rows were given."""
    first = 0
    """Where its rows begin in the pool."""

    def __init__(self, rows: Tensor, kind: Kind | None = None) -> None:
        self.rows = rows
        self.kind = kind or kind_of(rows.shape[1:], rows.dtype)
        self._rows: list[Tensor | None] | None = None
        self._numbers: list[Any] | None = None
        self._parts: Sequence[Tensor] | None = None
        self.shaped: dict[Any, Any] = {}
        """What operations have given for all rows whose results have shapes that depend on numbers."""

    def part(self, at: int) -> Tensor:
        """One row, to be read."""
        shown = None if self._rows is None else self._rows[at]
        if shown is not None:  # whoever got it may have written into it
            return shown
        if self._parts is None:
            self._parts = self.rows.unbind(0)
        return self._parts[at]

    def is_shown(self) -> bool:
        """Whether tensors of rows were given out."""
        return self._rows is not None

    def row(self, at: int) -> Tensor:
        """One row as a tensor of its own: writing into it changes no other."""
        if self._rows is None:
            self._rows = [None] * len(self.rows)
        found = self._rows[at]
        if found is None:
            found = self._rows[at] = self.part(at).clone()
        return found

    def numbers(self, at: int) -> Any:
        """The numbers of one row, as Python has them."""
        found = None if self._rows is None else self._rows[at]
        if found is not None:  # whoever got it may have written into it
            return found.tolist()
        if self._numbers is None:
            self._numbers = self.rows.detach().tolist()
        return self._numbers[at]

    def ready(self) -> list[Any] | None:
        """The numbers of all rows, where they were asked for before and nobody can have changed them."""
        return self._numbers if self._rows is None else None

    def is_changed(self, at: int) -> bool:
        """Whether somebody has written into the tensor of that row that was given out."""
        found = None if self._rows is None else self._rows[at]
        return found is not None and not _is_same(found.detach(), self.rows[at].detach())

    def is_held(self, at: int) -> bool:
        """Whether somebody still holds the tensor of that row, or its memory."""
        found = None if self._rows is None else self._rows[at]
        return found is not None and (sys.getrefcount(found) > _UNHELD or _holders(found) > _UNSHARED)

    def is_written(self, written: Container[int]) -> bool:
        """Whether somebody has written into the rows themselves; into results nobody can."""
        return False

    def take(self, index: Longs) -> Tensor:
        """Some rows, in this order."""
        if len(self.rows) == 1 and len(index) == 1:
            return self.rows
        return self.rows.index_select(0, torch.from_numpy(index).to(self.rows.device))


Part = tuple[Rows, Longs]
"""Some rows of a flush's results."""


class Pool:
    """Results of one kind from all flushes of a recording. `plain`: torch's own functions take them, as the reference does."""

    def __init__(self, kind: Kind, plain: bool = False) -> None:
        self.kind, self.plain = kind, plain
        self.size = 0
        self._few = FEW_BYTES // max(kind.count * kind.dtype.itemsize, 1)
        self._parts: list[Rows] = []
        self._buffer: Tensor | None = None
        self._filled = 0
        self._ledger: Ledger | None = None
        self._token: Tensor | None = None

    def add(self, rows: Tensor) -> Rows:
        """Results of one more flush. Nothing is copied before some of them are taken."""
        part = Rows(rows, self.kind)
        part.pool, part.first = self, self.size
        self._parts.append(part)
        self.size += len(rows)
        return part

    def take(self, parts: Sequence[Part]) -> Table:
        """Some rows of several flushes, in this order; each at most once."""
        lengths = [part.rows.shape[0] for part, _ in parts]
        if self.plain or sum(lengths) <= max(self._few, 2 * sum([len(index) for _, index in parts])):
            # A gradient of it is as long as the parts: that takes no longer than the exchange.
            if len(parts) == 1:
                return Picked(parts[0][0].rows, parts[0][1])
            firsts = [0, *accumulate(lengths[:-1])]
            return cat([part.rows for part, _ in parts]).index_select(0, self._places(parts, firsts))
        buffer, trained = self._fill()
        places = self._places(parts, [part.first for part, _ in parts])
        if self._token is None and not trained:
            return buffer.index_select(0, places)
        if self._ledger is None:
            self._ledger = Ledger(self.kind, buffer.device)
        self._ledger.size = self.size
        rows: Tensor
        exchange: Any = _Exchange
        taken = Taken(places, [part.first for part, _ in parts])
        rows, self._token = exchange.apply(
            self._ledger, buffer, taken, [part.first for part in trained], self._token, *[part.rows for part in trained]
        )
        return rows

    @staticmethod
    def _places(parts: Sequence[Part], firsts: Sequence[int]) -> Tensor:
        """Where the rows are if those of each part begin there."""
        places = np.concatenate([index + first for (_, index), first in zip(parts, firsts, strict=True)])
        return torch.from_numpy(places).to(parts[0][0].rows.device)

    def _fill(self) -> tuple[Tensor, list[Rows]]:
        """Bring the results of the last flushes into the buffer; those among them that are trained."""
        fresh, buffer = self._parts[self._filled :], self._buffer
        if buffer is None or len(buffer) < self.size:
            buffer = self._larger(self._parts[0].rows)
        with torch.no_grad():
            for part in fresh:
                buffer.narrow(0, part.first, len(part.rows)).copy_(part.rows)
        self._filled = len(self._parts)
        return buffer, [part for part in fresh if part.rows.requires_grad] if torch.is_grad_enabled() else []

    def _larger(self, like: Tensor) -> Tensor:
        before = self._buffer
        self._buffer = torch.empty((max(2 * self.size, LEAST_ROWS), *like.shape[1:]), dtype=like.dtype, device=like.device)
        if before is not None:
            self._buffer[: len(before)] = before
        return self._buffer


class Taken(NamedTuple):
    """Which rows were taken, and where the parts begin that they are of."""

    places: Tensor
    parts: list[int]


class Ledger:
    """The gradients of a pool's rows, for each backward pass that is under way, and the parts that have any."""

    def __init__(self, kind: Kind, device: torch.device) -> None:
        self.kind, self.device, self.size = kind, device, 0
        self._passes: dict[int, tuple[Tensor, set[int]]] = {}

    def gradients(self) -> tuple[Tensor, set[int]]:
        """Those of the backward pass that is running."""
        number = torch._C._current_graph_task_id()
        found = self._passes.get(number)
        if found is None:
            if len(self._passes) > 8:  # passes that ended before they came to the first flush
                self._passes.clear()
            zeros = torch.zeros((self.size, *self.kind.shape), dtype=self.kind.dtype, device=self.device)
            found = self._passes[number] = zeros, set()
        return found

    def close(self) -> None:
        self._passes.pop(torch._C._current_graph_task_id(), None)


class _Exchange(torch.autograd.Function):
    """Results of flushes went into the pool; rows out of it, and the token for whoever comes next."""

    @staticmethod
    def forward(
        ctx: Any, ledger: Ledger, buffer: Tensor, taken: Taken, firsts: list[int], token: Tensor | None, *given: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.ledger, ctx.taken, ctx.is_start = ledger, taken, token is None
        ctx.parts = [(first, len(rows)) for first, rows in zip(firsts, given, strict=True)]
        ctx.set_materialize_grads(False)
        return buffer.index_select(0, taken.places), buffer.new_empty(())

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        buffer, trained = ctx.ledger.gradients()
        if grad is not None:
            buffer.index_add_(0, ctx.taken.places, grad.detach())
            trained.update(ctx.taken.parts)
        if ctx.is_start:
            ctx.ledger.close()
        # A part of which nothing was taken has no gradient, as a tensor that nobody uses has none.
        found = [buffer.narrow(0, first, count) if first in trained else None for first, count in ctx.parts]
        if torch.is_grad_enabled():
            found = [None if part is None else _once(part) for part in found]
        return None, None, None, None, None, *found


def _once(grad: Tensor) -> Tensor:
    """A gradient that says so when it is differentiated again."""
    marked: Any = Once
    found: Tensor = marked.apply(grad.new_ones((), requires_grad=True), grad)
    return found


def handed(parts: Sequence[Part], learning: Flags | None = None) -> Table:
    """Some rows of one kind, in this order, of which only the learning ones get gradients, so that the others have none."""
    if learning is None or learning.all() or not torch.is_grad_enabled():
        pooled = [(pool, list(some)) for pool, some in groupby(parts, lambda part: part[0].pool)]
        found = [one for pool, some in pooled for one in (_given(some) if pool is None else [pool.take(some)])]
        return found[0] if len(found) == 1 else cat(list(map(as_tensor, found)))
    if not learning.any():
        return taken(parts).detach()
    ends = np.cumsum([len(index) for _, index in parts])[:-1]
    flags = np.split(learning, ends)
    chosen = [(part, index[mine]) for (part, index), mine in zip(parts, flags, strict=True) if mine.any()]
    others = [(part, index[~mine]) for (part, index), mine in zip(parts, flags, strict=True) if not mine.all()]
    both = cat([taken(chosen), taken(others).detach()])
    order = np.argsort(np.concatenate([np.flatnonzero(learning), np.flatnonzero(~learning)]))
    return both.index_select(0, torch.from_numpy(order).to(both.device))


def taken(parts: Sequence[Part]) -> Tensor:
    """The same, all learning, as a tensor."""
    return as_tensor(handed(parts))


def _given(parts: Sequence[Part]) -> list[Table]:
    return [part.take(index) for part, index in parts]


class Found(NamedTuple):
    """Where some references are: their rows, source by source, which of those each has, and how many are of each source."""

    rows: Longs
    place: Longs
    sources: list[tuple[int, int]]


def found_rows(results: dict[int, int], refs: Longs) -> Found:
    """Where the results of some references are."""
    source, row = places_of(results, refs.tolist())
    order, counts = np.argsort(source, kind="stable"), np.bincount(source)
    where = np.empty(len(order), np.int64)
    where[order] = np.arange(len(order))
    return Found(row[order], where, [(number, int(counts[number])) for number in np.flatnonzero(counts).tolist()])


def places_of(results: dict[int, int], refs: Any) -> tuple[Longs, Longs]:
    """For some references, the source and the row of each."""
    found = np.fromiter(map(results.__getitem__, refs), np.int64)
    return found >> ROW_BITS, found & ROW
