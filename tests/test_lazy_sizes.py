"""Functions of whole sequences: every length is another kind of call, and a new one must not cost a trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.lazy.ops
import weft.run.callcells
from weft.lazy.alone import COMPANY, FEW_ROWS
from weft.lazy.kinds import FEW_SIZES
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
    """The model after it has seen more than a few lengths, each of them in company."""
    net = weft.batched(model)
    net(words(*[length for length in range(2, 3 + FEW_SIZES) for _ in range(COMPANY + 1)]))
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


class Messages(nn.Module):
    """A graph in tensors: nodes, and edges between them."""

    def __init__(self, dropped: float = 0.0) -> None:
        super().__init__()
        self.send, self.update, self.dropped = nn.Linear(4, 4), nn.GRUCell(4, 4), dropped

    def forward(self, graph: tuple[Tensor, Tensor]) -> Tensor:
        h, (source, target) = graph
        for _ in range(2):
            sent = self.send(h)[source]
            sent = nn.functional.dropout(sent, self.dropped) if self.dropped else sent
            h = self.update(torch.zeros_like(h).index_add(0, target, sent), h)
        return h.sum(0)


def graphs(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    made = torch.Generator().manual_seed(seed)
    sizes = torch.randint(3, 40, (count, 2), generator=made).tolist()
    return [
        (torch.randn(nodes, 4, generator=made), torch.randint(0, nodes, (2, edges), generator=made)) for nodes, edges in sizes
    ]


def recordings(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of calls from here on: whether they were diverse, when they were recorded."""
    seen: list[bool] = []
    note = weft.lazy.batched.note

    def noted(tape: Any, *rest: Any) -> None:
        seen.append(tape.is_diverse)
        note(tape, *rest)

    monkeypatch.setattr(weft.lazy.batched, "note", noted)
    return seen


def test_graphs_of_all_sizes_are_recorded_once_and_never_traced(traced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen, model = recordings(monkeypatch), Messages().double()
    net, parameters = weft.batched(model), [*model.parameters()]
    for seed in range(4):
        given = [(h.double(), edges) for h, edges in graphs(16, seed)]
        found, expected = net(given), torch.stack([model(graph) for graph in given])
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)
        gradients = (torch.autograd.grad(out.square().sum(), parameters) for out in (found, expected))
        for one, other in zip(*gradients, strict=True):
            assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)
    assert seen == [True] and traced == []


def test_what_draws_numbers_draws_the_same_beside_any_sizes(traced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is recorded at every call: whether it runs alone depends on the call, and on nothing that was before."""
    seen, model = recordings(monkeypatch), Messages(0.5)
    net = weft.batched(model)
    alike = [(torch.ones(5, 4), torch.zeros(2, 7, dtype=torch.int64))] * 3

    def drawn(given: list[tuple[Tensor, Tensor]]) -> list[Any]:
        torch.manual_seed(3)
        found: list[Any] = net(given).tolist()
        return found

    first = drawn(alike), drawn(graphs(16, 0))
    assert (drawn(alike), drawn(graphs(16, 0))) == first
    for seed in range(1, 4):
        net(graphs(16, seed))
    assert (drawn(alike), drawn(graphs(16, 0))) == first
    assert seen == [False, True, False, True, True, True, True, False, True]
    torch.manual_seed(3)
    assert torch.stack([model(graph) for graph in graphs(16, 0)]).tolist() == first[1]  # in the order of the loop


@pytest.mark.parametrize("many", [COMPANY, COMPANY + 1])
def test_sizes_in_company_are_batched(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = recordings(monkeypatch)
    weft.batched(Attention())(words(*[length for length in range(2, 3 + FEW_SIZES) for _ in range(many)]))
    assert seen == [many == COMPANY]


def test_large_layers_want_less_company(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = recordings(monkeypatch)
    for many in (1, 2):
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0).eval()
        weft.batched(layer, stack=False)([torch.randn(length, 8) for length in range(2, 3 + FEW_SIZES) for _ in range(many)])
    assert seen == [True, False]


def test_a_function_that_draws_after_all_is_recorded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = recordings(monkeypatch)

    def fn(x: Tensor) -> Tensor:
        h = (x * 2).sum()
        return nn.functional.dropout(h, 0.5) if len(x) > 50 else h

    net, many = weft.batched(fn), [torch.ones(length) for length in range(1, 20)]
    for given in (many, many, [*many, torch.ones(60)], many, many):
        net(given)
    assert seen == [True, True, True]  # the first, and those after numbers were drawn
