"""The index arrays of a plan as addresses in a device's memory: for code that launches kernels itself, and needs no tensors."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from weft.plan.library import address
from weft.plan.plan import Plan
from weft.run.indices import Indices
from weft.run.upload import Uploaded, as_tensor


class There:
    """Integers of 32 bits on a device: where the first one is, and how many there are."""

    __slots__ = ("address", "count", "held")

    def __init__(self, address: int, count: int, held: object) -> None:
        self.address, self.count = address, count
        self.held = held
        """What must live while the address is used."""


class Addresses(Indices):
    """As `Indices`, but arrays are told by where they are: making a tensor takes torch ten times as long.

    What was copied to the device for the plan's indices is used here, too.
    """

    def __init__(self, plan: Plan, device: torch.device) -> None:
        super().__init__(plan, device)
        there = Indices.of(plan, device).there
        self._spans: list[tuple[int, int, int]] = []
        self._held: Uploaded | None = there
        if there is not None:
            start = there.memory.data_ptr()
            self._spans = [(first, last, start + 4 * at - first) for first, last, at in there.spans]

    @staticmethod
    def of(plan: Plan, device: torch.device) -> Addresses:
        key = ("addresses", device)
        if key not in plan._derived:
            plan._derived[key] = Addresses(plan, device)
        return cast(Addresses, plan._derived[key])

    def tensor(self, array: np.ndarray) -> Any:
        """An array of the plan on the device, as `There`."""
        at = address(array)
        for first, last, shift in self._spans:
            if first <= at < last:
                return There(at + shift, array.size, self._held)
        tensor = as_tensor(array.astype(np.int32, copy=False), self.device)
        return There(tensor.data_ptr(), array.size, tensor)
