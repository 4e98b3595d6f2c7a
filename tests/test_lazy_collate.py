"""Batched functions in a loader: examples are recorded in the workers, and run here."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import weft
import weft.data
from lazy_parts import TREES, tree_net


class Scorer(nn.Module):
    """A tree, a scale and a vector; numbers that vary, lists of different lengths, drop-out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.join, self.drop = nn.Embedding(20, 4), nn.Linear(8, 4), nn.Dropout(0.5)
        self.double()

    def encode(self, tree: Any) -> Any:
        if isinstance(tree, int):
            return self.embed(torch.tensor(tree))
        return torch.tanh(self.join(torch.cat([self.encode(tree[0]), self.encode(tree[1])]))) * len(tree)

    def forward(self, tree: Any, scale: float, bias: Tensor) -> Any:
        words = torch.stack([self.encode(tree), bias * scale, *(self.embed(torch.tensor(i)) for i in range(int(scale)))])
        return {"h": self.drop(words.mean(0)), "n": int(scale), "first": bias[0]}


def examples() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    trees = [3, (1, 2), ((3, 4), 5), (6, (7, (8, 9))), 2, (1, (1, 1))]
    return [((tree, float(at), torch.randn(4, dtype=torch.float64, generator=generator)), at) for at, tree in enumerate(trees)]


@pytest.mark.parametrize("start", [None, "fork", "spawn"])
def test_a_loader_gives_what_the_call_gives(start: str | None) -> None:
    model = Scorer().eval()
    net = weft.batched(model)
    loader = DataLoader(
        examples(),
        batch_size=2,
        collate_fn=weft.data.collate(net),
        num_workers=2 if start else 0,
        multiprocessing_context=start,
    )
    expected = net(*map(list, zip(*(item for item, _ in examples()), strict=True)))
    for _ in range(2):
        found = [(net(batch), len(batch), labels) for batch, labels in loader]
        assert [count for _, count, _ in found] == [2, 2, 2] and torch.cat([part for *_, part in found]).tolist() == list(
            range(6)
        )
        for name in ("h", "n", "first"):
            torch.testing.assert_close(torch.cat([result[name] for result, *_ in found]), expected[name])
    model.zero_grad()
    sum(net(batch)["h"].sum() for batch, _ in loader).backward()
    mine = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    net(*map(list, zip(*(item for item, _ in examples()), strict=True)))["h"].sum().backward()
    torch.testing.assert_close(mine, [parameter.grad for parameter in model.parameters()])


def test_a_batch_moves_pickles_and_is_not_recorded_again() -> None:
    model = tree_net(marked=True)
    net = weft.batched(model)
    batch, rest = weft.data.collate(net)([(tree,) for tree in TREES[:4]])
    assert rest is None and len(batch) == 4
    again = pickle.loads(pickle.dumps(batch.to("cpu")))
    expected = net(TREES[:4])
    torch.testing.assert_close(net(batch), expected)
    calls: list[Any] = []
    forward = model.forward
    model.forward = lambda tree: calls.append(tree) or forward(tree)  # type: ignore[method-assign]
    net(again)
    assert calls == [], "the witnesses of this maker were recorded before"


def test_batches_follow_the_mode_of_the_model() -> None:
    model = Scorer()
    net = weft.batched(model)
    batch, _ = weft.data.collate(net)(examples())
    torch.manual_seed(0)
    first, second = net(batch)["h"], net(batch)["h"]
    assert not torch.equal(first, second), "drop-out draws anew"
    model.eval()
    quiet = net(batch)["h"]
    assert torch.equal(quiet, net(batch)["h"])
    torch.testing.assert_close(quiet, net(*map(list, zip(*(item for item, _ in examples()), strict=True)))["h"])
    with torch.no_grad():
        assert not net(batch)["h"].requires_grad


def test_functions_and_lists_of_results() -> None:
    weight = torch.randn(3, requires_grad=True)
    net = weft.batched(lambda n: torch.ones(n) * weight[:n], stack=False)
    batch, _ = weft.data.collate(net, inputs=lambda item: item)([1, 2, 3])
    assert [part.shape[0] for part in net(batch)] == [1, 2, 3]


class Nested(nn.Module):
    def forward(self, nest: Any) -> Tensor:
        return torch.ones(2) * len(nest)


def test_what_cannot_be_collated_says_so() -> None:
    linear = nn.Linear(1, 1)
    collate = weft.data.collate(weft.batched(lambda n: n if linear(torch.ones(1)) > 0 else -n))
    with pytest.raises(weft.TraceError) as error:
        collate([1, 2])
    assert str(error.value) == (
        "collate: the code asked for the number in a Value (bool, float, int, item or tolist); what it does next would depend "
        "on numbers that change from epoch to epoch, so its recording cannot be kept: call without collate"
    )

    class Forked(nn.Module):
        def forward(self, n: int) -> Tensor:
            found = torch.ones(2) * n
            return found if self.training else found + 1

    net = weft.batched(Forked())
    batch, _ = weft.data.collate(net)([1, 2])
    assert net(batch).shape == (2, 2)
    net.eval()
    with pytest.raises(weft.TraceError) as error:
        net(batch)
    assert str(error.value) == (
        "example 0 of this batch makes other calls here than where the batch was recorded: the model there was another, or in "
        "another mode; collate with the model that runs the batch, in the same mode"
    )
    for example in ([1, (2, 3)], {"a": 1}):
        strange, _ = weft.data.collate(weft.batched(Nested()))([example])
        with pytest.raises(weft.TypeMismatch) as wrong:
            weft.batched(linear)(strange)
        assert str(wrong.value) == (
            "this weft.data.Batch was collated for another network (Nested, and this is Linear); use weft.data.collate "
            "with this one"
        )
    other, _ = weft.data.collate(weft.nn.TreeGRU(2, 3))([(weft.Graph.chain(2), torch.randn(2, 2))])
    with pytest.raises(weft.TypeMismatch) as wrong:
        net(other)
    assert str(wrong.value) == "this weft.data.Batch was collated for another network; use weft.data.collate with this one"
