"""Turned weights, laid out anew for sweeps with many steps of some rows."""

from __future__ import annotations

import pytest
import torch

import weft
import weft.nn
from kernel_parts import recipes_of
from weft.run.cpu.turn import turned_into
from weft.run.typerun import MANY_STEPS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_shape_is_copied_as_torch_does(dtype: torch.dtype) -> None:
    for rows, columns in ((1, 1), (5, 7), (16, 64), (17, 65), (33, 130), (64, 3)):
        matrix = torch.randn(rows, columns + 3, dtype=dtype)[:, :columns].t()
        place = torch.full((columns + 2, rows), 7.0, dtype=dtype)
        assert torch.equal(turned_into(place[1:-1], matrix), matrix)
        assert (place[0] == 7).all() and (place[-1] == 7).all()


@pytest.mark.parametrize("steps, turns", [(MANY_STEPS, True), (MANY_STEPS - 1, False)])
def test_a_sweep_of_many_narrow_steps_turns_its_weight_once(steps: int, turns: bool) -> None:
    """Chains side by side: their first vertices are leaves, all others one step each."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model, graph = weft.nn.LSTM(4, 5), weft.Graph.batch([weft.Graph.chain(steps + 1)] * 8)
        x = torch.randn(graph.num_vertices, 4)
        with torch.no_grad():
            first, second = model(graph, x), model(graph, x)
            expected = model(graph, x, backend="reference")
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(second, expected, rtol=0, atol=1e-5)
    assert torch.equal(first, second)
    (recipe,) = recipes_of(model)
    assert (turned_into in recipe.run.__globals__.values()) == turns


def test_a_weight_that_walks_read_as_it_lies_is_not_turned_in_inference() -> None:
    model, graph = weft.nn.TreeFC(4), weft.Graph.full_binary_tree(4, types=[0] * 4 + [1] * 3)
    x = torch.randn(7, 4)
    with torch.no_grad():
        first, second = model(graph, x, at=[6]), model(graph, x, at=[6])
    assert torch.equal(first, second)
    (recipe,) = recipes_of(model)
    assert "piece" not in recipe.source and ".t()" not in recipe.source
