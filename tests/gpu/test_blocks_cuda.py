"""Blocks on a GPU: every block of the battery gives there what it gives on the processor."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import weft.blocks as wb
import weft.data
from block_parts import assert_equal, assert_same_gradients, gradients, leaves
from test_blocks_battery import CASES
from test_blocks_random import Parts, Trees

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def in_double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


def at_home(nest: Any) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor.cpu(), nest)


@pytest.mark.parametrize("name", CASES)
def test_battery(name: str) -> None:
    here = CASES[name].make()
    there = copy.deepcopy(here).cuda()
    examples = CASES[name].examples
    wanted = [here.eval_one(example) for example in examples]
    net = wb.compile(there)
    net.stack = False
    got = net(examples)
    if any(True for _ in there.parameters()):
        assert all(leaf.is_cuda for leaf in leaves(got))
    assert_equal(at_home(got), wanted)
    assert_equal(at_home(there.eval_one(examples[0])), wanted[0])
    mine = {key: None if grad is None else grad.cpu() for key, grad in gradients(there, at_home(leaves(got))).items()}
    assert_same_gradients(mine, gradients(here, leaves(wanted)))


@pytest.mark.parametrize("group", range(4))
def test_random_blocks(group: int) -> None:
    parts, r = Parts(), random.Random(group)
    made = [Trees(1000 + group * 20 + number, parts).tree() for number in range(20)]
    here = wb.Record(tuple(block for block, _ in made))
    there = copy.deepcopy(here).cuda()
    examples = [tuple(data(r) for _, data in made) for _ in range(3)]
    wanted = [here.eval_one(example) for example in examples]
    net = wb.compile(there)
    net.stack = False
    got = net(examples)
    assert_equal(at_home(got), wanted)
    mine = {key: None if grad is None else grad.cpu() for key, grad in gradients(there, at_home(leaves(got))).items()}
    assert_same_gradients(mine, gradients(here, leaves(wanted)))


def test_kept_programs_metrics_and_ragged_results() -> None:
    item = wb.Vector(2) >> nn.Linear(2, 2) >> wb.AllOf(wb.Metric("seen"), wb.Identity()) >> wb.GetItem(1)
    here = wb.Map(item)
    there = copy.deepcopy(here).cuda()
    examples = [[[1, 2], [3, 4]], [], [[5, 6]]]
    rows, mask = wb.compile(there, ragged="padded")(examples)
    wanted, wanted_mask = wb.compile(here, ragged="padded")(examples)
    assert rows.is_cuda and mask.is_cuda and torch.equal(mask.cpu(), wanted_mask)
    assert_equal(rows.cpu(), wanted)
    assert there.metrics["seen"].is_cuda and there.metrics["seen"].shape == (3, 2)
    net = wb.compile(there, ragged="padded")
    batch, _ = weft.data.collate(net)(examples)
    assert_equal(net(batch)[0].cpu(), wanted)
    assert_equal(net(batch.to("cuda"))[0].cpu(), wanted)
    assert_equal(net([net.program(example) for example in examples])[0].cpu(), wanted)
    stacked = wb.compile(wb.Map(wb.Vector(2) >> nn.Linear(2, 2).cuda()) >> wb.Stack(), ragged="padded")
    assert all(part.is_cuda for part in stacked(examples))
