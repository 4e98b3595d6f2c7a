"""A gradient that comes back to some rows only: zeros elsewhere, which are never written where no step needs them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from weft.graph.program import Ints
from weft.graph.segments import bag_sum
from weft.run.columns import Cuts


class SomeRows:
    """The rows `at` (of `count`) of a gradient."""

    def __init__(self, at: Ints, rows: Tensor, count: int) -> None:
        if len(at) > 1 and not bool((np.diff(at) > 0).all()):
            order = np.argsort(at, kind="stable").astype(np.int32)
            at, first = np.unique(at[order], return_index=True)
            bounds = np.append(first, len(order)).astype(np.int32)
            rows = bag_sum(rows.contiguous(), *(torch.from_numpy(one).to(rows.device) for one in (order, bounds)))
        self.at, self.rows, self.count = at, rows, count

    def dense(self) -> Tensor:
        """The gradient over all rows."""
        return self._put(self.at, self.rows, self.count)

    def by_step(self, cuts: Cuts) -> Sequence[Tensor | None]:
        """The gradient of each step's rows; None where it has none."""
        bounds = np.searchsorted(self.at, cuts.offsets).tolist()
        found: list[Tensor | None] = [None] * len(cuts.sizes)
        for step, size in enumerate(cuts.sizes):
            low, high = bounds[step], bounds[step + 1]
            if high > low:
                found[step] = self._put(self.at[low:high] - cuts.offsets[step], self.rows[low:high], size)
        return found

    @staticmethod
    def _put(at: Ints, rows: Tensor, count: int) -> Tensor:
        if len(at) == count:
            return rows.contiguous()
        index = torch.from_numpy(at.astype(np.int64)).to(rows.device)
        return rows.new_zeros((count, *rows.shape[1:])).index_copy_(0, index, rows)


class SomeSteps:
    """A column of which some steps have nothing."""

    def __init__(self, parts: Sequence[Tensor | None]) -> None:
        self.parts = parts

    def block(self, first: int, last: int) -> Sequence[Tensor | None]:
        return self.parts[first:last]
