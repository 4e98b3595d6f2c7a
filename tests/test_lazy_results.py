"""What comes out: structures, empty batches, batches inside batches."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.data
from lazy_parts import assert_equals_loop
from weft.lazy import chains
from weft.lazy.coarsen import Coarse
from weft.lazy.empty import MOST_KEPT

X = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def test_dictionaries_may_have_their_keys_in_any_order_and_keep_their_class() -> None:
    found = weft.batched(lambda i: {"a": i, "b": (i + 0.5, {"c": 1, "d": 2})} if i else {"b": (2.0, {"d": 4, "c": 3}), "a": 9})(
        [0, 1]
    )
    assert found["a"].tolist() == [9, 1] and found["b"][0].tolist() == [2.0, 1.5]
    assert found["b"][1]["c"].tolist() == [3, 1] and found["b"][1]["d"].tolist() == [4, 2]
    ordered = weft.batched(lambda i: OrderedDict(a=torch.tensor(i)))([0, 1])
    assert type(ordered) is OrderedDict and type(weft.value(OrderedDict(a=1))) is OrderedDict
    with pytest.raises(weft.StructureError) as error:
        weft.batched(lambda i: {"a": 1} if i else {"b": 1})([0, 1])
    assert str(error.value) == (
        "examples 0 and 1 return different structures: {b: int} and {a: int}; use weft.batched(fn, stack=False) for a list of "
        "the examples' results"
    )


def test_an_empty_batch_looks_like_the_batches_before() -> None:
    linear = nn.Linear(3, 3)

    def fn(text: str) -> Any:
        return {"h": linear(torch.ones(3, dtype=linear.weight.dtype)) * len(text), "text": text, "n": len(text), "none": None}

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, text: str) -> Any:
            return fn(text)

    net = weft.batched(Net())
    net(["a", "bb"])
    first, again = net([]), net([])
    assert first["h"].shape == (0, 3) and first["text"] == [] and first["n"].shape == (0,) and first["none"] is None
    first["text"].append("mine")
    assert again["text"] == [] and net([])["text"] == []
    first["h"].sum().backward()
    with torch.no_grad():
        assert not net([])["h"].requires_grad
    net.double()
    with pytest.raises(weft.StructureError) as error:
        net([])
    assert str(error.value) == "an empty batch: what comes out is not known before a batch with examples was run"
    net(["a"])
    assert net([])["h"].dtype is torch.float64
    assert weft.batched(Net(), stack=False)([]) == []


def test_an_empty_tensor_shows_its_rows() -> None:
    fn = weft.batched(lambda x: x.sum() + x)
    assert fn(X).shape == (4, 3) and fn(X[:, :2]).shape == (4, 2)
    assert fn(X[:0]).shape == (0, 3) and fn(X[:0, :2]).shape == (0, 2)
    with pytest.raises(weft.StructureError):
        fn(X[:0].float())


def test_empty_lists_and_empty_tensors_look_like_batches_of_either() -> None:
    def batched() -> Any:
        return weft.batched(lambda x, scale=1.0: {"h": x * scale, "n": 1})

    net = batched()
    net(X)
    assert net([])["h"].shape == net(())["h"].shape == (0, 3)
    net(list(X[:, :2]))
    assert net([])["h"].shape == (0, 2), "the last batch counts"
    assert net(X[:0])["h"].shape == (0, 3) and net(X[:0, :2])["h"].shape == (0, 2)
    net = batched()
    net(list(X), 2.0)
    assert net(X[:0], 2.0)["h"].shape == (0, 3) and net(X[:0], torch.tensor(2.0))["n"].shape == (0,)
    message = "^an empty batch: what comes out is not known before a batch with examples was run$"
    for other in (X[:0, :2], X[:0].float(), X[:0, 0]):
        with pytest.raises(weft.StructureError, match=message):
            net(other, 2.0)
    parts = weft.batched(lambda x: x["a"] + x["b"], in_dims=({"a": 0, "b": None},))
    parts({"a": X, "b": X[0]})
    assert parts({"a": [], "b": X[0]}).shape == (0, 3)


def test_an_empty_batch_of_a_loader_looks_like_the_batches_before() -> None:
    net = weft.batched(nn.Linear(3, 2).double())
    collate = weft.data.collate(net)
    net(collate(list(X))[0])
    assert net(collate([])[0]).shape == net([]).shape == net(X[:0]).shape == (0, 2)


def test_what_empty_batches_give_is_bounded() -> None:
    fn = lambda x: x * 2  # noqa: E731
    net = weft.batched(fn)
    for size in range(MOST_KEPT + 8):
        net(torch.ones(1, size))
    assert net(torch.ones(0, size)).shape == (0, size)
    with pytest.raises(weft.StructureError):
        net(torch.ones(0, 0))


def test_batches_inside_batches_return_what_batches_return() -> None:
    linear = nn.Linear(3, 3).double()
    inner = weft.batched(lambda x: (linear(x), 3, None, "text", True, 1.5))
    kinds: list[Any] = []

    def outer(rows: list[Tensor]) -> Any:
        h, whole, none, text, flag, number = inner(rows)
        kinds.append((whole.tolist(), none, text, flag.tolist(), number.tolist()))
        return h.sum() * whole.sum() * number.sum()

    rows = [[X[0], X[1]], [X[2], X[3], X[0]], []]
    assert torch.allclose(weft.batched(outer)(rows[:2]), torch.stack([outer(each) for each in rows[:2]]))
    assert kinds[0] == kinds[2] == ([3, 3], None, ["text"] * 2, [True, True], [1.5, 1.5])
    assert weft.batched(lambda rows: inner(rows)[0].sum())(rows).tolist()[2] == 0
    assert_equals_loop(lambda rows: inner(rows)[0].sum(0), rows[:2])


def test_batches_inside_batches_name_their_own_examples() -> None:
    inner = weft.batched(lambda x: x * 2)
    with pytest.raises(weft.ShapeError) as error:
        weft.batched(lambda rows: inner(rows))([[X[0], X[0, :2]]])
    assert str(error.value) == (
        "result of examples 0 and 1: float64[3] and float64[2] cannot be stacked; use weft.batched(fn, stack=False) for a list "
        "of the examples' results"
    )


def test_kept_results_are_not_changed_by_who_gets_them() -> None:
    net = weft.batched(lambda n: torch.tensor([1.0, n]), stack=False, cache=True)
    net([2.0])[0].zero_()
    assert net([2.0])[0].tolist() == [1.0, 2.0]


def test_kept_recordings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.lazy.cached.MOST_KEPT", 4)
    runs: list[int] = []

    def fn(n: int) -> Tensor:
        runs.append(n)
        return torch.ones(2) * n

    net = weft.batched(fn, cache=True)
    net([0, 1, 2, 3])
    net([0])
    net([4])  # 1 was not used for longest
    net([0, 2, 3, 4])
    assert runs == [0, 1, 2, 3, 4]
    net([1])
    assert runs[-1] == 1


def test_a_value_of_many_rows_is_taken_apart_row_by_row() -> None:
    linear = nn.Linear(1, 1).double()
    x = torch.randn(1, 4200, 1, dtype=torch.float64)

    def fn(rows: Tensor) -> Any:
        parts = list(linear(rows))
        return parts[0] + parts[4150] + parts[-1], len(parts)

    total, count = weft.batched(fn)(x)
    assert torch.allclose(total[0], fn(x[0])[0]) and count.tolist() == [4200]
    with pytest.raises(weft.TraceError) as error:
        weft.batched(lambda rows: linear(rows).unbind())(x)
    assert str(error.value) == (
        "unbind gives 4200 tensors, and a recorded call gives 4095 at most; loop over the Value, which takes one after the "
        "other, or cut it into larger pieces"
    )


def test_blocks_have_no_more_outputs_than_a_reference_can_name(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = nn.Linear(1, 1).double()

    def fn(rows: Tensor) -> Tensor:
        h = linear(rows)
        first, second = h.unbind(), (h * 2).unbind()
        return torch.stack([*first, *second])

    def widest() -> int:
        net = weft.batched(lambda rows: fn(rows))
        assert torch.allclose(net(X.unsqueeze(-1)), torch.stack([fn(rows) for rows in X.unsqueeze(-1)]))
        ops = net.state.fines
        return max(sum(len(ops[t].outs) for t in block) for block in Coarse.of(net.state, True).chains.blocks)

    assert widest() > 6
    monkeypatch.setattr(chains, "MOST_OUTS", 5)
    assert widest() <= 5


def test_the_examples_own_results_may_be_written_into() -> None:
    linear = nn.Linear(3, 3).double()
    x = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def used(results: Any) -> tuple[Any, Any]:
        for each, _ in results:
            each.mul_(2)
            each[0] = 1.0
        results[0][0].add_(results[1][1])
        total = torch.stack([each * other for each, other in results]).sum()
        return total, torch.autograd.grad(total, linear.weight)[0]

    def fn(row: Any) -> Any:
        return linear(row), torch.tanh(linear(row))

    found, wanted = used(weft.batched(fn, stack=False)(x)), used([fn(row) for row in x])
    assert all(torch.allclose(one, other) for one, other in zip(found, wanted, strict=True))
