"""Blocks given what is rare: numbers that are not finite, keys and numbers of other classes, data without end."""

from __future__ import annotations

import enum
import math
from typing import Any

import numpy as np
import pytest
import torch

import weft
import weft.blocks as wb
from weft.blocks import building


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, -0.0, np.float64(1.5), np.float32(math.nan), np.int64(-3), np.bool_(True), 10**30]
)
def test_a_sequence_is_filled_up_with_any_number(value: Any) -> None:
    net = wb.Map(wb.Vector(2)) >> wb.Pad(np.int64(3), value) >> wb.Concat()
    expected = torch.tensor([1.0, 2.0, *[float(value)] * 4])
    for found in (net.eval_one([[1, 2]]), wb.compile(net)([[[1, 2]]])[0]):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        assert found.signbit().tolist() == expected.signbit().tolist()


def test_a_sequence_of_integers_is_filled_up_with_integers() -> None:
    net = wb.Map(wb.AllOf(wb.Scalar("int64"), wb.Scalar("bool"), wb.Scalar())) >> wb.Pad(2, 1.0) >> wb.GetItem(1)
    assert net.eval_one([], tolist=True) == (1, True, 1.0)


@pytest.mark.parametrize(
    ("dtype", "value", "shown"),
    [
        ("int64", math.nan, "nan"),
        ("int64", -math.inf, "-inf"),
        ("int64", 0.5, "0.5"),
        ("float32", 10**400, f"1{'0' * 56}..."),
    ],
)
def test_a_number_that_the_items_cannot_hold(dtype: str, value: float, shown: str) -> None:
    with pytest.raises(weft.TypeMismatch) as caught:
        wb.Map(wb.Scalar(dtype)) >> wb.Pad(2, value)
    text = f"value: expected a number of the type of the items, TensorType([], {dtype!r}), got {shown}"
    assert str(caught.value) == f"Pipe[1]/<wb.Pad 2 {shown}>: {text}"


class Field(enum.StrEnum):
    A = "a"


class Place(enum.IntEnum):
    A = 1


class Misleading(int):
    def __repr__(self) -> str:
        return "no(code"


@pytest.mark.parametrize(
    ("key", "shown", "place", "name"),
    [
        (Field.A, str(Field.A), ".a", "a"),
        (np.str_("a"), "a", ".a", "a"),
        (Place.A, str(Place.A), f"[{Place.A!r}]", "0"),
        (Misleading(1), "no(code", "[no(code]", "0"),
    ],
)
def test_keys_may_be_strings_and_numbers_of_other_classes(key: Any, shown: str, place: str, name: str) -> None:
    net = wb.Record([(key, wb.Map(wb.Scalar()))])
    assert [step.place for step in net.trace({key: [1, 2]})] == ["", place, f"{place}[0]", f"{place}[1]"]
    with pytest.raises(weft.TypeMismatch) as caught:
        wb.compile(net)([{key: [1]}, {key: [1, "x"]}])
    assert str(caught.value) == (
        f"Record[{shown}]/Map[0]/<wb.Scalar>: expected something that converts to TensorType([], 'float32'), got str 'x', "
        f"in example 1 at {place}[1]"
    )
    trained = wb.Record([(key, wb.Vector(2) >> torch.nn.Linear(2, 1))])
    assert [each.split(".")[0] for each in trained.state_dict()] == [name, name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.bool])
def test_a_tensor_of_the_model_comes_out_as_it_is(dtype: torch.dtype) -> None:
    tensor = torch.tensor([0.0, -0.0, 1.0, math.inf if dtype.is_floating_point else 2.0]).to(dtype)
    block = wb.FromTensor(tensor)
    for found in (block.eval_one(None), wb.compile(wb.AllOf(wb.Length(), block))(["a", "b"])[1][1]):
        assert found.dtype == dtype
        assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize("make", [torch.Tensor.clone, torch.nn.Parameter])
def test_one_of_two_blocks_around_a_tensor_may_get_another(make: Any) -> None:
    shared = make(torch.ones(2))
    one, other = wb.FromTensor(shared), wb.FromTensor(shared)
    net = wb.AllOf(one, other)
    compiled = wb.compile(net)
    assert [each.tolist() for each in net(None)] == [[1, 1], [1, 1]]
    assert [each.tolist() for each in compiled([None])] == [[[1, 1]], [[1, 1]]]
    for new in (torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.full((2,), 3.0))):
        other.tensor = new
        assert [each.tolist() for each in net(None)] == [[1, 1], new.tolist()]
        assert [each.tolist() for each in compiled([None])] == [[[1, 1]], [new.tolist()]]
    compiled([None])[1].sum().backward()
    assert new.grad is not None and shared.grad is None


def test_a_tensor_is_replaced_by_one_of_its_type() -> None:
    block = wb.FromTensor(torch.ones(2), name="start")
    for other, shown in (
        (torch.ones(3), "TensorType([3], 'float32')"),
        (torch.ones(2).long(), "TensorType([2], 'int64')"),
        (3, "3"),
    ):
        with pytest.raises(weft.TypeMismatch) as caught:
            block.tensor = other
        text = f"<wb.FromTensor 'start' tensor([1., 1.])>: tensor: expected TensorType([2], 'float32'), got {shown}"
        assert str(caught.value) == text
    assert block.eval_one(None).tolist() == [1, 1]


@pytest.mark.parametrize("make", [torch.Tensor.clone, torch.nn.Parameter])
def test_loading_by_assignment_keeps_what_is_one_tensor_one(make: Any) -> None:
    shared, tied = make(torch.ones(2)), torch.nn.Linear(2, 2)
    tied.weight = torch.nn.Linear(2, 2).weight
    other = torch.nn.Linear(2, 2)
    other.weight = tied.weight
    net = wb.AllOf(wb.FromTensor(shared), wb.FromTensor(shared), wb.Vector(2) >> tied, wb.Vector(2) >> other)
    state = {key: tensor + 1 for key, tensor in net.state_dict().items()}
    assert list(state) == ["0.tensor", "2.1.fn.weight", "2.1.fn.bias", "3.1.fn.bias"]
    for model in (net, torch.nn.Sequential(net)):
        start = "" if model is net else "0."
        model.load_state_dict({start + key: tensor + 1 for key, tensor in state.items()}, assign=True)
        assert list(model.state_dict()) == [start + key for key in state]
        one, two = net.subblocks[:2]
        assert one.tensor is two.tensor and type(one.tensor) is type(shared) and tied.weight is other.weight
        assert [each.tolist() for each in net([0.0, 0.0])[:2]] == [[3, 3], [3, 3]]
        with pytest.raises(RuntimeError, match='Missing key.* "0.0.tensor"' if start else 'Missing key.* "0.tensor"'):
            model.load_state_dict({}, assign=True)


@pytest.mark.parametrize(
    "value", [True, False, np.bool_(True), 0, 3, 0.0, -2.5, np.float32(0), np.array(True), torch.tensor(False)]
)
def test_truth_is_that_of_numbers(value: Any) -> None:
    assert wb.Scalar("bool").eval_one(value).tolist() is bool(value)


NO_SCALARS: list[tuple[str, Any, type[Exception], str]] = [
    ("bool", None, weft.TypeMismatch, "no number, NoneType None"),
    ("bool", "False", weft.TypeMismatch, "no number, str 'False'"),
    ("bool", {"a": 1}, weft.TypeMismatch, "no number, dict {'a': 1}"),
    ("bool", [0], weft.ShapeError, "no number, list [0]"),
    ("bool", [], weft.ShapeError, "no number, list []"),
    ("float32", [3], weft.ShapeError, "no number, list [3]"),
    ("float32", [3], weft.TypeMismatch, "no number, list [3]"),
    ("int64", ((1, 2), (3, 4)), weft.ShapeError, "no number, tuple ((1, 2), (3, 4))"),
    ("float32", np.ones(1), weft.ShapeError, "expected a scalar, got the shape [1]"),
    ("complex64", None, weft.TypeMismatch, "no number, NoneType None"),
]


@pytest.mark.parametrize(("dtype", "value", "kind", "text"), NO_SCALARS)
def test_what_is_no_scalar(dtype: str, value: Any, kind: type[Exception], text: str) -> None:
    block = wb.Scalar(dtype)
    for run in (lambda: block.eval_one(value), lambda: wb.compile(block)([value])):
        with pytest.raises(kind) as caught:
            run()
        wanted = f"expected something that converts to TensorType([], {dtype!r}), got"
        assert str(caught.value) == f"<wb.Scalar {dtype!r}>: {text.replace('no number,', wanted)}, in example 0"


class Node:
    def __init__(self) -> None:
        self.next = self


@pytest.mark.parametrize(
    ("follow", "example", "shown"), [(lambda x: x, 3, "int"), (lambda x: x.next, Node(), "Node"), (lambda x: -x, 5, "int")]
)
def test_objects_that_lead_back_to_themselves(follow: Any, example: Any, shown: str) -> None:
    again = wb.ForwardDeclaration(wb.PyObjectType(), wb.TensorType([]))
    again.resolve_to(wb.InputTransform(follow) >> again())
    with pytest.raises(weft.StructureError) as caught:
        wb.compile(again())([example])
    assert str(caught.value) == f"<wb.Pipe>: expected data that ends, got the same {shown} again, in example 0"


def test_an_iterator_may_be_followed_for_as_long_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "WATCHED", 8)
    count = wb.ForwardDeclaration(wb.PyObjectType(), wb.TensorType([]))
    more = wb.InputTransform(lambda items: items) >> count() >> wb.Function(lambda x: x + 1)
    count.resolve_to(wb.OneOf(lambda items: next(items, None) is None, (more, wb.InputTransform(lambda x: 0) >> wb.Scalar())))
    assert count().eval_one(iter(range(100))).item() == 100


def test_stop_iteration_of_the_users_code_keeps_its_type() -> None:
    net = wb.compile(wb.Map(wb.InputTransform(lambda items: next(each for each in items if each > 9)) >> wb.Scalar()))
    with pytest.raises(StopIteration) as caught:
        net([[[10]], [[10], [1]]])
    assert caught.value.__notes__ == ["Map[0]/Pipe[0]/<wb.InputTransform <lambda>>: in example 1 at [1]"]


def test_what_a_generator_of_the_users_makes_of_it_stays() -> None:
    def items(x: Any) -> Any:
        yield next(iter(x))

    with pytest.raises(RuntimeError, match="generator raised StopIteration"):
        wb.InputTransform(lambda x: list(items(x))).eval_one([])
