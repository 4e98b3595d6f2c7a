"""What draws random numbers: recorded, independent across examples, the same bits for the same seed from the first call on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import Tensor, nn

import weft

torch.manual_seed(0)
LINEAR = nn.Linear(4, 4).double()
X = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def rate(x: Tensor) -> Tensor:
    return F.softplus(LINEAR(x)) + 0.3


def categorical_and_permutation(x: Tensor) -> Any:
    h = LINEAR(x)
    if h.sum() > 0:
        h = h * 2
    chosen = torch.multinomial(torch.softmax(h, 0), 1)
    order = torch.randperm(4)
    return h[order], chosen, order, D.Categorical(logits=h).sample()


DRAWN: dict[str, Callable[..., Any]] = {
    "bernoulli": lambda x: torch.bernoulli(torch.sigmoid(LINEAR(x))),
    "normal": lambda x: torch.normal(LINEAR(x), rate(x)),
    "normal with a size": lambda x: torch.normal(0.0, 1.0, (4,)) + LINEAR(x),
    "poisson": lambda x: torch.poisson(rate(x)),
    "multinomial": lambda x: torch.multinomial(rate(x), 2),
    "randperm": lambda x: LINEAR(x)[torch.randperm(4)],
    "randint": lambda x: LINEAR(x)[torch.randint(4, (2,))],
    "rand_like": lambda x: LINEAR(x) + torch.rand_like(LINEAR(x)),
    "exponential_": lambda x: LINEAR(x) + torch.empty(4).exponential_(),
    "dropout": lambda x: F.dropout(LINEAR(x), 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(LINEAR(x), 0.5, True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(LINEAR(x)),
    "hard gumbel_softmax": lambda x: F.gumbel_softmax(LINEAR(x), hard=True),
    "Gamma": lambda x: D.Gamma(rate(x), rate(x)).rsample(),
    "Chi2": lambda x: D.Chi2(rate(x)).rsample(),
    "StudentT": lambda x: D.StudentT(rate(x)).rsample(),
    "Poisson": lambda x: D.Poisson(rate(x)).sample(),
    "Binomial": lambda x: D.Binomial(10, torch.sigmoid(LINEAR(x))).sample(),
    "Multinomial": lambda x: D.Multinomial(5, logits=LINEAR(x)).sample(),
    "OneHotCategorical": lambda x: D.OneHotCategoricalStraightThrough(logits=LINEAR(x)).rsample(),
    "MultivariateNormal": lambda x: D.MultivariateNormal(LINEAR(x), torch.eye(4).double()).rsample(),
}
FALLS_BACK: dict[str, Callable[..., Any]] = {
    "Dirichlet": lambda x: D.Dirichlet(rate(x)).rsample(),
    "Beta": lambda x: D.Beta(rate(x), rate(x) + 1).rsample(),
    "rrelu": lambda x: F.rrelu(LINEAR(x), training=True),
}


def test_the_documentation_lists_what_draws() -> None:
    text = (Path(__file__).parents[1] / "docs" / "recording.md").read_text(encoding="utf-8")
    for status, names in {"batched": DRAWN, "by plain vmap or row by row": FALLS_BACK}.items():
        assert f"| {status} | " + ", ".join(f"`{name}`" for name in names) + " |" in text


@pytest.mark.parametrize("name", [*DRAWN, *FALLS_BACK])
def test_the_same_seed_gives_the_same_bits_from_the_first_call_on(name: str) -> None:
    fn = DRAWN[name] if name in DRAWN else FALLS_BACK[name]
    net = weft.batched(lambda x: fn(x))
    with warnings.catch_warnings():
        if name in FALLS_BACK:
            warnings.simplefilter("ignore", weft.FallbackWarning)
        torch.manual_seed(5)
        first = net(X[:1].expand(24, 4))
    torch.manual_seed(5)
    assert torch.equal(net(X[:1].expand(24, 4)), first)
    assert any(not torch.equal(one, first[0]) for one in first), "examples draw for themselves"


@pytest.mark.parametrize("name", ["Gamma", "Chi2", "Dirichlet", "Beta", "hard gumbel_softmax", "rrelu"])
def test_gradients_of_samples_equal_those_of_the_loop(name: str) -> None:
    fn = DRAWN[name] if name in DRAWN else FALLS_BACK[name]
    found = []
    for run in (lambda: weft.batched(lambda x: fn(x))(X[:1]), lambda: fn(X[0])[None]):
        torch.manual_seed(3)
        LINEAR.zero_grad()
        with warnings.catch_warnings():
            if name in FALLS_BACK:
                warnings.simplefilter("ignore", weft.FallbackWarning)
            drawn = run()
        (drawn * torch.arange(drawn.numel()).reshape(drawn.shape)).sum().backward()
        assert LINEAR.weight.grad is not None
        found.append((drawn, LINEAR.weight.grad.clone()))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-12) and torch.allclose(found[0][1], found[1][1], atol=1e-12)


def test_permutations_beside_samples_after_a_flush() -> None:
    net = weft.batched(categorical_and_permutation)
    torch.manual_seed(0)
    first = net(X)
    for _ in range(2):
        torch.manual_seed(0)
        assert all(torch.equal(a, b) for a, b in zip(net(X), first, strict=True))
    assert all(sorted(row) == [0, 1, 2, 3] for row in first[2].tolist())


def test_permutations_are_uniform() -> None:
    torch.manual_seed(0)
    drawn = weft.batched(lambda i: torch.randperm(3) + i)([0] * 3000)
    counts = torch.bincount(drawn[:, 0] * 3 + drawn[:, 1], minlength=9)[[1, 2, 3, 5, 6, 7]] / 3000
    assert torch.allclose(counts, torch.full((6,), 1 / 6), atol=0.03)


def test_looking_at_code_that_falls_back_draws_nothing() -> None:
    net = weft.batched(lambda x: FALLS_BACK["rrelu"](x))
    torch.manual_seed(1)
    expected = [F.rrelu(LINEAR(x), training=True) for x in X]
    torch.manual_seed(1)
    with pytest.warns(weft.FallbackWarning, match="it runs row by row"):
        assert torch.allclose(net(X), torch.stack(expected))


def test_new_with_a_size_makes_a_tensor_of_that_size() -> None:
    found = weft.batched(lambda x: LINEAR(x).new(torch.Size([2])).zero_() + 1)(X)
    assert torch.equal(found, torch.ones(3, 2, dtype=torch.float64))


def test_scattering_a_number_in_a_cell_is_batched() -> None:
    @weft.cell
    def mark(h: Tensor, index: Tensor) -> Tensor:
        return torch.zeros_like(h).scatter_(0, index, 1.0) * h

    found = weft.batched(lambda x: mark(LINEAR(x), LINEAR(x).argmax().reshape(1)))(X)
    assert torch.allclose(found, F.one_hot(LINEAR(X).argmax(1), 4) * LINEAR(X))
