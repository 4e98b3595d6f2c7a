"""Rows of a table by the caller's numbers, beside `torch.embedding`; and numbers that are no rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from bounds import Checked, check_memory
from chosen_parts import Words
from cpu_driver import poisoned_driver
from kernel_parts import NEEDS_INTERPRETER, assert_in_kernels
from weft.run.gpu import lookup
from weft.run.gpu.rowcopy import tiles

pytestmark = NEEDS_INTERPRETER


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Checked:
    assert_in_kernels(monkeypatch)
    return check_memory(monkeypatch)


def looked_up(table: Tensor, numbers: Tensor) -> Tensor:
    width, out = table.shape[1], torch.full((len(numbers), table.shape[1]), float("nan"), dtype=table.dtype)
    quick = lookup.looker(table.dtype, numbers.dtype, width)
    quick.go(len(numbers), width // tiles(width)[0], table.shape[0], table, numbers, out)
    return out


@pytest.mark.parametrize("numbers", [torch.int32, torch.int64])
@pytest.mark.parametrize("width", [1, 6, 16, 150, 513])
def test_rows_of_a_table(width: int, numbers: torch.dtype, checked: Checked) -> None:
    for rows in (0, 1, 2, 63, 127, 1000) if width < 100 else (5,):
        table, which = torch.randn(40, width, dtype=torch.float64), torch.randint(0, 40, (rows,), dtype=numbers)
        assert torch.equal(looked_up(table, which), torch.embedding(table, which))


@pytest.mark.parametrize("number", [-1, 40, 2**40])
def test_a_number_that_is_no_row_stops_everything(number: int, checked: Checked) -> None:
    numbers = torch.arange(9)
    numbers[4] = number
    with pytest.raises(Exception, match="index out of range in self"):
        looked_up(torch.randn(40, 4), numbers)


def test_a_word_that_is_not_in_the_table() -> None:
    """Of a call whose structure came before."""
    with poisoned_driver() as driver:
        net = weft.batched(Words(), backend="triton")
        for _ in range(3):
            net([((1, 2), 3), (4, 5)])
        before = driver.launches
        with pytest.raises(IndexError, match="index out of range in self\nin example 1"):
            net([((1, 2), 3), (4, 12)])
        assert driver.launches > before


def test_the_assertion_is_compiled(tmp_path: Path) -> None:
    """Triton leaves assertions out unless it is told otherwise."""
    kernel = lookup.looker(torch.float32, torch.int64, 16).kernel
    given: dict[str, Any] = {"source": kernel.source, "name": "look_up", "constants": (16, 64, 16), "options": kernel.options}
    given["kinds"] = ["i32", "i32", "i32", "*fp32", "*i64", "*fp32"]
    script = (
        "import json, os, sys; os.environ['TRITON_INTERPRET'] = '0'; from compile_kernels import compiled;"
        "print(compiled(0, json.loads(sys.argv[1])).asm['ptx'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(given)], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "__assertfail" in done.stdout
