"""Operations whose results have a shape that depends on numbers: masks, `nonzero`, `unique`.

What comes out cannot be recorded, so it is computed as soon as the numbers are known, and is a tensor. The examples that asked
for it waited together, so the rows of all of them are there: a mask is applied to all of them at once, and the result is cut.

    v[v > 0] of 3 examples     [ . x x . | x . . . | x x x . ]   one index, one split
                                  2         1        3
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.lazy.pools import Rows
from weft.lazy.tape import Tape
from weft.lazy.value import MISS, Value

Parts = Sequence[Tensor]


def shaped(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the function gives for an example; MISS where it is recorded, or has to be computed in the usual way."""
    if kwargs or not all(item.__class__ is Value and item._tape is tape for item in args):
        return MISS
    if len(args) == 2 and args[1]._kind.dtype is not torch.bool:
        return MISS
    tape.has_shaped = True
    found = [tape.result(value) for value in args]
    with torch._C.DisableTorchFunction():
        parts = _of_all(func, [rows for rows, _ in found]) if len({row for _, row in found}) == 1 else None
        made: Tensor = func(*[rows.part(row) for rows, row in found]) if parts is None else parts[found[0][1]]
        if made.requires_grad and not tape.requires_grad(args[0]):
            made = made.detach()
    tape.gave_out |= made.requires_grad
    return made


def _of_all(func: Any, sources: list[Rows]) -> Parts | None:
    """What it gives for all rows together; None where they cannot be taken together."""
    first, last = sources[0], sources[-1]
    if any(rows.pool is None or rows.is_shown() for rows in sources) or len(first.rows) != len(last.rows):
        return None
    depth = len(last.kind.shape) if func is Tensor.__getitem__ else None
    if last.kind.shape != first.kind.shape[:depth]:
        return None
    key = func, last.number, torch.is_grad_enabled()
    found = first.shaped.get(key)
    if found is None:
        found = first.shaped[key] = BY_ALL[func](first.rows, last.rows)
    return found


def _masked(rows: Tensor, mask: Tensor) -> Parts:
    return _cut(rows[mask], mask)


def _nonzero(rows: Tensor, _: Tensor) -> Parts:
    chosen = rows != 0
    return _cut(chosen.nonzero()[:, 1:], chosen)


def _cut(found: Tensor, mask: Tensor) -> Parts:
    """The rows that were found, for each row of the mask; copies, which may be written into."""
    counts = mask.flatten(1).sum(1) if mask.ndim > 1 else mask.long()
    split: Any = torch.split_with_sizes_copy
    parts: Parts = split(found, counts.tolist())
    return parts


BY_ALL: dict[Any, Callable[[Tensor, Tensor], Parts]] = {
    Tensor.__getitem__: _masked,
    torch.masked_select: _masked,
    Tensor.masked_select: _masked,
    torch.nonzero: _nonzero,
    Tensor.nonzero: _nonzero,
    torch.argwhere: _nonzero,
    Tensor.argwhere: _nonzero,
}
