"""Random programs: a cell of the library, or several as types, on a random structure with random inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.api.function import Typed, VertexFunction
from weft.api.graph import Graph
from weft.testing import cells
from weft.testing.structures import random_structure


@dataclass(frozen=True)
class Sample:
    """One kind of program: how to make the model, and what its calls look like."""

    make: Callable[[], VertexFunction]
    types: int = 0
    words: bool = False
    edges: bool = False
    rounds: bool = False
    evaluate: bool = False


def _typed(**functions: Callable[[], VertexFunction]) -> Callable[[], VertexFunction]:
    return lambda: Typed({name: make() for name, make in functions.items()})


SAMPLES: dict[str, Sample] = {
    "chain": Sample(cells.Chain),
    "lstm": Sample(cells.LSTM),
    "gru": Sample(cells.GRU),
    "n-ary tree-lstm": Sample(cells.NaryTreeLSTM),
    "child-sum tree-lstm": Sample(cells.ChildSumTreeLSTM),
    "layer norm": Sample(cells.Normed),
    "attention": Sample(cells.Attention),
    "matrix-vector": Sample(cells.MatrixVector),
    "words": Sample(cells.Words, words=True),
    "dropout": Sample(cells.Dropped),
    "dropout, eval": Sample(cells.Dropped, evaluate=True),
    "captured": Sample(cells.Captured),
    "reductions": Sample(cells.Reductions),
    "edges": Sample(cells.Edges, edges=True),
    "defaults": Sample(cells.Defaults),
    "gated": Sample(cells.Gated, rounds=True),
    "edges in rounds": Sample(cells.Edges, edges=True, rounds=True),
    "two types": Sample(_typed(chain=cells.Chain, attention=cells.Attention), types=2),
    "three types": Sample(_typed(norm=cells.Normed, kids=cells.Captured, default=cells.Defaults), types=3),
    "types with and without push": Sample(_typed(gru=cells.GRU, drop=cells.Defaults), types=2),
    "two tree-lstms": Sample(_typed(lstm=cells.LSTM, sum=cells.ChildSumTreeLSTM), types=2),
    "types in rounds": Sample(_typed(chain=cells.Chain, edges=cells.Edges), types=2, edges=True, rounds=True),
}


class RandomProgram(nn.Module):
    """A model with the keywords of its call: `program(graph, x, edges, init, **options)`."""

    takes_options = True

    def __init__(self, name: str, model: VertexFunction, rounds: int | None) -> None:
        super().__init__()
        self.name, self.model, self.rounds = name, model, rounds

    def forward(self, graph: Graph, x: Any, edges: Any = None, init: Any = None, **options: Any) -> Any:
        return self.model(graph, x, edges=edges, rounds=self.rounds, init=init, **options)

    def extra_repr(self) -> str:
        return f"{self.name}, rounds={self.rounds}"


def random_program(
    seed: int,
    *,
    models: dict[str, VertexFunction] | None = None,
    dtype: torch.dtype = torch.float64,
    sample: str | None = None,
    structure: Graph | None = None,
) -> tuple[RandomProgram, tuple[Any, ...]]:
    """A random function and its inputs, the same for the same seed: `weft.testing.assert_equivalent(fn, *inputs)`.

    `sample` (a key of `weft.testing.programs.SAMPLES`) and `structure` fix what the seed would pick. Models depend on their
    kind alone; with a `models` dictionary they are made once, and keep their traces from seed to seed.

    >>> import weft.testing
    >>> fn, inputs = weft.testing.random_program(12)
    >>> again, _ = weft.testing.random_program(12)
    >>> fn.name == again.name
    True
    """
    random = np.random.default_rng([seed, 2])
    name = sample or str(random.choice(list(SAMPLES)))
    chosen = SAMPLES[name]
    if structure is None:
        kind = "cyclic" if chosen.rounds and random.random() < 0.6 else None
        structure = random_structure(seed, kind, types=chosen.types)
    generator = torch.Generator().manual_seed(seed)
    n = structure.num_vertices

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    x = torch.randint(0, cells.WORDS, (n,), generator=generator) if chosen.words else noise(n, cells.IN)
    edges = noise(structure.num_edges, cells.IN) if chosen.edges else None
    rounds = int(random.integers(1, 4)) if chosen.rounds else None
    init = {"h": noise(n, cells.DIM)} if chosen.rounds and random.random() < 0.5 else None
    return RandomProgram(name, _model(name, chosen, models, dtype), rounds), (structure, x, edges, init)


def _model(name: str, sample: Sample, models: dict[str, VertexFunction] | None, dtype: torch.dtype) -> VertexFunction:
    if models is not None and name in models:
        return models[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(list(SAMPLES).index(name))
        model = sample.make().to(dtype).train(not sample.evaluate)
    if models is not None:
        models[name] = model
    return model
