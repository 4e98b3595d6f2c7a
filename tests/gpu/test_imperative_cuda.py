"""Code for one example on a GPU: batched equals the loop there, in outputs and gradients."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import weft
import weft.testing
from random_lazy import DIM, Interpreter, random_example
from test_lazy_examples import EXAMPLES
from test_lazy_random import OPTIONS

sys.path.insert(0, str(Path(__file__).parents[2]))

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),  # the loop's first product, in autograd's own thread
]
CUDA = torch.device("cuda")
BATCH = 16


def there(inputs: Any) -> Any:
    """Tensors on the device, in double precision where they hold floating-point numbers; all else as it is."""
    return tree_map_only(Tensor, lambda one: one.to(CUDA, torch.float64 if one.is_floating_point() else one.dtype), inputs)


@pytest.fixture
def double() -> Iterator[None]:
    """Constants are of double precision, too."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_equals_its_loop(name: str, double: None) -> None:
    """Constants that the code makes are on the device, as with `torch.set_default_device`."""
    fn, *inputs = import_module(f"examples.{name}").example(6)
    with CUDA:
        weft.testing.assert_equivalent(fn.to(CUDA).double(), *there(inputs), policies=["auto"], backends=["auto"])


@pytest.mark.parametrize("name", ["tree_decoder", "early_exit"])
def test_tensors_on_the_device_are_enough(name: str) -> None:
    fn, *inputs = import_module(f"examples.{name}").example(6)
    weft.testing.assert_equivalent(fn.to(CUDA).double(), *there(inputs), policies=["auto"], backends=["auto"])


@pytest.mark.parametrize("number", range(8))
def test_random_programs_equal_the_loop(number: int) -> None:
    model = Interpreter().to(CUDA)
    model.extra = model.extra.detach().to(CUDA).requires_grad_()
    programs = [random_example(seed)[0] for seed in range(number * BATCH, (number + 1) * BATCH)]
    x = torch.randn(BATCH, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(number)).to(CUDA)
    policy, backend = ("auto", "depth", "agenda", "condense")[number % 4], ("auto", "eager")[number // 4]
    options = OPTIONS[(number + number // 4) % len(OPTIONS)]
    with CUDA:
        weft.testing.assert_equivalent(weft.batched(model, **options), programs, x, policies=[policy], backends=[backend])


def test_half_the_bits() -> None:
    """As near to single numbers as half the bits allow. The loop, which adds up in these one by one, is farther away."""
    fn, trees = import_module("examples.tree_lstm").example(8)
    fn.to(CUDA)
    with CUDA:
        exact = torch.stack([fn(tree) for tree in trees])
        with torch.autocast("cuda", torch.bfloat16):
            expected = torch.stack([fn(tree) for tree in trees])
            found = weft.batched(fn)(trees)
    assert torch.allclose(found, expected, rtol=2e-2, atol=2e-2)
    wanted, got = ([g.clone() for g in torch.autograd.grad(one.sum(), list(fn.parameters()))] for one in (exact, found))
    for (name, _), one, other in zip(fn.named_parameters(), wanted, got, strict=True):
        assert torch.allclose(one, other, rtol=5e-2, atol=5e-2 * one.abs().max().item()), name
