"""The memory that kernels touch, as Triton's interpreter tells it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch


class Checked:
    """The memory of a launch's arguments; nothing else may be asked for."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.asked = 0

    def launched(self, arguments: list[Any]) -> None:
        memory = [one.untyped_storage() for one in arguments if isinstance(one, torch.Tensor)]
        self.ranges = [(one.data_ptr(), one.data_ptr() + one.nbytes()) for one in memory]

    def touched(self, pointers: Any, mask: Any) -> None:
        at = pointers.data[np.broadcast_to(mask.data, pointers.data.shape)]
        inside = np.zeros(at.shape, dtype=bool)
        for first, end in self.ranges:
            inside |= (at >= first) & (at < end)
        self.asked += at.size
        assert inside.all(), f"{(~inside).sum()} numbers that belong to nobody"


def check_memory(monkeypatch: pytest.MonkeyPatch) -> Checked:
    """From here on the interpreter is asked for every address."""
    from triton.runtime import interpreter

    found, executor, builder = Checked(), interpreter.GridExecutor, interpreter.InterpreterBuilder
    arguments, load, store = executor._init_args_hst, builder.create_masked_load, builder.create_masked_store

    def launched(self: Any, *given: Any) -> Any:
        made = arguments(self, *given)
        found.launched(made[0])
        return made

    def loaded(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        found.touched(pointers, mask)
        return load(self, pointers, mask, *rest)

    def stored(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        found.touched(pointers, mask)
        return store(self, pointers, value, mask, *rest)

    monkeypatch.setattr(executor, "_init_args_hst", launched)
    monkeypatch.setattr(builder, "create_masked_load", loaded)
    monkeypatch.setattr(builder, "create_masked_store", stored)
    return found
