"""What the tests of blocks share: functions that pickle, and comparison of batched results with one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import weft.blocks as wb


def mix(a: Tensor, b: Tensor) -> Tensor:
    return torch.tanh(a - 0.5 * b)


def total(x: Tensor) -> Tensor:
    return x.sum()


def dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum()


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 0.5, x * 2


def positive(x: Tensor) -> Tensor:
    return x.sum() > 0


def small(x: Tensor) -> Tensor:
    return x.norm() < 4


def doubled(x: Tensor) -> Tensor:
    return x * 2


def is_list(x: Any) -> bool:
    return isinstance(x, list)


def running(x: Tensor) -> Tensor:
    return x.cumsum(0)


class Cell(nn.Module):
    """An Elman cell that gives its state."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        after = torch.tanh(self.x(x) + self.h(h))
        return after, after


def leaves(nest: Any) -> list[Tensor]:
    """All tensors of nested lists and tuples."""
    if isinstance(nest, Tensor):
        return [nest]
    if isinstance(nest, list | tuple):
        return [leaf for part in nest for leaf in leaves(part)]
    return []


def shape_of(nest: Any) -> Any:
    """Nesting and everything that is no tensor."""
    if isinstance(nest, list | tuple):
        return type(nest), [shape_of(part) for part in nest]
    return None if isinstance(nest, Tensor) else repr(nest)


def gradients(module: nn.Module, outputs: Sequence[Tensor]) -> dict[str, Tensor | None]:
    """Gradients of all parameters for a random cotangent that depends on the order of the outputs alone."""
    module.zero_grad(set_to_none=True)
    generator = torch.Generator().manual_seed(0)
    weighted = [(o * torch.randn(o.shape, generator=generator).to(o.dtype)).sum() for o in outputs if o.is_floating_point()]
    if any(each.requires_grad for each in weighted):
        torch.stack([each.double() for each in weighted]).sum().backward()
    return {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}


def close(a: Tensor, b: Tensor) -> bool:
    tolerance = 1e-12 if a.dtype == torch.float64 else 1e-5
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    scale = max(1.0, float(b.detach().abs().max())) if b.numel() else 1.0
    return torch.allclose(a, b, rtol=0, atol=tolerance * scale, equal_nan=True)


def assert_equal(got: Any, wanted: Any) -> None:
    assert shape_of(got) == shape_of(wanted)
    for a, b in zip(leaves(got), leaves(wanted), strict=True):
        assert close(a, b), f"{a} is not {b}"


def assert_same_gradients(got: dict[str, Tensor | None], wanted: dict[str, Tensor | None]) -> None:
    assert got.keys() == wanted.keys()
    for name, gradient in wanted.items():
        mine = got[name]
        assert (mine is None) == (gradient is None), name
        assert mine is None or gradient is None or close(mine, gradient), name


def assert_batches(block: wb.Block, examples: Sequence[Any], **options: Any) -> list[Any]:
    """Batched equals one by one: outputs, metrics, gradients."""
    together = wb.compile(block, **options)
    together.stack = False
    got = together(list(examples))
    metrics = [together.metrics[name] for name in sorted(together.metrics)]
    mine = gradients(together, [*leaves(got), *metrics])
    assert_equal(together(list(examples)), got)  # what the first call kept serves the second
    assert_equal(together(list(examples)[::-1])[::-1], got)
    wanted, seen = [], []
    for example in examples:
        wanted.append(block.eval_one(example))
        seen.append([block.metrics[name] for name in sorted(block.metrics)])
    assert_equal(got, wanted)
    joined = [torch.cat(rows) for rows in zip(*seen, strict=True)]
    assert_equal(metrics, joined)
    assert_same_gradients(mine, gradients(block, [*leaves(wanted), *joined]))
    return wanted
