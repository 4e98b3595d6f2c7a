"""With `torch.set_default_device`, whatever that is, calls stay on the device of what they were given.

The default device is "meta" here, whose tensors hold nothing: a tensor that weft makes there by mistake cannot pass.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

import weft
import weft.blocks as wb
import weft.testing
from block_parts import assert_equal
from test_blocks_battery import CASES
from test_lazy_examples import EXAMPLES
from weft.data import DepthSampler, collate
from weft.testing import random_program
from weft.testing.programs import SAMPLES

sys.path.insert(0, str(Path(__file__).parents[1]))
NOWHERE = torch.device("meta")


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def gradients(model: Any, results: Any) -> list[Tensor | None]:
    found = [leaf.sum() for leaf in tree_leaves(results) if isinstance(leaf, Tensor) and leaf.requires_grad]
    return list(torch.autograd.grad(torch.stack(found).sum(), list(model.parameters()), allow_unused=True))


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str, double: None) -> None:
    fn, *inputs = import_module(f"examples.{name}").example(5)
    inputs = tree_map_only(Tensor, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, inputs)
    expected = [fn(*each) for each in zip(*inputs, strict=True)]
    with NOWHERE:
        found = weft.batched(fn, stack=False)(*inputs)
    mine, theirs = gradients(fn, found), gradients(fn, expected)
    assert_equal(found, expected)
    for one, other in zip(mine, theirs, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.allclose(one, other, atol=1e-10)


@pytest.mark.parametrize("name", ["Fold", "NGrams", "Record", "Json", "Attend"])
def test_blocks(name: str, double: None) -> None:
    block, examples = CASES[name].make(), CASES[name].examples
    expected, net = [block.eval_one(example) for example in examples], wb.compile(block)
    net.stack = False
    with NOWHERE:
        assert_equal(net(examples), expected)
        assert_equal(block.eval_one(examples[0]), expected[0])


@pytest.mark.parametrize("sample", list(SAMPLES)[:4])
def test_vertex_functions(sample: str) -> None:
    program, inputs = random_program(3, sample=sample)
    expected = program(*inputs, backend="reference")
    with NOWHERE:
        torch.testing.assert_close(program(*inputs), expected)


def test_batches_are_drawn_on_the_host() -> None:
    expected = list(DepthSampler([1, 2, 3, 4], 2, generator=torch.Generator().manual_seed(1)))
    with NOWHERE:
        assert list(DepthSampler([1, 2, 3, 4], 2, generator=torch.Generator().manual_seed(1))) == expected


FIRST_OF_ALL = """
import torch, weft
weft.batched(lambda x: x + 1 if x.sum() > 0 else x)(torch.zeros(2, 3))
with torch.device("meta"):
    print(torch.tensor(1).device, torch.tensor in torch.overrides.get_ignored_functions())
"""


def test_torch_knows_its_own_functions_afterwards() -> None:
    """What torch makes and keeps while a recording goes on must not hold what is exchanged."""
    done = subprocess.run([sys.executable, "-c", FIRST_OF_ALL], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["meta", "True"]


class Elsewhere(weft.VertexFunction):
    def forward(self, v: Any) -> None:
        v.scatter(h=v.pull())
        v.push(torch.zeros(3, device="meta"))


def test_a_tensor_made_elsewhere_is_an_error() -> None:
    message = "a tensor on meta in a batched call whose tensors are on cpu; move one of them"
    for fn in (lambda x: (x, torch.zeros(3, device="meta")), lambda x: torch.stack([x, torch.zeros(3, device="meta")])):
        with pytest.raises(weft.TraceError, match=message):
            weft.batched(fn)(torch.randn(4, 3))
    with pytest.raises(weft.TraceError, match=message):
        Elsewhere({"h": 3})(weft.Graph([[], [0]]), torch.randn(2, 3))


@pytest.mark.parametrize("options", [{}, {"cache": lambda x: 1}, {"granularity": "operator"}])
def test_nothing_is_computed_on_meta(options: Any) -> None:
    nowhere, here = torch.zeros(2, 3, device="meta"), torch.zeros(2, 3)
    model = nn.Linear(3, 3, device="meta")
    hint = (
        ": tensors on meta hold no numbers to compute with; make them where the batch is to be computed, those of a module "
        "with module.to_empty(device=...)"
    )
    for fn, rows, places in (
        (model, nowhere, "the model is on meta and the first example is on meta"),
        (model, here, "the model is on meta and the first example is on cpu"),
        (model.forward, list(here), "the model is on meta and the first example is on cpu"),
        (lambda x: x * 2, nowhere, "the first example is on meta"),
    ):
        with pytest.raises(weft.TraceError) as error:
            weft.batched(fn, **options)(rows)
        assert str(error.value) == places + hint
    with pytest.raises(weft.TraceError) as error:
        weft.batched(nn.Linear(3, 3), **options)(nowhere)
    assert str(error.value) == "a tensor on meta in a batched call whose model is on cpu; move one of them"
    net = weft.batched(model)
    batch, _ = collate(net)(list(here))
    with pytest.raises(weft.TraceError) as error:
        net(batch)
    assert str(error.value) == "the model is on meta" + hint


@pytest.mark.parametrize("backend", ["auto", "eager", "reference"])
def test_nothing_is_computed_on_meta_by_graphs_and_blocks(backend: str) -> None:
    class Leaves(weft.VertexFunction):
        def forward(self, v: Any) -> None:
            v.scatter(h=v.pull())

    block = wb.Map(wb.Vector(2) >> nn.Linear(2, 3, device="meta")) >> wb.Sum()
    hint = (
        ": tensors on meta hold no numbers to compute with; make them where the batch is to be computed, those of a module "
        "with module.to_empty(device=...)"
    )
    with pytest.raises(weft.TraceError) as error:
        Leaves({"h": 3})(weft.Graph([[], []]), torch.zeros(2, 3, device="meta"), backend=backend)
    assert str(error.value) == "Leaves: the call is on meta" + hint
    for call in (lambda: wb.compile(block, backend=backend)([[[1, 2]]]), lambda: block([[1, 2]])):
        with pytest.raises(weft.TraceError) as error:
            call()
        path = "Pipe[0]/Map[0]/Pipe[1]/<wb.Function Linear(in_features=2, out_features=3, bias=True)>"
        assert str(error.value) == f"{path}: weight is on meta" + hint
