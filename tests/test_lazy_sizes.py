"""Functions of whole sequences: every length is another kind of call, and a new one must not cost a trace."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.lazy.ops
import weft.run.callcells
from weft.lazy.alone import FEW_ROWS, FEW_SIZES
from weft.run.young import FEW, OFTEN


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.query, self.value = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        weights = torch.softmax(self.query(x) @ x.t(), -1)
        return self.out((weights @ self.value(x)).mean(0))


def words(*lengths: int) -> list[Tensor]:
    return [torch.arange(length) * 7 % 20 for length in lengths]


def taught(model: nn.Module) -> weft.lazy.batched.Batched:
    """The model after it has seen more than a few lengths."""
    net = weft.batched(model)
    net(words(*range(2, 3 + max(FEW_SIZES, FEW))))
    return net


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the cells that are traced from now on."""
    names: list[str] = []
    trace = weft.run.callcells.trace

    def noted(name: str, *args: object) -> object:
        names.append(name)
        return trace(name, *args)

    monkeypatch.setattr(weft.run.callcells, "trace", noted)
    return names


def test_any_mix_of_lengths_equals_the_loop() -> None:
    torch.manual_seed(0)
    model = Attention().double()
    for lengths in ([2, 3, 4, 5], [6, 7, 8], [9] * FEW_ROWS + [10] * (FEW_ROWS + 1), [9, 10, 11, 2, 2], [12]):
        weft.testing.assert_equivalent(model, words(*lengths))


def test_calls_without_company_run_untraced(traced: list[str]) -> None:
    net = taught(Attention())
    traced.clear()
    net(words(30, 31, 31, 32)).sum().backward()
    assert traced == []


def test_a_new_length_of_several_examples_is_traced_when_it_was_used_often(traced: list[str]) -> None:
    net = taught(Attention())
    for lengths in (range(40, 41 + FEW), *[[50, 51]] * OFTEN):
        net(words(*[length for length in lengths for _ in range(FEW_ROWS + 1)])).sum().backward()
    traced.clear()
    for _ in range(4):
        net(words(*[50, 51] * (FEW_ROWS + 1))).sum().backward()
        assert len(traced) <= 1
        traced.clear()


def test_a_new_length_is_not_looked_at_with_fake_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Attention()
    net = taught(model)
    monkeypatch.setattr(weft.lazy.ops, "discover", None)
    found = net(words(33, 34))
    monkeypatch.undo()
    assert torch.allclose(found, torch.stack([model(each) for each in words(33, 34)]), atol=1e-6)


def test_an_error_in_a_call_that_runs_alone_names_example_and_line() -> None:
    net = taught(Attention())
    with pytest.raises(IndexError, match="index out of range in self") as caught:
        net([*words(35), torch.full((36,), 20)])
    assert caught.value.__notes__[0] == "in example 1"
    assert "x = self.embed(words)" in caught.value.__notes__[1]


def test_cells_that_write_into_their_arguments_change_nothing_outside() -> None:
    @weft.cell
    def halved(x: Tensor) -> Tensor:
        x *= 0.5
        return x.sum()

    def both(x: Tensor) -> Tensor:
        return halved(x) + x.sum()

    given = [torch.ones(length) for length in range(1, 9)]
    assert weft.batched(both)(given).tolist() == [1.5 * length for length in range(1, 9)]
    assert all(bool((x == 1).all()) for x in given)


def test_gradients_off_and_detached_parts_stay_so_when_they_run_alone() -> None:
    weight = nn.Parameter(torch.tensor([2.0]))

    def fn(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scaled = x * weight
        with torch.no_grad():
            without = scaled.sum()
        return scaled.sum(), without, scaled.detach().sum()

    given = [torch.ones(length) for length in range(1, 9)]
    for _ in range(2):
        with_gradients, without, detached = weft.batched(fn, stack=True)(given)
        assert (with_gradients.requires_grad, without.requires_grad, detached.requires_grad) == (True, False, False)
    with_gradients.sum().backward()
    assert weight.grad is not None and weight.grad.item() == sum(range(1, 9))


def test_what_draws_numbers_draws_the_same_at_its_first_and_its_third_use() -> None:
    net = weft.batched(lambda x: nn.functional.dropout(x, 0.5).sum() + x.cumsum(0).sum())
    net([torch.ones(length) for length in range(1, 9)])

    def drawn() -> list[float]:
        torch.manual_seed(5)
        found: list[float] = net([torch.ones(60), torch.ones(61)]).tolist()
        return found

    assert drawn() == drawn() == drawn()
