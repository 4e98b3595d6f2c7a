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


BRANCHES = [
    (
        ("branch", "x", (("loop", "x", "x", 2),), (("captured", "c", "x", 5),)),
        ("list", "x", ("x", "x")),
        ("pair", "a", "x", "x"),
        ("list", "x", ("a", "a")),
    ),
    (
        ("list", "x", ("x",)),
        ("captured", "b", "x", 4),
        ("pair", "c", "x", "b"),
        ("pair", "b", "c", "x"),
        ("loop", "x", "b", 3),
    ),
]


@pytest.mark.parametrize("backend", ["triton", "auto"])
def test_plans_of_one_shape_of_which_some_have_no_way_back(backend: str) -> None:
    """What a recipe asks about a way back is asked only where there is one."""
    torch.manual_seed(1)
    model = Interpreter()
    net = weft.batched(model, backend=backend)
    for _ in range(12):
        x = torch.randn(len(BRANCHES), DIM, dtype=torch.float64)
        rows, totals = net(BRANCHES, x)
        expected = torch.stack([model(program, one)[0] for program, one in zip(BRANCHES, x, strict=True)])
        assert torch.allclose(rows, expected, rtol=0, atol=1e-12)
        (rows.sum() + totals.sum()).backward()
