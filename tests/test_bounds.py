"""No kernel reads or writes memory that is not that of its arguments: the interpreter is asked for every address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from kernel_parts import NEEDS_INTERPRETER, fast_products, results
from onecall_parts import CASES
from weft.run.gpu import rowcopy
from weft.run.gpu.execution import GpuExecution

pytestmark = NEEDS_INTERPRETER


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


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Checked]:
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
    yield found


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_kernels_stay_within_their_memory(case: str, fast: bool, checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call as it first runs, and by its recipe."""
    monkeypatch.setattr(GpuExecution, "_whole", lambda *given: None)
    torch.manual_seed(0)
    make, graphs = CASES[case]
    model = make()
    for graph in (graphs[0], graphs[-1]):
        x = torch.randn(graph.num_vertices, 3)
        if fast:
            with fast_products():
                results(model, graph, x, "triton")
        else:
            results(model, graph, x, "triton")
    assert checked.asked > 0


def test_rows_that_are_not_there_are_noticed(checked: Checked) -> None:
    out, places, rows = torch.zeros(9, 4), torch.tensor([0, 2, 1], dtype=torch.int32), torch.ones(3, 4)
    rowcopy.put_rows(out, places, rows)
    with pytest.raises(Exception, match="that belong to nobody"):
        rowcopy.putter(out.dtype, False, 4).go(8, 8, 1, out, places, rows, places, rows)  # three rows, and not eight
