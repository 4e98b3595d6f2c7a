"""The `compiled` backend: per-step pieces fused by Inductor, one compilation per piece for all sizes.

A compiled piece returns its values and does not write into arenas itself: inputs that share memory with outputs would make
the compiler guard on their addresses. The compiler specialises on sizes and storage offsets of 0 and 1 and on sizes that happen
to be equal; so the first step of a sweep and steps of one row or edge run eagerly, and equal sizes are told apart.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental import _config

from weft.run.emit import Code, emit
from weft.run.split import Piece

telling_equal_sizes_apart = _config.patch  # type: ignore[attr-defined]  # torch puts it there


def compile_piece(piece: Piece, eager: Code) -> Code:
    """The same piece as `eager`, compiled; pieces with operations that no compiler can see through stay as they are."""
    if any(getattr(value.target, "in_context", False) for value in piece.values):
        return eager
    returning = emit(piece, (), use_out=False)
    order = [next(i for i, value in enumerate(returning.returns) if value is stored) for stored in eager.stores]
    _show_source(returning)
    fused = torch.compile(returning.run, dynamic=True, fullgraph=True)
    return Code(_stepping(eager, fused, order), eager.takes, eager.stores, eager.returns, returning.source)


def _show_source(code: Code) -> None:
    """Functions without source are compiled as one and the same wrapper, which soon counts as recompiled too often."""
    name = code.run.__code__.co_filename
    linecache.cache[name] = (len(code.source), None, code.source.splitlines(keepends=True), name)


def _stepping(eager: Code, fused: Callable[..., Any], order: list[int]) -> Callable[..., Any]:
    taken, stored = len(eager.takes), len(eager.stores)
    rows = [i for i, value in enumerate(eager.stores) if value.rows is not None]

    def run(*args: Any) -> tuple[Any, ...]:
        n, e, bounds = args[taken + stored : taken + stored + 3]
        first = any(args[taken + i].storage_offset() == 0 for i in rows)
        if n < 2 or e == 1 or first:
            return eager.run(*args)
        with telling_equal_sizes_apart(use_duck_shape=False):
            results = fused(*args[:taken], n, e, bounds, None)
        for place, at in zip(args[taken : taken + stored], order, strict=True):
            place.copy_(results[at])
        return ()

    return run
