"""torch.distributions on values: what sampling and policy gradients are written with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, MultivariateNormal, Normal

import weft
from lazy_parts import assert_equals_loop

X = torch.randn(64, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.step, self.score = nn.Linear(3, 3), nn.Linear(3, 3)
        self.double()

    def forward(self, x: Tensor) -> Any:
        total, actions = torch.zeros((), dtype=torch.float64), []
        for _ in range(4):
            choice = Categorical(logits=self.score(x))
            action = choice.sample()
            total = total + choice.log_prob(action) + 0.1 * choice.entropy()
            actions.append(action)
            noise = Normal(self.step(x), 0.1)
            x = torch.tanh(noise.rsample()) + Bernoulli(logits=x).sample()
        return total, torch.stack(actions)


def test_log_prob_and_entropy_equal_the_loop() -> None:
    model = Policy()

    def fn(x: Tensor) -> Any:
        h = model.step(x)
        return (
            Normal(h, 1.0).log_prob(x),
            Normal(0.0, h.exp()).entropy(),
            Categorical(logits=h).log_prob((h > 0).long().sum() % 3),
            Categorical(probs=h.softmax(0)).entropy(),
            Bernoulli(logits=h).log_prob((h > 0).double()),
            Bernoulli(probs=h.sigmoid()).entropy(),
        )

    assert_equals_loop(fn, X[:4])


def test_policy_gradients_by_sampling() -> None:
    model = Policy()
    net = weft.batched(model)
    torch.manual_seed(1)
    total, actions = net(X)
    total.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    torch.manual_seed(1)
    assert torch.equal(net(X)[1], actions), "same seed, same actions"
    assert len({tuple(row) for row in actions.tolist()}) > 8, "examples draw for themselves"
    with torch.no_grad():
        assert not net(X)[0].requires_grad


def test_samples_have_the_frequencies_of_their_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0])
    torch.manual_seed(0)
    drawn = weft.batched(lambda i: Categorical(logits=logits + i * 0.0).sample())([0.0] * 4000)
    counts = torch.bincount(drawn, minlength=3) / 4000
    assert torch.allclose(counts, logits.softmax(0), atol=0.03)


def test_distributions_of_tensors_check_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distribution, "_validate_args", True)  # torch.compile turns it off for the whole process

    def fn(x: Tensor) -> Tensor:
        return Normal(torch.tensor([1.0]), torch.tensor([-1.0])).sample() + x

    with pytest.raises(ValueError, match="Expected parameter scale"):
        weft.batched(fn)(X)
    with pytest.raises(ValueError, match="Expected parameter scale"):
        Normal(torch.tensor([1.0]), torch.tensor([-1.0]))


def test_a_matrix_is_not_asked_whether_it_is_symmetric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distribution, "_validate_args", True)
    model = Policy()

    def fn(x: Tensor) -> Any:
        h, eye = model.step(x), torch.eye(3, dtype=torch.float64)
        return MultivariateNormal(h, torch.outer(h, h) + eye).log_prob(x), MultivariateNormal(h, eye).log_prob(x)

    assert_equals_loop(fn, X[:4])
    kept = weft.batched(fn, cache=lambda x: tuple(x.tolist()))(X[:4])  # where asking raises
    assert all(torch.allclose(found[at], fn(X[at])[which]) for which, found in enumerate(kept) for at in range(4))
    with pytest.raises(ValueError, match="Expected parameter covariance_matrix"):
        weft.batched(lambda x: MultivariateNormal(model.step(x), torch.tensor([[1.0, 2.0], [3.0, 4.0]])).log_prob(x))(X)
