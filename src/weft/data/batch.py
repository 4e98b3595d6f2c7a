"""A mini-batch that is ready to run: its examples' structure merged into flat arrays, on no device until it is sent to one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


@dataclass(frozen=True, eq=False)
class Batch:
    """What `weft.data.collate` gives: `net(batch)` runs it.

    >>> import torch, weft, weft.data
    >>> model, tree = weft.nn.TreeGRU(2, 3), weft.Graph.from_parents([1, -1])
    >>> batch, _ = weft.data.collate(model)([((tree, torch.randn(2, 2)),)])
    >>> model(batch.to("cpu")).shape
    torch.Size([2, 3])
    """

    count: int
    content: Any
    """A nest of tensors, and of things that know `to(device)`."""

    def __len__(self) -> int:
        return self.count

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same batch with its tensors on a device."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=non_blocking), lambda part: part.to(device))

    def pin_memory(self) -> Self:
        """The same batch in memory from which copies to a GPU need not wait; a `DataLoader` with `pin_memory=True` calls it."""
        return self._mapped(lambda tensor: tensor.pin_memory(), lambda part: part)

    def _mapped(self, tensors: Callable[[Tensor], Tensor], others: Callable[[Any], Any]) -> Self:
        def change(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return tensors(leaf)
            return others(leaf) if hasattr(leaf, "to") else leaf

        return replace(self, content=tree_map(change, self.content))
