"""The recipe of a backward pass on a CPU, for plans without recurrences: what flushes of recorded code mostly are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.run.cpu.recipetypes import NativeTypeText
from weft.run.cpu.walk import Walk
from weft.run.cpu.walking import walk_rows
from weft.run.recipeback import BackText


def take_rows(a: Tensor, p: Tensor, b: Tensor | None = None, q: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Rows of one tensor, plus rows of another."""
    rows = torch.index_select(a, 0, p, out=out)
    return rows if b is None or q is None else rows.add_(b.index_select(0, q))


def put_rows(out: Tensor, places: Tensor, rows: Tensor) -> None:
    """Write rows to their places."""
    out.index_copy_(0, places.long(), rows)


def fresh(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory with unknown contents."""
    return torch.empty(sizes, dtype=dtype)


class BackTypeText(NativeTypeText):
    """One node type within a backward recipe on a CPU."""

    def walk_whole(self, walk: Walk, destinations: dict[str, str]) -> None:
        w = self.writer
        given = [self.whole(value) for value in walk.takes]
        into = [self.into(value, destinations) for value in walk.into]
        bounds = "None" if self.bag is None else f"{self.bounds(self.bag)}.int()"
        lists = f"[{', '.join(given)}], [{', '.join(into)}]"
        w.say(f"{w.bind(walk_rows)}({w.bind(walk)}, {lists}, {self.n}, {self.e}, {bounds}, {w.bind(self.code.spare)})")


class NativeBackText(BackText):
    """Writes the recipe of a backward pass that was just done on a CPU."""

    parameters = "tensors, chosen, saved, grads, records, device, fresh"
    type_text = BackTypeText
    take, put = staticmethod(take_rows), staticmethod(put_rows)
