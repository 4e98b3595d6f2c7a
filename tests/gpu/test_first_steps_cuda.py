"""Full trees whose first step takes leaves from where they are fed, on a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from benchmarks.gpu.others import make_full_trees

import weft
import weft.nn
from kernel_parts import recipes_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
D = 96


def found(model: Any, batch: Any, backend: str, autocast: bool) -> dict[str, torch.Tensor]:
    model.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16) if autocast else nullcontext():
        out = model(weft.Graph.batch(batch.graphs), batch.x, backend=backend)
    out.backward(batch.gradient.to(out.dtype))
    return {"out": out.detach().float(), **{name: p.grad.clone() for name, p in model.named_parameters()}}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(("trees", "leaves"), [(16, 64), (2, 1024), (1, 2048)])
def test_the_same_numbers_and_bits(trees: int, leaves: int, autocast: bool) -> None:
    torch.manual_seed(0)
    model = weft.nn.TreeFC(D).cuda()
    near = 0.1 if autocast else 1e-5
    for seed in range(4):
        batch = make_full_trees(trees, leaves, D, seed)
        expected = found(model, batch, "eager", autocast)
        again, more = (found(model, batch, "triton", autocast) for _ in range(2))
        for name, tensor in expected.items():
            assert float((again[name] - tensor).abs().max()) <= near * max(1.0, float(tensor.abs().max())), name
            assert seed == 0 or torch.equal(again[name], more[name]), name
    assert any(recipe.about is not None and recipe.about.first_steps for recipe in recipes_of(model)) or autocast
