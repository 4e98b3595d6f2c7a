"""What blocks say when they do not fit together: the block's path, what was expected and what came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import weft
import weft.blocks as wb
from block_parts import mix

T = wb.TensorType


FLOAT, VECTOR = "TensorType([], 'float32')", "TensorType([2], 'float32')"


def function_of(type: Any) -> wb.Block:
    return wb.Function(torch.neg).set_input_type(type)


CONSTRUCTION: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: wb.Scalar() >> wb.GetItem("a"), weft.TypeMismatch,
     f"Type mismatch between input type {FLOAT} and expected input type PyObjectType() in Pipe[1]/<wb.GetItem 'a'>"),
    (lambda: wb.Record({"x": wb.Map(wb.Scalar() >> wb.Map(wb.Scalar()))}), weft.TypeMismatch,
     f"Type mismatch between input type {FLOAT} and expected input type PyObjectType() in Pipe[1]/<wb.Map>"),
    (lambda: wb.Scalar() >> wb.Function(lambda x: 3), weft.TypeMismatch,
     "Pipe[1]/<wb.Function <lambda>>: expected the function to return a tensor or a tuple of tensors, got int"),
    (lambda: wb.InputTransform(len) >> wb.Function(torch.neg), weft.TypeMismatch,
     "bad input type PyObjectType() for Pipe[1]/<wb.Function neg>, expected TensorType or TupleType"),
    (lambda: wb.AllOf(wb.Scalar(), wb.Vector(2, "int64")) >> wb.Concat(), weft.TypeMismatch,
     "Pipe[1]/<wb.Concat>: input type: expected one dtype, got TupleType(TensorType([], 'float32'), TensorType([2], 'int64'))"),
    (lambda: wb.OneOf(len, {1: wb.Scalar(), 2: wb.Vector(2)}), weft.TypeMismatch,
     f"Type mismatch between output type {VECTOR} and expected output type {FLOAT} in OneOf[2]/<wb.Vector 2>"),
    (lambda: wb.OneOf(len, {}), ValueError, "OneOf: expected at least one case"),
    (lambda: wb.OneOf(3, {1: wb.Scalar()}), weft.TypeMismatch, "OneOf: key_fn: expected something callable, got 3"),
    (lambda: wb.Map(42), weft.TypeMismatch, "expected a block, module, tensor, dict, list or tuple, got 42"),
    (lambda: wb.Map(abs), weft.TypeMismatch,
     "expected a block, module, tensor, dict, list or tuple, got <built-in function abs>; wrap it: Function(fn)"),
    (lambda: wb.Scalar() >> abs, weft.TypeMismatch,
     "expected a block, module, tensor, dict, list or tuple, got <built-in function abs>; wrap it: Function(fn)"),
    (lambda: abs >> wb.Scalar(), weft.TypeMismatch,
     "expected a block, module, tensor, dict, list or tuple, got <built-in function abs>; wrap it: Function(fn)"),
    (lambda: wb.Map(wb.Scalar), weft.TypeMismatch,
     "expected a block, module, tensor, dict, list or tuple, got <class 'weft.blocks.constants.Scalar'>; "
     "make one: Scalar(...)"),
    (lambda: wb.Map(wb.ForwardDeclaration(name="tree")), weft.TypeMismatch,
     "expected a block, module, tensor, dict, list or tuple, got ForwardDeclaration 'tree'; "
     "call it for a block that stands for it: declaration()"),
    (lambda: wb.Function(nn.Linear), weft.TypeMismatch,
     "Function: fn: expected a function or a module, got a class; make one: Linear(...)"),
    (lambda: wb.Scalar(name=3), weft.TypeMismatch, "Scalar: name: expected a string, got 3"),
    (lambda: wb.Metric(3), weft.TypeMismatch, "Metric: metric_name: expected a string, got 3"),
    (lambda: wb.FromTensor(42), weft.TypeMismatch, "FromTensor: 42 is not a tensor or an array"),
    (lambda: wb.InputTransform(3), weft.TypeMismatch, "InputTransform: py_fn: expected something callable, got 3"),
    (lambda: wb.OneHot(3, 3), IndexError, "OneHot: expected a range that is not empty, got [3, 3)"),
    (lambda: wb.OneHotFromList("aba"), ValueError, "OneHotFromList: expected different elements, got 'a' twice"),
    (lambda: wb.NGrams(0), ValueError, "NGrams: n: expected at least 1, got 0"),
    (lambda: wb.Slice(1), weft.TypeMismatch, "Slice: say start=, stop= and step= by name"),
    (lambda: wb.Zeros(wb.PyObjectType()), weft.TypeMismatch, "<wb.Zeros>: there are no zeros of PyObjectType()"),
    (lambda: wb.Map(wb.Scalar()) >> wb.Broadcast() >> wb.Length(), weft.TypeMismatch,
     "Pipe[2]/<wb.Length>: an endless sequence has no length, got "
     "BroadcastSequenceType(SequenceType(TensorType([], 'float32')))"),
    (lambda: wb.Scalar() >> wb.Broadcast() >> wb.Sum(), weft.TypeMismatch,
     "Pipe[2]/<wb.Sum>: input type: expected a sequence that ends, got BroadcastSequenceType(TensorType([], 'float32'))"),
    (lambda: wb.Scalar() >> wb.Broadcast() >> wb.Fold(wb.Function(mix), wb.Zeros([])), weft.TypeMismatch,
     "Pipe[2]/<wb.Fold>: input type: expected a sequence that ends, got BroadcastSequenceType(TensorType([], 'float32'))"),
    (lambda: wb.AllOf(wb.Scalar(), wb.Vector(2)) >> wb.Map(wb.Identity()), weft.TypeMismatch,
     f"Pipe[1]/<wb.Map>: input type: expected items of one type, got TupleType({FLOAT}, {VECTOR})"),
    (lambda: wb.RNN(nn.Tanh(), wb.Zeros([]), initial_state_from_input=True), ValueError,
     "RNN: give initial_state or initial_state_from_input, not both"),
    (lambda: wb.Record({"a": wb.Identity()}).set_input_type(([], 2)), RuntimeError,
     f"<wb.Record a>: a Record from a plain dict has no order, so it takes no tuple; got TupleType({FLOAT}, {VECTOR}); "
     "make it from a list of pairs"),
    (lambda: wb.AllOf(wb.Scalar(), wb.Scalar()) >> wb.Record({"a": wb.Identity(), "b": wb.Identity()}), weft.TypeMismatch,
     "Pipe[1]/<wb.Record a b>: a Record from a plain dict has no order, so it takes no tuple; "
     f"got TupleType({FLOAT}, {FLOAT}); make it from a list of pairs"),
    (lambda: wb.Record((wb.Identity(),)).set_input_type(([], 2)), weft.TypeMismatch,
     f"<wb.Record>: input type: expected a tuple of 1, got TupleType({FLOAT}, {VECTOR})"),
    (lambda: wb.AllOf(wb.Scalar(), wb.Scalar()) >> wb.GetItem(2), weft.TypeMismatch,
     "Pipe[1]/<wb.GetItem 2>: 2 is not an item of TupleType(TensorType([], 'float32'), TensorType([], 'float32'))"),
    (lambda: wb.Map(wb.Scalar()) >> wb.Softmax() >> wb.Map(wb.Vector(2)), weft.TypeMismatch,
     f"Type mismatch between input type SequenceType({FLOAT}) and expected input type PyObjectType() in Pipe[2]/<wb.Map>"),
    (lambda: wb.Vector(2) >> wb.While(wb.Identity(), nn.Tanh(), 3), weft.TypeMismatch,
     "Pipe[1]/While[cond]/<wb.Identity>: output type: expected one number or a Python object to decide by, "
     f"got {VECTOR}"),
    (lambda: wb.Map(wb.Vector(2)) >> wb.Stack() >> wb.Function(lambda x: torch.cat([x, x])), weft.TypeMismatch,
     "Pipe[2]/<wb.Function <lambda>>: only the first dimension may be of unknown length, and must be that of an input; "
     "got [6, 2] for inputs of the lengths [3]"),
    (lambda: wb.Map(wb.Scalar("int64")) >> wb.Mean(), weft.TypeMismatch,
     "Pipe[1]/<wb.Mean>: input type: expected floating point numbers, got SequenceType(TensorType([], 'int64'))"),
    (lambda: wb.Zeros(wb.SequenceType(wb.PyObjectType())), weft.TypeMismatch,
     "<wb.Zeros>: there are no zeros of SequenceType(PyObjectType())"),
    (lambda: wb.Zeros(wb.SequenceType((wb.PyObjectType(), []))), weft.TypeMismatch,
     f"<wb.Zeros>: there are no zeros of SequenceType(TupleType(PyObjectType(), {FLOAT}))"),
    (lambda: wb.Map(wb.Scalar()) >> wb.Stack() >> wb.Metric("m"), weft.TypeMismatch,
     "Pipe[2]/<wb.Metric 'm'>: input type: expected a tensor of one shape for all examples, got TensorType([None], 'float32')"),
    (lambda: wb.FC("a"), weft.TypeMismatch, "FC: num_units_out: expected an integer, got 'a'"),
    (lambda: wb.FC(0), ValueError, "FC: num_units_out: expected at least 1, got 0"),
    (lambda: wb.FC(3, input_keep_prob=2.0), ValueError,
     "FC: input_keep_prob: expected a number above 0 and at most 1, got 2.0"),
    (lambda: wb.Embedding(0, 2), ValueError, "Embedding: num_buckets: expected at least 1, got 0"),
    (lambda: wb.Tensor([2, 2]) >> wb.FC(3), TypeError,
     "Pipe[1]/<wb.Function FC(3)>: FC: expected a vector of floating point numbers, got [2, 2] of torch.float32"),
    (lambda: wb.Scalar() >> wb.Embedding(3, 2), TypeError,
     "Pipe[1]/<wb.Function Embedding(3, 2)>: Embedding: expected an integer without dimensions, got [] of torch.float32"),
    (lambda: (fc := wb.FC(3)) and (wb.Vector(2) >> fc) and wb.Vector(5) >> fc, TypeError,
     "Pipe[1]/<wb.Function FC(3)>: FC: expected a vector of 2 numbers as at the first call, got 5"),
    (lambda: wb.Scalar().reads(wb.Scalar()), weft.StructureError,
     "<wb.Scalar>: reads: only inside `with composition.scope():`"),
    (lambda: function_of([3]).set_input_type([4]), weft.TypeMismatch,
     "Type mismatch between input type TensorType([4], 'float32') and expected input type TensorType([3], 'float32') "
     "in <wb.Function neg>"),
    (lambda: wb.Fold(function_of([]), wb.Zeros([])), weft.TypeMismatch,
     f"Fold[combine]/<wb.Function neg>: input type: expected a tuple of state and item, got {FLOAT}"),
    (lambda: wb.Fold(wb.Scalar(), wb.Zeros([])), weft.TypeMismatch,
     "Fold[combine]/<wb.Scalar>: input type: expected a tuple of state and item, got PyObjectType()"),
    (lambda: wb.Concat("a"), weft.TypeMismatch, "Concat: concat_dim: expected an integer, got 'a'"),
    (lambda: wb.OneHot(2.5), weft.TypeMismatch, "OneHot: start: expected an integer, got 2.5"),
    (lambda: wb.Pad(2, "a"), weft.TypeMismatch, "Pad: value: expected a number, got 'a'"),
    (lambda: wb.Map(wb.Scalar("uint8")) >> wb.Pad(2, 300), weft.TypeMismatch,
     "Pipe[1]/<wb.Pad 2 300>: value: expected a number of the type of the items, TensorType([], 'uint8'), got 300"),
    (lambda: 3 >> wb.Scalar(), weft.TypeMismatch, "expected a block, module, tensor, dict, list or tuple, got 3"),
    (lambda: wb.Scalar() >> 3, weft.TypeMismatch, "expected a block, module, tensor, dict, list or tuple, got 3"),
    (lambda: wb.Scalar() >> "a", weft.TypeMismatch, "expected a block, module, tensor, dict, list or tuple, got 'a'"),
    (lambda: wb.OneHotFromList(3), weft.TypeMismatch, "OneHotFromList: elements: expected a list, got int 3"),
    (lambda: wb.OneHotFromList([[1], [2]]), weft.TypeMismatch,
     "OneHotFromList: elements: expected what can be keys of a dict, got list [[1], [2]]"),
    (lambda: wb.FractalNet(1, 2, lambda: 3), weft.TypeMismatch,
     "FractalNet: base_layer_builder: expected it to make a module, got 3"),
    (lambda: wb.Slice(start=1.5), weft.TypeMismatch, "Slice: start: expected an integer, got 1.5"),
    (lambda: wb.Slice(stop="a"), weft.TypeMismatch, "Slice: stop: expected an integer, got 'a'"),
    (lambda: wb.Slice(step=0), ValueError, "Slice: step: expected an integer other than 0, got 0"),
    (lambda: wb.NGrams(2.0), weft.TypeMismatch, "NGrams: n: expected an integer, got 2.0"),
    (lambda: wb.FC(3, name=3), weft.TypeMismatch, "FC: name: expected a string, got 3"),
    (lambda: wb.FC(3, name="a.b"), weft.TypeMismatch,
     "FC: name: expected a string that is not empty and has no dot, got 'a.b'"),
    (lambda: wb.FC(3, "relu"), weft.TypeMismatch, "FC: activation: expected something callable, got 'relu'"),
    (lambda: wb.FC(3, input_keep_prob="x"), weft.TypeMismatch, "FC: input_keep_prob: expected a number, got 'x'"),
    (lambda: wb.FC(3).weights, RuntimeError, "FC: weights: made when the input size is known, at the first call"),
    (lambda: wb.FC(3, weight_norm=True).scales, RuntimeError,
     "FC: scales: made when the input size is known, at the first call"),
    (lambda: wb.FC(3).scales, RuntimeError, "FC: scales: exist only with weight_norm=True"),
    (lambda: wb.Vector(2, "float64") >> wb.FC(3), weft.TypeMismatch,
     "Pipe[1]/<wb.Function FC(3)>: input type: expected torch.float32, as its output, got TensorType([2], 'float64'); "
     "change both with torch.set_default_dtype or the network's .to(dtype)"),
    (lambda: wb.Embedding(3, 2, "x"), weft.TypeMismatch,
     "Embedding: initializer: expected a function, tensor or array, got 'x'"),
    (lambda: wb.Embedding(3, 2, np.zeros((2, 2))), ValueError,
     "Embedding: initializer: expected the shape [3, 2], got [2, 2]"),
    (lambda: wb.FractalNet(0, 1, nn.Tanh), ValueError, "FractalNet: num_fractal_blocks: expected at least 1, got 0"),
    (lambda: wb.FractalNet(1, 1, 3), weft.TypeMismatch, "FractalNet: base_layer_builder: expected something callable, got 3"),
    (lambda: wb.FractalNet(1, 1, nn.Tanh, p_drop_base_case=2), ValueError,
     "FractalNet: p_drop_base_case: expected a number of at least 0 and at most 1, got 2"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CONSTRUCTION)))
def test_errors_at_construction(number: int) -> None:
    make, kind, text = CONSTRUCTION[number]
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value) == text


def test_a_failed_construction_leaves_the_parts_as_they_were() -> None:
    part = wb.Identity()
    with pytest.raises(weft.TypeMismatch):
        wb.Pipe(wb.Scalar(), wb.AllOf(part, name="both"), wb.GetItem("a"))
    assert part.input_type is None
    assert (wb.Vector(2) >> wb.AllOf(part)).eval_one([1, 2])[0].tolist() == [1, 2]


def test_integers_of_numpy_are_integers() -> None:
    two, items = np.int64(2), wb.Map(wb.Scalar())
    assert (items >> wb.NGrams(two)).eval_one([1, 2, 3], tolist=True) == [(1, 2), (2, 3)]
    assert (items >> wb.Pad(two) >> wb.GetItem(np.int32(1))).eval_one([1]) == 0
    assert (items >> wb.GetItem(two)).eval_one([1, 2, 3]) == 3
    assert (items >> wb.Slice(start=two)).eval_one([1, 2, 3], tolist=True) == [3]
    assert (wb.GetItem(two) >> wb.Scalar()).eval_one({2: 5}) == 5
    assert (wb.AllOf(wb.Tensor([1, 1]), wb.Tensor([1, 1])) >> wb.Concat(np.int64(1))).eval_one([[3]]).tolist() == [[3, 3]]
    twice = wb.While(wb.Function(lambda x: x > 0), wb.Function(lambda x: x * 2), max_steps=two)
    assert (wb.Scalar() >> twice).eval_one(1) == 4
    both = wb.Composition()
    with both.scope():
        both.output.reads(wb.AllOf(wb.Vector(1), wb.Length()).reads(both.input)[np.int64(1)])
    assert both.eval_one(np.ones(1)) == 1
