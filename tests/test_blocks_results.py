"""What blocks give: sequences, stacks, metrics, traces, and the types of them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

import weft
import weft.blocks as wb
from block_parts import assert_batches, mix


def test_ragged_results() -> None:
    block = wb.AllOf(wb.Map(wb.Vector(2)), wb.Length())
    rows = [[[1, 2], [3, 4]], [], [[5, 6]]]
    lists, lengths = wb.compile(block)(rows)
    assert lengths.tolist() == [2, 0, 1] and [[item.tolist() for item in row] for row in lists] == rows
    (padded, mask), _ = wb.compile(block, ragged="padded")(rows)
    assert padded.shape == (3, 2, 2) and mask.tolist() == [[True, True], [False, False], [True, False]]
    assert padded[mask].tolist() == [[1, 2], [3, 4], [5, 6]] and padded[~mask].abs().sum() == 0
    jagged, _ = wb.compile(block, ragged="nested")(rows)
    assert [row.tolist() for row in jagged.unbind()] == rows
    pairs = wb.Map(wb.AllOf(wb.GetItem(0) >> wb.Scalar(), wb.Vector(2)))
    (firsts, wholes), mask = wb.compile(pairs, ragged="padded")(rows)
    assert firsts.shape == (3, 2) and wholes.shape == (3, 2, 2) and int(mask.sum()) == 3
    assert wb.compile(wb.Map(wb.Scalar()), ragged="padded")([])[0].shape == (0, 0)


def test_results_that_are_no_tensors() -> None:
    net = wb.compile(wb.AllOf(wb.GetItem(0), wb.Void(), wb.GetItem(1) >> wb.Scalar() >> wb.Broadcast()))
    names, nothing, endless = net([("a", 1), ("b", 2)])
    assert names == ["a", "b"] and nothing is None and all(isinstance(each, itertools.repeat) for each in endless)
    assert next(endless[1]) == 2
    assert wb.compile(wb.Vector(3))([]).shape == (0, 3)


def test_metrics_have_rows_in_order_labels_and_gradients() -> None:
    item = wb.Vector(2) >> nn.Linear(2, 2)
    net = wb.Map(wb.AllOf(item, wb.InputTransform(str)) >> wb.Metric("seen")) >> wb.Void()
    together = wb.compile(net)
    assert together([[[1, 2], [3, 4]], [], [[5, 6]]]) is None
    assert together.metrics["seen"].shape == (3, 2)
    assert together.metric_labels["seen"] == ["[1, 2]", "[3, 4]", "[5, 6]"] == net.metric_labels["seen"]
    together.metrics["seen"].sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    together([[]])
    assert together.metrics["seen"].shape == (0, 2)


def test_gradients_reach_tensors_in_the_data() -> None:
    x = torch.ones(2, requires_grad=True)
    wb.compile(wb.Map(wb.Vector(2)) >> wb.Sum())([[x, x], [[3, 4]]]).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2]


def test_trace_shows_every_step() -> None:
    net = wb.Record({"a": wb.Scalar() >> wb.Function(torch.neg), "b": wb.Map(wb.Scalar()) >> wb.Sum()})
    assert str(net.trace({"a": 2, "b": [1, 2]})).splitlines() == [
        "<wb.Record a b>: (float32, float32) = (tensor(-2.), tensor(3.))",
        "  <wb.Pipe> at .a: float32 = -2.0",
        "    <wb.Scalar> at .a: float32 = 2.0",
        "    <wb.Function neg> at .a: float32 = -2.0",
        "  <wb.Pipe> at .b: float32 = 3.0",
        "    <wb.Map> at .b: [float32] = [tensor(1.), tensor(2.)]",
        "      <wb.Scalar> at .b[0]: float32 = 1.0",
        "      <wb.Scalar> at .b[1]: float32 = 2.0",
        "    <wb.Sum> at .b: float32 = 3.0",
    ]
    step = (wb.Map(wb.Scalar()) >> wb.Filter(wb.Function(torch.sign)) >> wb.Sum()).trace([0, 3])[-1]
    assert step.path == "Pipe[2]/<wb.Sum>" and step.given[0] == 3 and step.value == 3


def test_autocast_keeps_the_types_between_blocks() -> None:
    net = wb.compile(wb.Map(wb.Vector(4) >> nn.Linear(4, 4)) >> wb.Sum() >> nn.Linear(4, 2))
    rows = [[[1, 2, 3, 4]] * n for n in (2, 0, 1)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = net(rows)
        one = [net.block.eval_one(row) for row in rows]
    assert got.dtype == torch.float32 == one[0].dtype
    assert torch.allclose(got, torch.stack(one), atol=0.1)
    assert torch.allclose(got, net(rows), atol=0.2)


def test_functions_of_several_stacks() -> None:
    stack = lambda: wb.Map(wb.Scalar()) >> wb.Stack()  # noqa: E731
    product = wb.AllOf(stack(), stack()) >> wb.Function(lambda a, b: a @ b)
    assert wb.compile(product)([[1, 2], [3], []]).tolist() == [5, 9, 0]
    total = wb.AllOf(stack(), stack()) >> wb.Function(torch.add)
    assert total.output_type == wb.TensorType([None])
    assert [each.tolist() for each in wb.compile(total)([[1, 2], [3]])] == [[2, 4], [6]]
    attended = wb.Record((stack(), stack(), stack())) >> wb.Function(lambda q, k, v: torch.softmax(q[:, None] * k, 1) @ v)
    queries, keys, values = [1.0, 2.0, 0.5], [0.5, -1.0], [3.0, 4.0]
    found = wb.compile(attended)([(queries, keys, values), ([], [1.0], [1.0])])
    weights = torch.softmax(torch.tensor(queries)[:, None] * torch.tensor(keys), 1)
    torch.testing.assert_close(found[0], weights @ torch.tensor(values))
    assert found[1].shape == (0,)


def test_stacks_of_different_lengths_where_equal_ones_are_needed() -> None:
    stacks = wb.Record((wb.Map(wb.Scalar()) >> wb.Stack(), wb.Map(wb.Scalar()) >> wb.Stack()))
    net = wb.compile(stacks >> wb.Function(lambda a, b: a @ b))
    with pytest.raises(RuntimeError) as caught:
        net([([1, 2], [3, 4]), ([1, 2], [3])])
    assert caught.value.__notes__ == ["while computing Pipe[1]/<wb.Function <lambda>>, in example 1"]


@pytest.mark.parametrize(("block", "best"), [(wb.Max, max), (wb.Min, min)])
def test_extremes_of_long_integers_are_exact(block: Any, best: Any) -> None:
    net = wb.Map(wb.Scalar("int64")) >> block()
    examples = [[2**60 + 1, 3], [2**60 + 1, 2**60], [-(2**60) - 1, -(2**60)], [-1, 0, 1], [2**63 - 1, -(2**63)], [7, 7, 7]]
    expected = [best(example) for example in examples]
    assert [net.eval_one(example).item() for example in examples] == expected
    assert wb.compile(net)(examples).tolist() == expected


def test_metrics_of_a_failed_call_are_gone() -> None:
    net = wb.AllOf(wb.Scalar(), wb.Identity()) >> wb.Metric("m")
    net.eval_one(1)
    assert net.metric_labels == {"m": [1]}
    with pytest.raises(weft.TypeMismatch):
        net.eval_one("x")
    assert net.metrics == {} and net.metric_labels == {}


@pytest.mark.parametrize("ragged", ["padded", "nested"])
def test_stacks_come_back_padded_or_nested(ragged: str) -> None:
    net = wb.compile(wb.Map(wb.Vector(2)) >> wb.Stack(), ragged=ragged)
    found, empty = net([[[1, 2], [3, 4]], [], [[5, 6]]]), net([])
    if ragged == "padded":
        assert found[0].tolist() == [[[1, 2], [3, 4]], [[0, 0], [0, 0]], [[5, 6], [0, 0]]]
        assert found[1].tolist() == [[True, True], [False, False], [True, False]]
        assert empty[0].shape == (0, 0, 2) and empty[1].shape == (0, 0)
    else:
        assert [row.tolist() for row in found.unbind()] == [[[1, 2], [3, 4]], [], [[5, 6]]]
        assert empty.size(0) == 0
    with pytest.raises(weft.TypeMismatch, match=rf"ragged='{ragged}': expected sequences of tensors"):
        wb.compile(wb.Map(wb.Map(wb.Scalar()) >> wb.Stack()), ragged=ragged)


def test_reductions_count_as_pair_by_pair() -> None:
    depths = {
        block: [(wb.Map(wb.Scalar()) >> block()).max_depth([1] * n) for n in (0, 1, 2, 3, 4, 5, 8, 9)]
        for block in (wb.Sum, wb.Max, wb.Min, wb.Mean)
    }
    pairwise = [(wb.Map(wb.Scalar()) >> wb.Reduce(wb.Function(mix))).max_depth([1] * n) for n in (0, 1, 2, 3, 4, 5, 8, 9)]
    assert pairwise == [0, 0, 1, 2, 2, 3, 3, 4] == depths[wb.Sum] == depths[wb.Max] == depths[wb.Min]
    assert depths[wb.Mean] == [1 + depth for depth in pairwise]


def test_types_from_tuples_of_one() -> None:
    assert wb.convert_to_type(([],)) == wb.TupleType(wb.TensorType([]))
    assert wb.convert_to_type(([2, 3],)) == wb.TupleType(wb.TensorType([2, 3]))
    assert wb.convert_to_type(((2, 3),)) == wb.TupleType(wb.TupleType(2, 3))


def test_numbers_side_by_side_are_fed_as_one_row() -> None:
    wide = wb.Record([(n, wb.Scalar()) for n in range(40)]) >> wb.Concat()
    program = wb.compile(wide).program(list(range(40)))
    assert [rows.shape for rows in program.calls.data.values()] == [(1, 40)]
    mixed = wb.Record((wb.Scalar("int64"), wb.Scalar("int64"), wb.OneHot(2, dtype="int64"), wb.Length("int64"))) >> wb.Concat(
        -1
    )
    assert_batches(mixed, [(2**53 + 1, 3, 1, "ab"), ("4", True, 0, "")])
    assert mixed.eval_one((2**53 + 1, 3, 1, "ab")).tolist() == [2**53 + 1, 3, 0, 1, 2]
    x = torch.tensor(2.0, requires_grad=True)
    wb.compile(wb.Record((wb.Scalar(), wb.Scalar())) >> wb.Concat())([(x, 1), (3, x), (5, 6)]).sum().backward()
    assert x.grad is not None and x.grad.item() == 2


def test_a_query_may_be_a_sequence_of_the_same_type() -> None:
    score = wb.Record((wb.Sum(), wb.Identity())) >> wb.Function(torch.dot)
    net = wb.Record((wb.Map(wb.Vector(2)), wb.Map(wb.Vector(2)))) >> wb.Attend(score)
    assert net.eval_one(([[0, 0]], [[1, 3], [3, 1]])).tolist() == [2, 2]
