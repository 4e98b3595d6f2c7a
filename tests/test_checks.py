"""Factorisations that fail on one row's matrix raise, batched, what PyTorch raises for that matrix alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.testing import assert_equivalent

torch.set_num_threads(1)
DOES: dict[str, Callable[[Tensor], Tensor]] = {
    "cholesky": torch.linalg.cholesky,
    "inv": torch.linalg.inv,
    "solve": lambda matrix: torch.linalg.solve(matrix, torch.ones(2, dtype=matrix.dtype)),
    "lu_factor": lambda matrix: torch.linalg.lu_factor(matrix)[0],
    "cholesky of several": lambda matrix: torch.linalg.cholesky(torch.stack([matrix.mT @ matrix + 1, matrix])),
}
GOOD, BAD = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)


class Factor(weft.VertexFunction):
    """A chain of matrices, each the one before it, scaled, plus the vertex's own, factorised."""

    def __init__(self, does: str) -> None:
        super().__init__(state={"h": (2, 2)})
        self.scale, self.does = nn.Parameter(torch.tensor(0.5)), does
        self.double()

    def forward(self, v: Any) -> None:
        given = v.pull() + self.scale * v.gather(0)["h"]
        v.scatter(h=given)
        v.push(DOES[self.does](given))


@pytest.mark.parametrize("does", DOES)
def test_a_failed_factorisation_raises_what_the_failing_example_raises(does: str) -> None:
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    net = weft.batched(lambda matrix: DOES[does](matrix * scale), stack=False)
    for _ in range(2):
        assert all(result.requires_grad for result in net([GOOD, GOOD]))
        with pytest.raises(RuntimeError) as alone:
            DOES[does](BAD)
        with pytest.raises(type(alone.value)) as together:
            net([GOOD, BAD, GOOD])
        assert str(together.value) == str(alone.value)
        assert "in example 1" in together.value.__notes__


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
@pytest.mark.parametrize(("does", "backend"), [*((does, "eager") for does in DOES), ("inv", "auto"), ("inv", "compiled")])
def test_factorisations_of_vertices_raise_and_give_the_same_numbers(does: str, backend: str) -> None:
    model, graph = Factor(does), weft.Graph.batch([weft.Graph.chain(3), weft.Graph.chain(2)])
    good = torch.stack([GOOD] * 5)
    assert_equivalent(model, graph, good, backends=[backend])
    bad = torch.stack([GOOD, GOOD, GOOD, BAD, GOOD])
    with pytest.raises(RuntimeError) as alone:
        model(graph, bad, backend="reference")
    with pytest.raises(type(alone.value)) as together:
        model(graph, bad, backend=backend)
    assert str(together.value) == str(alone.value)
