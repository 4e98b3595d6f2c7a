"""No kernel reads or writes memory that is not that of its arguments: the interpreter is asked for every address."""

from __future__ import annotations

import pytest
import torch

from bounds import Checked, check_memory
from kernel_parts import NEEDS_INTERPRETER, fast_products, results
from onecall_parts import CASES
from weft.run.gpu import rowcopy
from weft.run.gpu.execution import GpuExecution

pytestmark = NEEDS_INTERPRETER


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Checked:
    return check_memory(monkeypatch)


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
