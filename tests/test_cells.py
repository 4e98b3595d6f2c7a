"""Every kind of cell, at several row counts and in several dtypes: traced, batched, and equal to one by one."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import weft
from cells import DIM, KINDS, UNTRACEABLE, WORDS
from weft.testing import assert_equivalent, random_program, random_structure
from weft.testing.programs import SAMPLES

torch.set_num_threads(1)
ROW_COUNTS = (0, 1, 2, 3, 17, 64)
TRACEABLE = [name for name in KINDS if name not in UNTRACEABLE]


def made(name: str, dtype: torch.dtype = torch.float64) -> weft.VertexFunction:
    torch.manual_seed(0)
    return KINDS[name]().to(dtype)


def inputs(n: int, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    return {
        "x": torch.randn(n, DIM, generator=generator, dtype=torch.float64).to(dtype),
        "word": torch.randint(0, WORDS, (n,), generator=generator),
    }


def structure(rows: int) -> weft.Graph:
    """A forest of random trees with so many vertices."""
    return random_structure(rows, "forest", size=rows) if rows > 1 else weft.Graph([[]] * rows)


def test_there_are_thirty_kinds_and_two_that_no_fixed_graph_computes() -> None:
    assert len(KINDS) == 30
    assert len(TRACEABLE) == 29


@pytest.mark.parametrize("name", TRACEABLE)
def test_a_kind_of_cell_traces_and_is_right_at_every_row_count(name: str) -> None:
    model = made(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error", weft.FallbackWarning)
        for rows in ROW_COUNTS:
            assert_equivalent(model, structure(rows), inputs(rows), policies=["auto", "depth"])


@pytest.mark.parametrize("name", UNTRACEABLE)
def test_what_no_fixed_graph_computes_works_with_a_warning_or_says_why_not(name: str) -> None:
    model, graph, x = made(name).eval(), structure(17), inputs(17)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = model(graph, x, backend="eager")
        except weft.TraceError as error:
            assert type(model).__name__ in str(error) or "depends on the values of tensors" in str(error)
            return
    assert [w for w in caught if issubclass(w.category, weft.FallbackWarning) and type(model).__name__ in str(w.message)]
    torch.testing.assert_close(result, model(graph, x, backend="reference"), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_cell_of_the_library_is_right_at_every_row_count(name: str) -> None:
    models: dict[str, Any] = {}
    types = SAMPLES[name].types
    for rows in ROW_COUNTS:
        graph = random_structure(rows, "forest", size=rows, types=types) if rows > 1 else _tiny(rows, types)
        program, given = random_program(rows, models=models, sample=name, structure=graph)
        assert_equivalent(program, *given, policies=["auto", "agenda"])


def _tiny(rows: int, types: int) -> weft.Graph:
    return weft.Graph([[]] * rows, types=[0] * rows if types else None)


@pytest.mark.parametrize("name", TRACEABLE)
def test_a_kind_of_cell_in_float32(name: str) -> None:
    assert_equivalent(made(name, torch.float32), structure(17), inputs(17, torch.float32), policies=["auto"])


@pytest.mark.parametrize("name", [name for name in TRACEABLE if name != "complex numbers"])
def test_a_kind_of_cell_in_bfloat16(name: str) -> None:
    """Coarse numbers: each result is as near to float64 as one by one is, up to a few roundings."""
    given = inputs(5, torch.bfloat16)
    exact = made(name)(structure(5), {**given, "x": given["x"].double()}, backend="reference")
    result = made(name, torch.bfloat16)(structure(5), given)
    if name == "dropout in training":
        assert result.dtype == torch.bfloat16 and result.shape == exact.shape
        return
    for one, other in zip(torch.utils._pytree.tree_leaves(result), torch.utils._pytree.tree_leaves(exact), strict=True):
        assert one.dtype == torch.bfloat16
        assert (one.double() - other).abs().max() <= 0.1 * max(1.0, other.abs().max().item())


@pytest.mark.parametrize(
    "name", ["linear chain", "lstm cell", "gru cell", "child-sum edge", "layer norm", "embedding", "gelu mlp", "cross entropy"]
)
def test_a_kind_of_cell_under_autocast(name: str) -> None:
    """The dtypes are those of one by one, and the numbers as near as bfloat16 is."""
    model = made(name, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert_equivalent(model, structure(5), inputs(5, torch.float32), policies=["auto", "depth"], tolerance=0.1)
    exact = model(structure(5), inputs(5, torch.float32))
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(structure(5), inputs(5, torch.float32))
    assert not torch.equal(exact, rough.to(exact.dtype)), "autocast changed nothing"


def test_dropout_masks_differ_from_vertex_to_vertex_and_repeat_under_one_seed() -> None:
    class Masks(weft.VertexFunction):
        def __init__(self) -> None:
            super().__init__(state={"h": (50,)})
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, v: Any) -> None:
            v.scatter(h=v.gather().sum("h"))
            v.push(self.drop(v.pull()))

    model, graph, x = Masks(), weft.Graph.chain(40), torch.ones(40, 50, requires_grad=True)
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        results.append(model(graph, x))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert len({tuple(row.tolist()) for row in results[0]}) == 40
    assert 0.4 < (results[0] > 0).float().mean() < 0.6
    (gradient,) = torch.autograd.grad(results[0].sum(), x)
    assert torch.equal(gradient, results[0].detach()), "backward uses the masks of forward"
    assert torch.equal(model.eval()(graph, x), x)
