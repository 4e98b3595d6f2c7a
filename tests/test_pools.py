"""Results that go from flush to flush: gradients come back through all of them, as often as torch would let them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import weft
import weft.testing
from weft.graph.recording import as_tensor
from weft.lazy.kinds import kind_of
from weft.lazy.pools import FEW_BYTES, Pool
from weft.run.batched import run_batched
from weft.run.call import Call


class Rounds(nn.Module):
    """Every round asks for a number; what earlier rounds gave is used again, some of it much later."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.out = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor, rounds: int) -> Any:
        first = h = torch.tanh(self.step(x))
        kept = []
        for _ in range(rounds):
            h = torch.tanh(self.step(h) + first)
            kept.append(self.out(h))
            if h.sum() > 100:
                break
        return torch.stack(kept).sum(0) + h.sum(), first


def batch() -> tuple[Rounds, Tensor, list[int]]:
    torch.manual_seed(0)
    return Rounds().double(), torch.randn(5, 3, dtype=torch.float64), [1, 4, 2, 6, 3]


def test_gradients_through_many_flushes() -> None:
    model, x, rounds = batch()
    net = weft.batched(model)
    for _ in range(3):  # what can wait is known from the second call on
        net(x, rounds)
        weft.testing.assert_equivalent(model, x, rounds)


def test_what_one_flush_gave_is_read_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    picked: list[bool] = []

    def watched(call: Call) -> list[Tensor]:
        picked.append(call.feed is not None)
        return run_batched(call)

    torch.manual_seed(0)
    layer, x = nn.Linear(3, 3).double(), torch.rand(6, 3, dtype=torch.float64, requires_grad=True)

    def fn(row: Tensor) -> Tensor:
        for _ in range(4):
            row = torch.tanh(layer(row)) + row
            if row.sum() > 2:
                break
        return row * 2

    monkeypatch.setattr("weft.run.calls.run_batched", watched)
    for backend in ("auto", "eager"):
        for _ in range(3):  # the general way, then by recipes
            picked.clear()
            weft.testing.assert_equivalent(fn, x, backends=[backend], policies=["auto"])
            assert any(picked) == (backend == "auto")


def test_what_is_most_of_a_flush_goes_without_the_exchange() -> None:
    given, wide = torch.randn(8, 2, requires_grad=True), FEW_BYTES // 4
    pool = Pool(kind_of((wide,), torch.float32))
    pool.add(torch.randn(1, wide))
    part = pool.add((given[:, :1] * 2).expand(8, wide))
    most, few = (as_tensor(pool.take([(part, np.array(rows))])) for rows in ([6, 0, 3, 2], [5]))
    assert [type(taken.grad_fn).__name__ for taken in (most, few)] == ["IndexSelectBackward0", "_ExchangeBackward"]
    (most[:, 0].sum() + 3 * few[:, 0].sum()).backward()
    assert given.grad is not None
    assert given.grad[:, 0].tolist() == [2.0, 0.0, 2.0, 2.0, 0.0, 6.0, 2.0, 0.0]


def test_what_is_little_memory_goes_without_the_exchange() -> None:
    pool = Pool(kind_of((2,), torch.float32))
    part = pool.add(torch.randn(8, 2, requires_grad=True) * 2)
    few = as_tensor(pool.take([(part, np.array([5]))]))
    assert type(few.grad_fn).__name__ == "IndexSelectBackward0"
    assert torch.equal(few[0], part.rows[5])
    other = pool.add(torch.randn(3, 2))
    both = as_tensor(pool.take([(part, np.array([5])), (other, np.array([2, 0]))]))
    assert type(both.grad_fn).__name__ == "IndexSelectBackward0"
    assert torch.equal(both, torch.stack([part.rows[5], other.rows[2], other.rows[0]]))


def test_backward_twice_and_of_parts() -> None:
    model, x, rounds = batch()
    net = weft.batched(model)
    net(x, rounds)
    parameters = list(model.parameters())
    total, first = net(x, rounds)
    once = torch.autograd.grad(total.sum() + first.sum(), parameters, retain_graph=True)
    again = torch.autograd.grad(total.sum() + first.sum(), parameters, retain_graph=True)
    only = torch.autograd.grad(total[0], parameters, retain_graph=True)
    rest = torch.autograd.grad(total[1:].sum() + first.sum(), parameters)
    for one, two, part, other in zip(once, again, only, rest, strict=True):
        assert torch.equal(one, two)
        torch.testing.assert_close(part + other, one)


def test_a_second_derivative_is_refused_not_wrong() -> None:
    model, x, rounds = batch()
    net = weft.batched(model)
    for _ in range(2):
        total, _ = net(x, rounds)
        grads = torch.autograd.grad(total.sum(), list(model.parameters()), create_graph=True)
        with pytest.raises(weft.WeftError, match="double backward: a batched call can be differentiated once"):
            torch.stack([grad.square().sum() for grad in grads]).sum().backward()


def test_a_gradient_penalty_without_flushes_is_refused_not_left_out() -> None:
    x, layer = torch.randn(3, 4, requires_grad=True), nn.Linear(4, 4)
    total = weft.batched(lambda row: layer(row).tanh().sum())(x).sum()
    (slope,) = torch.autograd.grad(total, x, create_graph=True)
    for tensor in (x, layer.weight):
        with pytest.raises(weft.WeftError, match="double backward: a batched call can be differentiated once"):
            torch.autograd.grad((slope.norm() - 1) ** 2, tensor, retain_graph=True)


def test_the_reference_has_second_derivatives_through_flushes() -> None:
    model, x, rounds = batch()

    def penalty(total: Tensor) -> list[Tensor]:
        grads = torch.autograd.grad(total.sum(), list(model.parameters()), create_graph=True)
        squares = torch.stack([grad.square().sum() for grad in grads]).sum()
        return list(torch.autograd.grad(squares, [model.step.weight, model.step.bias, model.out.weight]))

    net = weft.batched(model, backend="reference")
    net(x, rounds)
    expected = penalty(torch.stack([model(*each)[0] for each in zip(x, rounds, strict=True)]))
    for got, want in zip(penalty(net(x, rounds)[0]), expected, strict=True):
        torch.testing.assert_close(got, want)


def test_what_waits_uses_its_tensors_as_they_were() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def fn(x: Tensor) -> Tensor:
        count, late = torch.zeros(3, dtype=torch.float64), []
        for turn in range(3):
            count[turn] = turn + 1.0
            late.append(weight * count)
            assert (x * weight).sum() < 100
        return torch.stack(late).sum(0)

    x = torch.ones(4, 3, dtype=torch.float64)
    net = weft.batched(fn)
    for _ in range(3):
        assert net(x).tolist() == [[3.0, 4.0, 3.0]] * 4


def test_what_waits_runs_before_the_model_changes() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.count = nn.Parameter(torch.ones(2)), nn.Buffer(torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            late = []
            for _ in range(3):
                late.append(self.weight * self.count)
                assert (x * self.weight).sum() < 100
                self.count.add_(1)
            return torch.stack(late).sum(0)

    for _ in range(2):
        model = Counting()
        net = weft.batched(model)
        for turn in range(3):
            start = 3.0 * turn
            assert net(torch.ones(1, 2)).tolist() == [[3 * start + 3] * 2]


def wandering(seed: int, weights: list[Tensor], captured: list[Tensor]) -> Any:
    """A program that is the same for all examples but for their numbers: some branch, some end early."""

    def run(example: tuple[int, Tensor]) -> Any:
        number, x = example
        choice, values = random.Random(seed), [x]
        for _ in range(14):
            kind, a, b = choice.random(), *(values[choice.randrange(len(values))] for _ in range(2))
            w, c, one = weights[choice.randrange(3)], captured[choice.randrange(3)], choice.randrange(4)
            if kind < 0.2:
                made = torch.tanh(a @ w)
            elif kind < 0.3:
                made = a * b + c
            elif kind < 0.42:
                made = a * (0.1 * number + one)
            elif kind < 0.5:
                made = torch.stack(values[-(1 + number % 3) :]).mean(0)
            elif kind < 0.55:
                if number % 4 == one:
                    return a + b, len(values)
                made = b - c
            elif kind < 0.62:
                with torch.no_grad():
                    made = torch.sigmoid(a @ w)
                    made = made * b if made.sum() > 1.5 else made
            elif kind < 0.66:
                made = a.detach() + b
            elif kind < 0.9:
                total = float((a * b).sum()) if one else (a * c).sum()
                made = torch.sin(b @ w) if total > 0 else a - 0.5 * c
            elif kind < 0.94:
                made = a.clone()
                made[one % 3] = b[0]
                made.mul_(1.1)
            else:
                made = a[int(a.argmax())] * b
            if choice.random() < 0.3 and len(values) > 2:
                del values[choice.randrange(len(values))]
            values.append(made)
        return values[-1], sum(values), values[0]

    return run


@pytest.mark.parametrize("seed", [508, 509, 510])
def test_blocks_are_learned_on_after_other_flushes_met_more_types(seed: int) -> None:
    torch.manual_seed(0)
    weights, captured = ([torch.randn(*shape).double() for _ in range(3)] for shape in ((3, 3), (3,)))
    run = wandering(seed, weights, captured)
    net = weft.batched(run, stack=False)
    for call in range(4):
        torch.manual_seed(call)
        examples = list(enumerate(torch.randn(5, 3).double()))
        for mine, theirs in zip(net(examples), [run(example) for example in examples], strict=True):
            for one, other in zip(mine, theirs, strict=True):
                torch.testing.assert_close(one, other)
