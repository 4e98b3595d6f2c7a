"""What blocks say when something is wrong: the block's path, what was expected, what came, the example and the place in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import weft
import weft.blocks as wb


def calculator() -> wb.Block:
    expression = wb.ForwardDeclaration(wb.PyObjectType(), wb.TensorType([]))
    pair = wb.Record([("left", expression()), ("right", expression())])
    cases = {"num": wb.GetItem("value") >> wb.Scalar(), "+": pair >> wb.Function(torch.add)}
    expression.resolve_to(wb.OneOf(wb.GetItem("op"), cases))
    return expression()


def nth() -> wb.Block:
    return wb.Record((wb.Map(wb.Scalar()), wb.Identity())) >> wb.Nth()


class NoText:
    def __repr__(self) -> str:
        raise ValueError("no text")


NUMBER, WORD = {"op": "num", "value": 1}, {"op": "num", "value": "x"}


RUN: list[tuple[Callable[[], wb.Block], Any, type[Exception], str]] = [
    (calculator, {"op": "+", "left": {"op": "+", "left": NUMBER, "right": WORD}, "right": NUMBER}, weft.TypeMismatch,
     "OneOf[num]/Pipe[1]/<wb.Scalar>: expected something that converts to TensorType([], 'float32'), got str 'x', "
     "in example 1 at .left.right.value"),
    (calculator, {"op": "+", "left": NUMBER}, weft.MissingKey,
     "OneOf[+]/Pipe[0]/<wb.Record left right>: expected the key 'right', found 'op', 'left', in example 1"),
    (calculator, {"op": "+", "left": NUMBER, "right": {"op": "^"}}, weft.MissingKey,
     "<wb.OneOf num +>: expected a key of a case ('num', '+'), got str '^', in example 1 at .right"),
    (calculator, {"op": "+", "left": 3, "right": NUMBER}, weft.TypeMismatch,
     "OneOf[key_fn]/<wb.GetItem 'op'>: expected something with an item 'op', got int 3, in example 1 at .left"),
    (lambda: wb.Map(wb.Record({"tags": wb.Map(wb.OneHotFromList(["a", "b"]))})), [{"tags": []}, {"tags": ["a", "c"]}],
     weft.MissingKey, "Map[0]/Record[tags]/Map[0]/<wb.OneHotFromList ['a', 'b']>: expected one of 'a', 'b', got str 'c', "
     "in example 1 at [1].tags[1]"),
    (lambda: wb.Map(wb.Vector(2)), [[1, 2], [1, 2, 3]], weft.ShapeError,
     "Map[0]/<wb.Vector 2>: expected TensorType([2], 'float32'), got the shape [3], in example 1 at [1]"),
    (lambda: wb.GetItem("odd key") >> wb.Map(wb.Scalar()), {"odd key": 7}, weft.TypeMismatch,
     "Pipe[1]/<wb.Map>: expected something to loop over, got int 7, in example 1 at ['odd key']"),
    (lambda: wb.Map(wb.Scalar()) >> wb.GetItem(2), [1], IndexError,
     "Pipe[1]/<wb.GetItem 2>: expected an item 2, found 1 items, in example 1"),
    (lambda: wb.Map(wb.Scalar()) >> wb.Pad(2), [1, 2, 3], weft.ShapeError,
     "Pipe[1]/<wb.Pad 2>: expected at most 2 items, got 3, in example 1"),
    (lambda: wb.Map(wb.Scalar("uint8")), [1, 300], weft.TypeMismatch,
     "Map[0]/<wb.Scalar 'uint8'>: expected integers from 0 to 255, got 300, in example 1 at [1]"),
    (lambda: wb.Map(wb.Scalar("int64")), ["5", -(2**63) - 1], weft.TypeMismatch,
     "Map[0]/<wb.Scalar 'int64'>: expected integers from -9223372036854775808 to 9223372036854775807, "
     "got -9223372036854775809, in example 1 at [1]"),
    (lambda: wb.Map(wb.Vector(2, "int8")), [np.array([1, 200])], weft.TypeMismatch,
     "Map[0]/<wb.Vector 2 'int8'>: expected integers from -128 to 127, got 200, in example 1 at [0]"),
    (lambda: wb.Map(wb.Scalar("int32")), [torch.tensor(2.0**40)], weft.TypeMismatch,
     "Map[0]/<wb.Scalar 'int32'>: expected integers from -2147483648 to 2147483647, got 1099511627776.0, in example 1 at [0]"),
    (nth, ([1, 2], slice(0, 1)), weft.TypeMismatch,
     "Pipe[1]/<wb.Nth>: expected an integer as the number of an item, got slice slice(0, 1, None), in example 1 at [1]"),
    (nth, ([1, 2], "a"), weft.TypeMismatch,
     "Pipe[1]/<wb.Nth>: expected an integer as the number of an item, got str 'a', in example 1 at [1]"),
    (nth, ([1, 2], 2), IndexError, "Pipe[1]/<wb.Nth>: expected an item 2, found 2 items, in example 1 at [1]"),
    (lambda: wb.Map(wb.OneOf(lambda x: x, (wb.Scalar(), wb.Scalar()))), torch.tensor([1, 2]), weft.MissingKey,
     "Map[0]/<wb.OneOf <lambda>>: expected a key of a case (0, 1), got Tensor tensor(2), in example 1 at [1]"),
    (lambda: wb.Map(wb.Nth()), [([1, 2], 0), 3], weft.TypeMismatch,
     "Map[0]/<wb.Nth>: expected a pair of a sequence and the number of an item, got int 3, in example 1 at [1]"),
    (lambda: wb.Map(wb.Zip()), [[1, 2]], weft.TypeMismatch,
     "Map[0]/<wb.Zip>: expected something to loop over, got int 1, in example 1 at [0]"),
    (wb.Scalar, NoText(), weft.TypeMismatch,
     "<wb.Scalar>: expected something that converts to TensorType([], 'float32'), got NoText <NoText>, in example 1"),
    (lambda: wb.GetItem("a") >> wb.Scalar(), {NoText(): 1}, weft.MissingKey,
     "Pipe[0]/<wb.GetItem 'a'>: expected the key 'a', found <NoText>, in example 1"),
    (lambda: wb.Vector(2), [torch.ones((), requires_grad=True)] * 2, weft.TypeMismatch,
     "<wb.Vector 2>: expected something that converts to TensorType([2], 'float32'), "
     "got list [tensor(1., requires_grad=True), tensor(1., requires_grad...; "
     "join tensors that need gradients with torch.stack, in example 1"),
]  # fmt: skip


GOOD = [
    *[NUMBER] * 4,
    *([], [], {"odd key": []}, [1, 2, 3], []),
    *([255, 0], [2**63 - 1, -(2**63)], [[-128, 127]], [torch.tensor(-(2**31))]),
    *[([1, 2], -1)] * 3,
    torch.tensor([1, 0, -1]),
    *([([1, 2], 1)], [[[1], [2]]], 1, {"a": 1}, [1, 2]),
]


@pytest.mark.parametrize("number", range(len(RUN)))
def test_errors_at_run_time_name_the_example_and_the_place(number: int) -> None:
    make, bad, kind, text = RUN[number]
    net = wb.compile(make(), backend="reference")
    with pytest.raises(kind) as caught:
        net([GOOD[number], bad])
    assert str(caught.value) == text
    net([GOOD[number]])


def test_errors_of_the_users_own_code_keep_their_type() -> None:
    def broken(x: Any) -> Any:
        raise ZeroDivisionError("mine")

    net = wb.compile(wb.Record({"a": wb.Map(wb.InputTransform(broken) >> wb.Scalar())}))
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        net([{"a": []}, {"a": [1]}])
    assert caught.value.__notes__ == ["Record[a]/Map[0]/Pipe[0]/<wb.InputTransform broken>: in example 1 at .a[0]"]


class OnDisk:
    """Data that cannot be read."""

    def __iter__(self) -> Any:
        raise OSError("gone")

    def __getitem__(self, key: Any) -> Any:
        raise OSError("gone")

    def __len__(self) -> int:
        raise OSError("gone")


@pytest.mark.parametrize("block", [wb.Map(wb.Scalar()), wb.GetItem("a"), wb.Record({"a": wb.Scalar()}), wb.Length()])
def test_errors_of_the_data_keep_their_type(block: wb.Block) -> None:
    with pytest.raises(OSError, match="gone") as caught:
        block.eval_one(OnDisk())
    assert caught.value.__notes__ == [f"{block!r}: in example 0"]


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_errors_while_computing_name_the_block_and_the_example(backend: str) -> None:
    net = wb.compile(wb.Scalar("int64") >> wb.Embedding(3, 2, mod_inputs=False), backend=backend)
    note = "while computing Pipe[1]/<wb.Function Embedding(3, 2)>, in example 2"
    with pytest.raises(IndexError) as caught:
        net([1, 0, 5])
    assert caught.value.__notes__ == [note]
    with pytest.raises(IndexError) as caught:
        net([net.program(1), net.merge([net.program(0), net.program(5)])])
    assert caught.value.__notes__ == [note]
    assert net([2]).shape == (1, 2)


def test_errors_while_computing_between_looks_at_values_name_the_example() -> None:
    keep = wb.Filter(wb.Scalar() >> wb.Function(lambda x: x > 1))
    net = wb.compile(keep >> wb.Map(wb.Scalar("int64") >> wb.Embedding(3, 2, mod_inputs=False)))
    with pytest.raises(IndexError) as caught:
        net([[1, 2], [0], [2, 5]])
    assert caught.value.__notes__ == ["while computing Pipe[1]/Map[0]/Pipe[1]/<wb.Function Embedding(3, 2)>, in example 2"]
    assert [len(found) for found in net([[1, 2], [0]])] == [1, 0]


def nested(inner: Any, depth: int) -> Any:
    for _ in range(depth):
        inner = [inner]
    return inner


DEEP_VALUE: list[tuple[wb.Block, type[Exception], str]] = [
    (wb.Scalar(), weft.TypeMismatch, "<wb.Scalar>: expected something that converts to TensorType([], 'float32'), got list "),
    (wb.OneHot(3), weft.MissingKey, "<wb.OneHot 3>: expected one of 0, 1, 2, got list "),
    (wb.GetItem("a"), weft.TypeMismatch, "<wb.GetItem 'a'>: expected something with an item 'a', got list "),
    (wb.OneOf(lambda x: x, (wb.Scalar(),)), weft.MissingKey,
     "<wb.OneOf <lambda>>: expected a key of a case (0), got list "),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(DEEP_VALUE)))
def test_wrong_values_may_be_nested_deep(number: int) -> None:
    block, kind, text = DEEP_VALUE[number]
    with pytest.raises(kind) as caught:
        block.eval_one(nested(1, 100_000))
    assert str(caught.value) == f"{text}{'[' * 57}..., in example 0"


def deep_sum() -> wb.Block:
    deep = wb.ForwardDeclaration(wb.PyObjectType(), wb.TensorType([]))
    deep.resolve_to(wb.OneOf(lambda x: isinstance(x, list), (wb.Scalar(), wb.Map(deep()) >> wb.Sum())))
    return deep()


def test_the_place_of_an_error_may_be_deep() -> None:
    with pytest.raises(weft.TypeMismatch) as caught:
        deep_sum().eval_one(nested("q", 20_000))
    assert str(caught.value) == (
        "OneOf[0]/<wb.Scalar>: expected something that converts to TensorType([], 'float32'), got str 'q', "
        f"in example 0 at ...{'[0]' * 10}"
    )


def test_the_trace_of_a_deep_example_is_short() -> None:
    trace = deep_sum().trace(nested(1, 1000))
    leaf = next(step for step in trace.steps if isinstance(step.block, wb.Scalar))
    assert leaf.place == "[0]" * 1000 and leaf.value.item() == 1
    assert len(str(trace)) < 250 * len(trace)
    assert "[[[..." in str(wb.InputTransform(lambda x: x).trace(nested(1, 100_000)))


def test_a_type_that_nothing_determines() -> None:
    with pytest.raises(weft.TypeMismatch) as caught:
        (wb.Map(wb.Scalar()) >> wb.RNN(wb.Function(lambda x, state: (x, state)))).eval_one([])
    assert str(caught.value) == "Cannot determine output type for Pipe[1]/<wb.RNN>; say it with set_output_type"


TYPED: list[tuple[Any, Any, type[Exception], str]] = [
    ((2, 2), ([1, 2],), weft.TypeMismatch, "<wb.Identity>: expected a tuple of 2, got tuple ([1, 2],), in example 1"),
    ((2, 2), ([1, 2], [3, 4], [5, 6]), weft.TypeMismatch,
     "<wb.Identity>: expected a tuple of 2, got tuple ([1, 2], [3, 4], [5, 6]), in example 1"),
    ((2, (2, [])), ([1, 2], ([3], 4)), weft.ShapeError,
     "<wb.Identity>: expected TensorType([2], 'float32'), got the shape [1], in example 1 at [1][0]"),
    (wb.SequenceType([]), [1, "x"], weft.TypeMismatch,
     "<wb.Identity>: expected something that converts to TensorType([], 'float32'), got str 'x', in example 1 at [1]"),
    (wb.SequenceType([]), 5, weft.TypeMismatch, "<wb.Identity>: expected something to loop over, got int 5, in example 1"),
    ("int8", np.int64(300), weft.TypeMismatch,
     "<wb.Identity>: expected integers from -128 to 127, got 300, in example 1"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(TYPED)))
def test_examples_of_a_type(number: int) -> None:
    type, bad, kind, text = TYPED[number]
    net = wb.compile(wb.Identity().set_input_type(type))
    good = [([1, 2], [3, 4]), ([1, 2], [3, 4]), ([1, 2], ([3, 4], 5)), [1], [], 3][number]
    with pytest.raises(kind) as caught:
        net([good, bad])
    assert str(caught.value) == text
    net([good])


def test_a_root_whose_type_nothing_determines() -> None:
    with pytest.raises(weft.TypeMismatch) as caught:
        wb.compile(nn.Tanh())
    assert str(caught.value) == "Cannot determine input type for <wb.Function Tanh()>; say it with set_input_type"
    assert wb.compile(wb.convert_to_block(nn.Tanh()).set_input_type([2]))([[0, 0]]).tolist() == [[0, 0]]


def test_values_that_no_list_knows() -> None:
    assert wb.OneHotFromList(["a"], strict=False).eval_one([1]).tolist() == [0]
    assert wb.compile(wb.OneHot(3))(torch.tensor([0, 2])).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert wb.convert_to_type(np.int64(3)) == wb.TensorType([3])
    assert wb.compile(wb.OneOf(lambda x: x, {0: wb.Scalar(), 1: wb.Length()}))(torch.tensor([0, 0])).tolist() == [0, 0]


def test_a_declaration_that_was_never_resolved() -> None:
    deep = wb.ForwardDeclaration(wb.PyObjectType(), wb.TensorType([]))
    with pytest.raises(weft.StructureError) as caught:
        (wb.Map(deep()) >> wb.Sum()).eval_one([])
    assert isinstance(caught.value, TypeError)
    assert str(caught.value) == "Pipe[0]/Map[0]/<wb.ForwardDeclaration()>: the declaration was never resolved; call resolve_to"
    with pytest.raises(TypeError, match="the declaration was never resolved; call resolve_to"):
        wb.compile(wb.Map(wb.ForwardDeclaration()()))


def test_metrics_of_one_name_have_one_type() -> None:
    net = wb.AllOf(wb.Scalar() >> wb.Metric("m"), wb.InputTransform(abs) >> wb.Scalar("int64") >> wb.Metric("m"))
    with pytest.raises(weft.TypeMismatch) as caught:
        net.eval_one(1)
    assert str(caught.value) == (
        "AllOf[1]/Pipe[2]/<wb.Metric 'm'>: Metric m has incompatible types: "
        "TensorType([], 'float32') and TensorType([], 'int64')"
    )


def test_metrics_of_one_name_have_labels_everywhere_or_nowhere() -> None:
    with pytest.raises(weft.TypeMismatch) as caught:
        wb.compile(wb.AllOf(wb.Scalar() >> wb.Metric("m"), wb.AllOf(wb.Scalar(), wb.Identity()) >> wb.Metric("m")))
    assert str(caught.value) == "AllOf[1]/Pipe[1]/<wb.Metric 'm'>: Metric m has incompatible types: with a label and without"


def test_data_that_contains_itself() -> None:
    example: list[Any] = [1, [2]]
    example[1].append(example)
    net = wb.compile(deep_sum())
    with pytest.raises(weft.StructureError) as caught:
        net([[1], example])
    assert str(caught.value) == "<wb.OneOf <lambda>>: expected data that ends, got a list that contains itself, in example 1"
    assert net([[1]]).tolist() == [1]


def test_an_error_that_does_not_come_again() -> None:
    with pytest.raises(ValueError, match="could not convert string to float: 'x'") as caught:
        wb.compile(wb.Map(wb.Scalar()))([[1], iter([1, "x"])])
    assert caught.value.__notes__ == ["in example 1; recording it once more went well, so it is not known where"]


def test_options_and_inputs_of_a_compiled_block() -> None:
    with pytest.raises(weft.TypeMismatch, match="unknown option 'speed'"):
        wb.compile(wb.Scalar(), speed=3)
    with pytest.raises(weft.TypeMismatch, match=r"ragged: expected one of 'list', 'padded', 'nested', got 'no'"):
        wb.compile(wb.Scalar(), ragged="no")
    with pytest.raises(weft.TypeMismatch, match="ragged='padded': expected sequences of tensors"):
        wb.compile(wb.Map(wb.Map(wb.Scalar())), ragged="padded")
    with pytest.raises(weft.TypeMismatch, match="expected a list or tuple of examples, a tensor or a Batch, got dict"):
        wb.compile(wb.Scalar())({})
    with pytest.raises(weft.TypeMismatch) as caught:
        wb.compile(wb.Scalar())(torch.tensor(1.0))
    assert str(caught.value) == (
        "<wb.Scalar>: expected a list or tuple of examples, a tensor or a Batch, got a tensor without dimensions"
    )


def test_parameters_on_two_devices() -> None:
    net = wb.Vector(3) >> nn.Linear(3, 3) >> nn.Linear(3, 3)
    net.subblocks[2].to("meta")
    with pytest.raises(weft.TypeMismatch) as caught:
        net.eval_one([1, 2, 3])
    assert "all parameters must be on one device" in str(caught.value)
    assert "is on cpu" in str(caught.value) and "is on meta" in str(caught.value)
