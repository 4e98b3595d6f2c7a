"""What plain code and blocks record, run by kernels: random programs equal the loop, in outputs and gradients."""

from __future__ import annotations

import random

import pytest
import torch

import weft
import weft.blocks as wb
from block_parts import assert_equal, assert_same_gradients, gradients, leaves
from bounds import check_memory
from kernel_parts import NEEDS_INTERPRETER
from random_lazy import DIM, Interpreter, random_example
from test_blocks_random import Parts, Trees
from test_lazy_random import OPTIONS
from weft.testing import assert_equivalent

pytestmark = [*NEEDS_INTERPRETER, pytest.mark.filterwarnings("ignore::weft.FallbackWarning")]

PROGRAMS, TREES = 8, 10


@pytest.mark.parametrize("number", range(4))
def test_random_programs_equal_the_loop(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_memory(monkeypatch)
    programs = [random_example(seed)[0] for seed in range(number * PROGRAMS, (number + 1) * PROGRAMS)]
    x = torch.randn(PROGRAMS, DIM, dtype=torch.float64)
    net = weft.batched(Interpreter(), **OPTIONS[number])
    for _ in range(2):
        assert_equivalent(net, programs, x, policies=[("auto", "depth", "agenda", "condense")[number]], backends=["triton"])


@pytest.mark.parametrize("group", range(4))
def test_random_blocks_equal_one_by_one(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_memory(monkeypatch)
    parts, r = Parts(), random.Random(group)
    made = [Trees(2000 + group * TREES + number, parts).tree() for number in range(TREES)]
    blocks = [block for block, _ in made]
    examples = [tuple(data(r) for _, data in made) for _ in range(3)]
    root = wb.Record(tuple(blocks))
    net = wb.compile(root, backend="triton")
    net.stack = False
    wanted = [tuple(block.eval_one(x) for block, x in zip(blocks, example, strict=True)) for example in examples]
    expected = gradients(root, leaves(wanted))
    for _ in range(2):
        got = net(examples)
        assert_equal(got, wanted)
        assert_same_gradients(gradients(root, leaves(got)), expected)
