"""Results of flushes, kept so that later calls can take them again.

Results of one kind go into one *pool*, flush after flush, and whatever a flush takes of them is one gather. Gradients come back
the same way: every take adds its rows into one buffer, and every flush gets its part of that buffer. A token that goes from
node to node keeps the order:

    flush 1 -> put -> token -> take -> token -> put <- flush 2        backward: takes add to the buffer, puts read their part
                               |                                                of it, from the right to the left
                               rows for flush 2
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.lazy.chains import Longs
from weft.lazy.kinds import Kind, kind_of
from weft.run.batched import _Once

ROW_BITS = 32
"""Where a result is, as one integer: `source << ROW_BITS | row`."""
ROW = (1 << ROW_BITS) - 1
LEAST_ROWS = 64


class Rows:
    """Results of one kind from one flush."""

    number = -1
    """Which source of its tape it is."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.kind = kind_of(rows.shape[1:], rows.dtype)
        self._rows: list[Tensor | None] | None = None
        self._numbers: list[Any] | None = None

    def row(self, at: int) -> Tensor:
        """One row as a tensor of its own: writing into it changes no other."""
        if self._rows is None:
            self._rows = [None] * len(self.rows)
            self._parts = self.rows.unbind(0)
        found = self._rows[at]
        if found is None:
            found = self._rows[at] = self._parts[at].clone()
        return found

    def numbers(self, at: int) -> Any:
        """The numbers of one row, as Python has them."""
        if self.is_changed(at):
            return self.row(at).tolist()
        if self._numbers is None:
            self._numbers = self.rows.detach().tolist()
        return self._numbers[at]

    def may_change(self) -> bool:
        """Whether rows were given out as tensors."""
        return self._rows is not None

    def ready(self) -> list[Any] | None:
        """The numbers of all rows, where they were asked for before and nobody can have changed them."""
        return self._numbers if self._rows is None else None

    def is_changed(self, at: int) -> bool:
        """Whether somebody has written into the tensor of that row."""
        found = None if self._rows is None else self._rows[at]
        return found is not None and not found.is_inference() and found._version != 0

    def find(self, row: int) -> tuple[Rows, int]:
        return self, row

    def take(self, index: Longs) -> Tensor:
        """Some rows, in this order."""
        if len(self.rows) == 1 and len(index) == 1:
            return self.rows
        return self.rows.index_select(0, torch.from_numpy(index).to(self.rows.device))


class Pool:
    """Results of one kind from all flushes of a recording. `plain`: torch's own functions take them, as the reference does."""

    def __init__(self, kind: Kind, plain: bool = False) -> None:
        self.kind, self.plain = kind, plain
        self.size = 0
        self._parts: list[Rows] = []
        self._firsts: list[int] = []
        self._buffer: Tensor | None = None
        self._filled = 0
        self._ledger: Ledger | None = None
        self._token: Tensor | None = None

    def add(self, rows: Tensor) -> int:
        """Results of one more flush; the row where they begin. Nothing is copied before some of them are taken."""
        first = self.size
        self._parts.append(Rows(rows))
        self._firsts.append(first)
        self.size += len(rows)
        return first

    def find(self, row: int) -> tuple[Rows, int]:
        """The flush that gave a row, and which row of it that is."""
        last = self._firsts[-1]
        if row >= last:
            return self._parts[-1], row - last
        at = bisect_right(self._firsts, row) - 1
        return self._parts[at], row - self._firsts[at]

    def may_change(self) -> bool:
        return any(part.may_change() for part in self._parts)

    def take(self, index: Longs) -> Tensor:
        """Some rows, in this order; each at most once."""
        if self.plain:
            return Rows(torch.cat([part.rows for part in self._parts])).take(index)
        self._fill()
        assert self._buffer is not None
        places = torch.from_numpy(index).to(self._buffer.device)
        if self._token is None:
            return self._buffer.index_select(0, places)
        rows: Tensor
        taken: Any = _Take
        rows, self._token = taken.apply(self._ledger, self._buffer, places, self._token)
        return rows

    def _fill(self) -> None:
        """Bring the results of the last flushes into the buffer."""
        if self._filled == len(self._parts):
            return
        first = self._firsts[self._filled]
        fresh = self._parts[self._filled :]
        self._make_room(first, fresh[0].rows)
        for part, start in zip(fresh, self._firsts[self._filled :], strict=True):
            with torch.no_grad():
                self._buffer[start : start + len(part.rows)] = part.rows  # type: ignore[index]
            if part.rows.requires_grad and torch.is_grad_enabled():
                self._put(start, part.rows)
        self._filled = len(self._parts)
        if self._ledger is not None:
            self._ledger.size = self.size

    def _make_room(self, filled: int, like: Tensor) -> None:
        before = self._buffer
        if before is not None and len(before) >= self.size:
            return
        self._buffer = torch.empty((max(2 * self.size, LEAST_ROWS), *like.shape[1:]), dtype=like.dtype, device=like.device)
        if before is not None:
            self._buffer[:filled] = before[:filled]

    def _put(self, first: int, rows: Tensor) -> None:
        if self._ledger is None:
            self._ledger = Ledger()
        put: Any = _Put
        self._token = put.apply(self._ledger, first, self._token, rows)


class Ledger:
    """The gradients of a pool's rows, for each backward pass that is under way."""

    def __init__(self) -> None:
        self.size = 0
        self._passes: dict[int, Tensor] = {}

    def gradients(self, like: Tensor) -> Tensor:
        """The buffer of the backward pass that is running."""
        number = torch._C._current_graph_task_id()
        found = self._passes.get(number)
        if found is None:
            if len(self._passes) > 8:  # passes that ended before they came to the first flush
                self._passes.clear()
            shape = (self.size, *like.shape[1:])
            found = self._passes[number] = torch.zeros(shape, dtype=like.dtype, device=like.device)
        return found

    def close(self) -> None:
        self._passes.pop(torch._C._current_graph_task_id(), None)


class _Put(torch.autograd.Function):
    """Rows go into the pool: no number is computed, the token says that it has happened."""

    @staticmethod
    def forward(ctx: Any, ledger: Ledger, first: int, token: Tensor | None, rows: Tensor) -> Tensor:
        ctx.ledger, ctx.first, ctx.is_start = ledger, first, token is None
        ctx.like, ctx.count = rows.new_empty((0, *rows.shape[1:])), len(rows)
        ctx.set_materialize_grads(False)
        return rows.new_empty(())

    @staticmethod
    def backward(ctx: Any, _: Tensor | None) -> tuple[Any, ...]:
        found = ctx.ledger.gradients(ctx.like)[ctx.first : ctx.first + ctx.count]
        if ctx.is_start:
            ctx.ledger.close()
        return None, None, None, _once(found) if torch.is_grad_enabled() else found


class _Take(torch.autograd.Function):
    """Rows out of the pool, and the token for whoever comes next."""

    @staticmethod
    def forward(ctx: Any, ledger: Ledger, buffer: Tensor, places: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        ctx.ledger, ctx.places = ledger, places
        ctx.set_materialize_grads(False)
        return buffer.index_select(0, places), token.new_empty(())

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[None, ...]:
        if grad is not None:
            ctx.ledger.gradients(grad).index_add_(0, ctx.places, grad.detach())
        return None, None, None, None


def _once(grad: Tensor) -> Tensor:
    """A gradient that says so when it is differentiated again."""
    marked: Any = _Once
    found: Tensor = marked.apply(grad.new_ones((), requires_grad=True), grad)
    return found


def places_of(results: dict[int, int], refs: Any) -> tuple[Longs, Longs]:
    """For some references, the source and the row of each."""
    found = np.fromiter(map(results.__getitem__, refs), np.int64)
    return found >> ROW_BITS, found & ROW
