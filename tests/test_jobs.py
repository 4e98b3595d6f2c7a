"""Jobs on rows, each beside what it means; and recipes that consist of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import weft
from weft import cc
from weft.lazy.state import state_of
from weft.run.calls import Engine
from weft.run.cpu.jobs import ALL, COLLECT, COPY, SPREAD, TAKE, ZERO, JobWriter, do

ROWS, WIDTH = 9, 5


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    assert cc.compiler() is not None, "these tests need a C compiler: cc, gcc or clang"
    torch.manual_seed(0)
    yield


def ints(*numbers: int) -> Any:
    return np.array(numbers, dtype=np.int32)


def at(item: Any) -> int:
    return int(item.data_ptr()) if isinstance(item, Tensor) else int(item.ctypes.data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_jobs_are_done_one_after_the_other(dtype: torch.dtype) -> None:
    rows, size = torch.randn(ROWS, WIDTH, dtype=dtype), dtype.itemsize
    one, other, third = (torch.full((4, WIDTH), torch.nan, dtype=dtype) for _ in range(3))
    index, through = ints(3, 0, 1, 1), ints(8, 2, 5, 4)
    jobs = [COPY, at(one), at(rows), 4 * WIDTH * size, ZERO, at(other), other.nbytes]
    jobs += [TAKE, at(third), at(rows), at(index), 0, 4, WIDTH * size]
    do(jobs)
    assert torch.equal(one, rows[:4]) and torch.equal(other, torch.zeros_like(other))
    assert torch.equal(third, rows[[3, 0, 1, 1]])
    do([TAKE, at(third), at(rows), at(index), at(through), 4, WIDTH * size])
    assert torch.equal(third, rows[[4, 8, 2, 2]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("indirect", [False, True])
def test_rows_that_go_to_one_place_are_added(dtype: torch.dtype, indirect: bool) -> None:
    rows, out = torch.randn(4, WIDTH, dtype=dtype), torch.ones(ROWS, WIDTH, dtype=dtype)
    index, through = ints(3, 0, 1, 0), ints(7, 2, 0, 5)
    do([SPREAD, at(out), at(rows), at(index), at(through) if indirect else 0, 4, WIDTH, dtype.itemsize])
    places = through[index] if indirect else index
    expected = torch.ones(ROWS, WIDTH, dtype=dtype).index_add(0, torch.from_numpy(places.astype(np.int64)), rows)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("adds", [0, 1])
def test_rows_are_collected_as_they_are_by_an_index_or_in_bags(dtype: torch.dtype, adds: int) -> None:
    rows, start = torch.randn(ROWS, WIDTH, dtype=dtype), torch.randn(4, WIDTH, dtype=dtype)
    index, bounds = ints(8, 3, 3, 0, 5, 1), ints(0, 1, 1, 4, 6)
    bags = [[8], [], [3, 3, 0], [5, 1]]
    cases = [
        ([0, 0, ALL], rows[:4]),
        ([at(index), 0, ALL], rows[[8, 3, 3, 0]]),
        ([at(index), 0, 8], rows[[8, 3, 3, 0]] * torch.tensor([[0.0], [1], [1], [1]], dtype=dtype)),
        ([at(index), at(bounds), ALL], torch.stack([rows[bag].sum(0) for bag in bags])),
    ]
    for (where, cuts, none), expected in cases:
        out = start.clone()
        do([COLLECT, at(out), at(rows), where, cuts, 4, WIDTH, dtype.itemsize, none, adds])
        torch.testing.assert_close(out, expected + adds * start)


def test_what_lies_side_by_side_is_not_copied() -> None:
    indices: Any = None
    writer = JobWriter(indices)
    made = writer.empty([4, WIDTH], torch.float32)
    parts = [made, writer.let(f"{made}.narrow(0, 1, 2)"), writer.let(f"{made}.flatten(0, 1)"), writer.dense("grads[0]")]
    assert [writer.dense(part) for part in parts] == parts
    turned = writer.let(f"{made}.t()")
    assert writer.dense(turned) != turned and writer.dense("tensors[0]") not in parts


def test_what_a_flush_is_handed_is_moved_by_jobs_alone() -> None:
    layer = nn.Linear(WIDTH, WIDTH)

    def fn(x: Tensor) -> Tensor:
        while x.sum() > 0:
            x = layer(x) - 0.1
        return x

    net = weft.batched(fn)
    for _ in range(3):
        net(torch.rand(ROWS, WIDTH)).sum().backward()
    cells = [cell for kept in Engine.of(state_of(fn).library).cells.kept.values() for cell in kept]
    known = [recipe for cell in cells for codes in cell.kept.values() for found in codes.recipes.values() for recipe in found]
    back = [recipe.source for recipe in known if recipe is not None and recipe.goes_back]
    assert back
    assert not any("piece" in source for source in back)
