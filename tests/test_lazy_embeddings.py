"""Embeddings whose gradients are not the plain sum over what was looked up: by frequency, and sparse ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import weft
from lazy_parts import assert_equals_loop

F64 = torch.float64
BACKENDS = ["auto", "eager", "reference"]
SENTENCES = [[0, 0, 1], [1, 1, 1], [2, 0, 1], [5, 5, 0]]


def table(**options: Any) -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(10, 3, **options).double()


def stacked(words: list[int]) -> Tensor:
    return torch.stack([torch.tensor(word) for word in words])


BY_FREQUENCY: dict[str, Callable[[nn.Embedding], Callable[[Any], Tensor]]] = {
    "a sentence": lambda e: lambda words: e(torch.tensor(words)),
    "a word": lambda e: lambda words: e(torch.tensor(words[0])),
    "a matrix": lambda e: lambda words: e(torch.tensor([words, words[::-1]])),
    "a stack": lambda e: lambda words: e(stacked(words)),
    "twice": lambda e: lambda words: e(torch.tensor(words)) * e(torch.tensor(words[::-1])),
    "the function": lambda e: lambda words: F.embedding(torch.tensor(words), e.weight, scale_grad_by_freq=True),
    "torch.embedding": lambda e: lambda words: torch.embedding(e.weight, torch.tensor(words), -1, True),
    "longer than the table": lambda e: lambda words: e(torch.tensor(words * 5)),
    "in a cell": lambda e: (lambda cell: lambda words: cell(torch.tensor(words)))(weft.cell(lambda index: e(index).tanh())),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", BY_FREQUENCY)
def test_frequencies_are_counted_in_each_call(name: str) -> None:
    assert_equals_loop(BY_FREQUENCY[name](table(scale_grad_by_freq=True)), SENTENCES, backends=BACKENDS)


def test_frequencies_are_counted_in_each_call_by_plain_vmap() -> None:
    """Many lengths, of which most are not traced; weights that are not finite."""
    e = table(scale_grad_by_freq=True)
    with torch.no_grad():
        e.weight[7, 0] = torch.inf
    assert_equals_loop(lambda words: e(torch.tensor(words)).sum(0), [[0] * length + [1] for length in range(1, 12)])
    found = weft.batched(lambda words: e(torch.tensor(words)))([[7, 7, 1], [7, 2, 3]])
    assert torch.equal(found, torch.stack([e(torch.tensor(words)) for words in ([7, 7, 1], [7, 2, 3])]))


@pytest.mark.filterwarnings("ignore::weft.FallbackWarning")
@pytest.mark.parametrize("backend", BACKENDS)
def test_sparse_gradients_stay_sparse(backend: str) -> None:
    e, head = table(sparse=True), nn.Linear(3, 3).double()
    fn = nn.Sequential(e, head, nn.Tanh())

    def one(words: list[int]) -> Tensor:
        return fn(torch.tensor(words))  # type: ignore[no-any-return]

    def gradients(run: Callable[[], Tensor]) -> list[Any]:
        fn.zero_grad()
        (run() ** 2).sum().backward()
        return [parameter.grad for parameter in fn.parameters()]

    wanted = gradients(lambda: torch.stack([one(words) for words in SENTENCES]))
    net = weft.batched(one, backend=backend)
    for _ in range(2):
        found = gradients(lambda: net(SENTENCES))
        assert found[0].is_sparse
        assert wanted[0].is_sparse
        for given, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(given.to_dense(), expected.to_dense(), rtol=1e-12, atol=1e-12)
    torch.optim.SparseAdam([e.weight]).step()


def test_sparse_gradients_are_announced() -> None:
    e = table(sparse=True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        weft.batched(lambda words: e(torch.tensor(words)))(SENTENCES).sum().backward()
    assert [str(each.message) for each in told] == [
        "Embedding: a tensor of shape [10, 3] gets a sparse gradient, as with Embedding(sparse=True); it runs by plain vmap"
    ]


@pytest.mark.filterwarnings("ignore::weft.FallbackWarning")
def test_a_table_with_sparse_gradients_that_is_used_as_a_weight_too() -> None:
    e, head = table(sparse=True), nn.Linear(3, 3).double()

    def fn(words: list[int]) -> Tensor:
        return F.linear(head(e(torch.tensor(words)).tanh()), e.weight)

    (weft.batched(fn)(SENTENCES) ** 2).sum().backward()
    found, e.weight.grad = e.weight.grad, None
    (torch.stack([fn(words) for words in SENTENCES]) ** 2).sum().backward()
    assert found is not None
    assert e.weight.grad is not None
    torch.testing.assert_close(found.to_dense(), e.weight.grad.to_dense(), rtol=1e-12, atol=1e-12)
