"""Every block once more: the line that it prints as, and what it says where it is used wrongly."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import weft
import weft.blocks as wb
from block_parts import dot, mix, positive
from test_blocks_battery import CASES

T = wb.TensorType


def pair(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.stack([a, b])


def vectors() -> wb.Block:
    return wb.Map(wb.Vector(2))


def endless() -> wb.Block:
    return wb.Scalar() >> wb.Broadcast()


def unused() -> Any:
    whole = wb.Composition(name="whole").set_input_type([])
    with whole.scope():
        wb.Function(torch.neg).reads(whole.input)
        whole.output.reads(whole.input)
    return wb.compile(whole)


def resolved_twice() -> None:
    again = wb.ForwardDeclaration()
    again.resolve_to(wb.Scalar())
    again.resolve_to(wb.Scalar())


LINES: dict[str, tuple[Callable[[], Any], str]] = {
    "Tensor": (lambda: wb.Tensor([1, 2], "int64", name="pair"), "<wb.Tensor 'pair' [1, 2] 'int64'>"),
    "Scalar": (lambda: wb.Scalar(dtype="int64"), "<wb.Scalar dtype='int64'>"),
    "Vector": (lambda: wb.Vector(3), "<wb.Vector 3>"),
    "FromTensor": (lambda: wb.FromTensor(torch.ones(2)), "<wb.FromTensor tensor([1., 1.])>"),
    "InputTransform": (lambda: wb.InputTransform(functools.partial(int, base=2)), "<wb.InputTransform int>"),
    "OneHot": (lambda: wb.OneHot(2, 5), "<wb.OneHot 2 5>"),
    "OneHotFromList": (lambda: wb.OneHotFromList(["a", "b"], strict=False), "<wb.OneHotFromList ['a', 'b'] strict=False>"),
    "Optional": (lambda: wb.Optional(wb.Scalar(), wb.Zeros([])), "<wb.Optional>"),
    "Zeros": (lambda: wb.Zeros([2]), "<wb.Zeros [2]>"),
    "Void": (lambda: wb.Void(), "<wb.Void>"),
    "Identity": (lambda: wb.Identity(name="same"), "<wb.Identity 'same'>"),
    "Function": (lambda: wb.Function(torch.tanh), "<wb.Function tanh>"),
    "Concat": (lambda: wb.Concat(1, flatten=True), "<wb.Concat 1 flatten=True>"),
    "Composition": (lambda: wb.Composition(name="cell"), "<wb.Composition 'cell'>"),
    "Pipe": (lambda: wb.Pipe(wb.Scalar(), nn.Tanh(), name="squashed"), "<wb.Pipe 'squashed'>"),
    "Record": (lambda: wb.Record({"b": wb.Scalar(), "a": wb.Scalar()}), "<wb.Record b a>"),
    "AllOf": (lambda: wb.AllOf(wb.Scalar(), wb.Length()), "<wb.AllOf>"),
    "OneOf": (lambda: wb.OneOf(len, {"a": wb.Scalar()}, name="kind"), "<wb.OneOf 'kind' len a>"),
    "ForwardDeclaration": (lambda: wb.ForwardDeclaration(name="tree")(), "<wb.ForwardDeclaration() 'tree'>"),
    "Map": (lambda: wb.Map(wb.Scalar()), "<wb.Map>"),
    "Fold": (lambda: wb.Fold(wb.Function(mix), wb.Zeros([])), "<wb.Fold>"),
    "RNN": (lambda: wb.RNN(wb.Function(mix), initial_state_from_input=True), "<wb.RNN initial_state_from_input=True>"),
    "Reduce": (lambda: wb.Reduce(wb.Function(mix)), "<wb.Reduce>"),
    "Sum": (lambda: wb.Sum(), "<wb.Sum>"),
    "Mean": (lambda: wb.Mean(), "<wb.Mean>"),
    "Max": (lambda: wb.Max(), "<wb.Max>"),
    "Min": (lambda: wb.Min(), "<wb.Min>"),
    "Broadcast": (lambda: wb.Broadcast(), "<wb.Broadcast>"),
    "Zip": (lambda: wb.Zip(), "<wb.Zip>"),
    "ZipWith": (lambda: wb.ZipWith(wb.Function(mix)), "<wb.Pipe>"),
    "NGrams": (lambda: wb.NGrams(2), "<wb.NGrams 2>"),
    "Nth": (lambda: wb.Nth(), "<wb.Nth>"),
    "GetItem": (lambda: wb.GetItem("age"), "<wb.GetItem 'age'>"),
    "Slice": (lambda: wb.Slice(start=1), "<wb.Slice start=1>"),
    "Length": (lambda: wb.Length("int64"), "<wb.Length 'int64'>"),
    "Metric": (lambda: wb.Metric("loss"), "<wb.Metric 'loss'>"),
    "FC": (lambda: wb.convert_to_block(wb.FC(3, name="hidden")), "<wb.Function 'hidden' FC(3)>"),
    "Embedding": (lambda: wb.convert_to_block(wb.Embedding(4, 2)), "<wb.Function Embedding(4, 2)>"),
    "FractalNet": (lambda: wb.convert_to_block(wb.FractalNet(1, 1, nn.Tanh)), "<wb.Function FractalNet>"),
    "Stack": (lambda: wb.Stack(), "<wb.Stack>"),
    "Pad": (lambda: wb.Pad(2, value=-1), "<wb.Pad 2 value=-1>"),
    "Filter": (lambda: wb.Filter(wb.Function(positive)), "<wb.Filter>"),
    "While": (lambda: wb.While(wb.Function(positive), wb.Function(torch.neg), max_steps=3), "<wb.While max_steps=3>"),
    "Softmax": (lambda: wb.Softmax(), "<wb.Softmax>"),
    "Attend": (lambda: wb.Attend(wb.Function(dot), name="look"), "<wb.Attend 'look'>"),
}  # fmt: skip

WRONG: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    ("Tensor", lambda: wb.Tensor([None]), TypeError, "Tensor: the shape of a constant must be known, got [None]"),
    ("Tensor", lambda: wb.Tensor([2]).eval_one([1]), weft.ShapeError,
     "<wb.Tensor [2]>: expected TensorType([2], 'float32'), got the shape [1], in example 0"),
    ("Scalar", lambda: wb.Scalar().eval_one([1]), TypeError,
     "<wb.Scalar>: expected something that converts to TensorType([], 'float32'), got list [1], in example 0"),
    ("Vector", lambda: wb.Vector(-1), TypeError,
     "Vector: the shape of a TensorType: expected integers of at least 0, got -1 in [-1]"),
    ("FromTensor", lambda: wb.FromTensor("a"), TypeError, "FromTensor: 'a' is not a tensor or an array"),
    ("InputTransform", lambda: wb.InputTransform("a"), TypeError,
     "InputTransform: py_fn: expected something callable, got 'a'"),
    ("OneHot", lambda: wb.OneHot(3).eval_one(3), KeyError, "<wb.OneHot 3>: expected one of 0, 1, 2, got int 3, in example 0"),
    ("OneHot", lambda: wb.OneHot(2, 2), IndexError, "OneHot: expected a range that is not empty, got [2, 2)"),
    ("OneHotFromList", lambda: wb.OneHotFromList(["a"]).eval_one("b"), KeyError,
     "<wb.OneHotFromList ['a']>: expected one of 'a', got str 'b', in example 0"),
    ("OneHotFromList", lambda: wb.OneHotFromList([]), ValueError, "OneHotFromList: expected at least one element"),
    ("OneHotFromList", lambda: wb.OneHotFromList("aa"), ValueError,
     "OneHotFromList: expected different elements, got 'a' twice"),
    ("Optional", lambda: wb.Optional(wb.Scalar(), wb.Zeros([2])), TypeError,
     "Type mismatch between output type TensorType([2], 'float32') and expected output type TensorType([], 'float32') in "
     "Optional[none_case]/<wb.Zeros [2]>"),
    ("Optional", lambda: wb.Optional(wb.InputTransform(str)), TypeError, "<wb.Optional>: there are no zeros of PyObjectType()"),
    ("Zeros", lambda: wb.Zeros(wb.BroadcastSequenceType([])), TypeError,
     "<wb.Zeros>: there are no zeros of BroadcastSequenceType(TensorType([], 'float32'))"),
    ("Void", lambda: wb.Void().set_output_type([]), TypeError,
     "Type mismatch between output type VoidType() and expected output type TensorType([], 'float32') in <wb.Void>"),
    ("Identity", lambda: wb.Identity().set_input_type([]).set_output_type([2]), TypeError,
     "Type mismatch between output type TensorType([], 'float32') and expected output type TensorType([2], 'float32') in "
     "<wb.Identity>"),
    ("Function", lambda: wb.Function("a"), TypeError, "Function: fn: expected something callable, got 'a'"),
    ("Function", lambda: vectors() >> wb.Function(torch.tanh), TypeError,
     "bad input type SequenceType(TensorType([2], 'float32')) for Pipe[1]/<wb.Function tanh>, expected TensorType or "
     "TupleType"),
    ("Function", lambda: wb.Scalar() >> wb.Function(lambda x: None), TypeError,
     "Pipe[1]/<wb.Function <lambda>>: expected the function to return a tensor or a tuple of tensors, got NoneType"),
    ("Concat", lambda: wb.Scalar() >> wb.Concat(), TypeError,
     "bad input type TensorType([], 'float32') for Pipe[1]/<wb.Concat>, expected TupleType"),
    ("Concat", lambda: wb.AllOf(wb.Vector(2), wb.Tensor([2, 1])) >> wb.Concat(), TypeError,
     "Pipe[1]/<wb.Concat>: shapes must agree except in dimension 0, got TupleType(TensorType([2], 'float32'), "
     "TensorType([2, 1], 'float32'))"),
    ("Concat", lambda: wb.AllOf(wb.Vector(2)) >> wb.Concat(1), TypeError,
     "Pipe[1]/<wb.Concat 1>: concat_dim 1 is not a dimension of all of TupleType(TensorType([2], 'float32'))"),
    ("Composition", unused, TypeError, "<wb.Composition 'whole'>: children have unused outputs: <wb.Function neg>"),
    ("Composition", lambda: wb.Scalar().reads(wb.Scalar()), ValueError,
     "<wb.Scalar>: reads: only inside `with composition.scope():`"),
    ("Pipe", lambda: wb.Pipe(wb.Scalar(), abs), TypeError,
     "expected a block, module, tensor, dict, list or tuple, got <built-in function abs>; wrap it: Function(fn)"),
    ("Pipe", lambda: wb.Scalar() >> wb.Scalar(), TypeError,
     "Type mismatch between input type TensorType([], 'float32') and expected input type PyObjectType() in "
     "Pipe[1]/<wb.Scalar>"),
    ("Record", lambda: wb.Record("ab"), TypeError, "Record: expected a dict, a list of pairs or a tuple of blocks, got 'ab'"),
    ("Record", lambda: wb.Record({"a": wb.Scalar()}).eval_one({"b": 1}), KeyError,
     "<wb.Record a>: expected the key 'a', found 'b', in example 0"),
    ("Record", lambda: wb.Record((wb.Scalar(), wb.Scalar())).eval_one([1]), IndexError,
     "<wb.Record>: expected an item 1, found 1 items, in example 0"),
    ("Record", lambda: wb.Record({"a": wb.Identity()}).set_input_type(([],)), RuntimeError,
     "<wb.Record a>: a Record from a plain dict has no order, so it takes no tuple; got TupleType(TensorType([], "
     "'float32')); make it from a list of pairs"),
    ("AllOf", lambda: wb.AllOf(wb.Scalar(), wb.Function(torch.tanh)), TypeError,
     "bad input type PyObjectType() for AllOf[1]/<wb.Function tanh>, expected TensorType or TupleType"),
    ("OneOf", lambda: wb.OneOf(len, {}), ValueError, "OneOf: expected at least one case"),
    ("OneOf", lambda: wb.OneOf(len, 3), TypeError,
     "OneOf: case_blocks: expected a dict, a list of pairs or a tuple of blocks, got 3"),
    ("OneOf", lambda: wb.OneOf(len, [wb.Scalar(), wb.Scalar()]).eval_one("abc"), KeyError,
     "<wb.OneOf len>: expected a key of a case (0, 1), got int 3, in example 0"),
    ("OneOf", lambda: wb.OneOf(wb.Scalar(), [wb.Scalar()]), TypeError,
     "Type mismatch between output type TensorType([], 'float32') and expected output type PyObjectType() in "
     "OneOf[key_fn]/<wb.Scalar>"),
    ("ForwardDeclaration", lambda: wb.compile(wb.ForwardDeclaration(wb.PyObjectType(), [])()), TypeError,
     "<wb.ForwardDeclaration()>: the declaration was never resolved; call resolve_to"),
    ("ForwardDeclaration", resolved_twice, ValueError, "ForwardDeclaration: it is already resolved"),
    ("ForwardDeclaration", lambda: wb.ForwardDeclaration(output_type=[]).resolve_to(wb.Vector(2)), TypeError,
     "Type mismatch between output type TensorType([2], 'float32') and expected output type TensorType([], 'float32') in "
     "<wb.Vector 2>"),
    ("Map", lambda: wb.Map(wb.Scalar()).eval_one(3), TypeError,
     "<wb.Map>: expected something to loop over, got int 3, in example 0"),
    ("Map", lambda: wb.Vector(2) >> wb.Map(nn.Tanh()), TypeError,
     "bad input type TensorType([2], 'float32') for Pipe[1]/<wb.Map Tanh()>, expected PyObjectType or SequenceType or "
     "TupleType"),
    ("Fold", lambda: endless() >> wb.Fold(wb.Function(mix), wb.Zeros([])), TypeError,
     "Pipe[2]/<wb.Fold>: input type: expected a sequence that ends, got BroadcastSequenceType(TensorType([], 'float32'))"),
    ("Fold", lambda: wb.Map(wb.Scalar()) >> wb.Fold(wb.Function(pair), wb.Zeros([])), TypeError,
     "Type mismatch between output type TensorType([2], 'float32') and expected output type TensorType([], 'float32') in "
     "Pipe[1]/Fold[combine]/<wb.Function pair>"),
    ("RNN", lambda: wb.RNN(nn.Tanh(), wb.Zeros([]), True), ValueError,
     "RNN: give initial_state or initial_state_from_input, not both"),
    ("RNN", lambda: wb.Map(wb.Scalar()) >> wb.RNN(wb.Function(mix), wb.Zeros([])), TypeError,
     "Pipe[1]/RNN[cell]/<wb.Function mix>: output type: expected a tuple of output and state, got TensorType([], 'float32')"),
    ("Reduce", lambda: wb.Reduce(wb.Function(mix)).set_input_type(wb.PyObjectType()), TypeError,
     "bad input type PyObjectType() for <wb.Reduce>, expected SequenceType or TupleType"),
    ("Sum", lambda: wb.Map(vectors()) >> wb.Sum(), TypeError,
     "Pipe[1]/<wb.Sum>: input type: expected a sequence of tensors, got SequenceType(SequenceType(TensorType([2], "
     "'float32')))"),
    ("Mean", lambda: wb.Map(wb.Scalar("int64")) >> wb.Mean(), TypeError,
     "Pipe[1]/<wb.Mean>: input type: expected floating point numbers, got SequenceType(TensorType([], 'int64'))"),
    ("Max", lambda: endless() >> wb.Max(), TypeError,
     "Pipe[2]/<wb.Max>: input type: expected a sequence that ends, got BroadcastSequenceType(TensorType([], 'float32'))"),
    ("Min", lambda: wb.Min().set_input_type(wb.PyObjectType()), TypeError,
     "bad input type PyObjectType() for <wb.Min>, expected SequenceType or TupleType"),
    ("Broadcast", lambda: endless() >> wb.GetItem(0), TypeError,
     "Pipe[2]/<wb.GetItem 0>: input type: expected a sequence that ends, got BroadcastSequenceType(TensorType([], "
     "'float32'))"),
    ("Zip", lambda: wb.Zip().set_input_type(()), TypeError,
     "<wb.Zip>: input type: expected at least one sequence, got TupleType()"),
    ("Zip", lambda: wb.AllOf(wb.Scalar()) >> wb.Zip(), TypeError,
     "Pipe[1]/<wb.Zip>: input type: expected a tuple of sequences, got TupleType(TensorType([], 'float32'))"),
    ("ZipWith", lambda: wb.Record((vectors(), wb.Vector(2))) >> wb.ZipWith(wb.Function(mix)), TypeError,
     "Pipe[0]/<wb.Zip>: input type: expected a tuple of sequences, got TupleType(SequenceType(TensorType([2], 'float32')), "
     "TensorType([2], 'float32'))"),
    ("NGrams", lambda: wb.NGrams(0), ValueError, "NGrams: n: expected at least 1, got 0"),
    ("NGrams", lambda: wb.NGrams("a"), TypeError, "NGrams: n: expected an integer, got 'a'"),
    ("Nth", lambda: wb.AllOf(vectors(), wb.Length()) >> wb.Nth(), TypeError,
     "Pipe[1]/<wb.Nth>: input type: expected a tuple of a sequence and a Python number, got "
     "TupleType(SequenceType(TensorType([2], 'float32')), TensorType([], 'float32'))"),
    ("Nth", lambda: (wb.Record((vectors(), wb.Identity())) >> wb.Nth()).eval_one(([], 0)), IndexError,
     "Pipe[1]/<wb.Nth>: expected an item 0, found 0 items, in example 0 at [1]"),
    ("GetItem", lambda: wb.GetItem("age").eval_one({}), KeyError,
     "<wb.GetItem 'age'>: expected the key 'age', found none, in example 0"),
    ("GetItem", lambda: wb.GetItem(1).eval_one([1]), IndexError,
     "<wb.GetItem 1>: expected an item 1, found 1 items, in example 0"),
    ("GetItem", lambda: wb.GetItem("age").eval_one(3), TypeError,
     "<wb.GetItem 'age'>: expected something with an item 'age', got int 3, in example 0"),
    ("GetItem", lambda: wb.AllOf(wb.Scalar()) >> wb.GetItem(1), TypeError,
     "Pipe[1]/<wb.GetItem 1>: 1 is not an item of TupleType(TensorType([], 'float32'))"),
    ("Slice", lambda: wb.Slice(1, 2), TypeError, "Slice: say start=, stop= and step= by name"),
    ("Length", lambda: endless() >> wb.Length(), TypeError,
     "Pipe[2]/<wb.Length>: an endless sequence has no length, got BroadcastSequenceType(TensorType([], 'float32'))"),
    ("Length", lambda: wb.Length().eval_one(3), TypeError,
     "<wb.Length>: expected something that has a length, got int 3, in example 0"),
    ("Metric", lambda: wb.Metric(3), TypeError, "Metric: metric_name: expected a string, got 3"),
    ("Metric", lambda: vectors() >> wb.Metric("m"), TypeError,
     "bad input type SequenceType(TensorType([2], 'float32')) for Pipe[1]/<wb.Metric 'm'>, expected TensorType or TupleType"),
    ("FC", lambda: wb.FC(0), ValueError, "FC: num_units_out: expected at least 1, got 0"),
    ("FC", lambda: wb.Scalar() >> wb.FC(3), TypeError,
     "Pipe[1]/<wb.Function FC(3)>: FC: expected a vector of floating point numbers, got [] of torch.float32"),
    ("Embedding", lambda: wb.Embedding("a", 2), TypeError, "Embedding: num_buckets: expected an integer, got 'a'"),
    ("Embedding", lambda: wb.Vector(2, "int64") >> wb.Embedding(4, 2), TypeError,
     "Pipe[1]/<wb.Function Embedding(4, 2)>: Embedding: expected an integer without dimensions, got [2] of torch.int64"),
    ("FractalNet", lambda: wb.FractalNet(1, 0, nn.Tanh), ValueError,
     "FractalNet: fractal_block_depth: expected at least 1, got 0"),
    ("Stack", lambda: wb.Map(vectors()) >> wb.Stack(), TypeError,
     "Pipe[1]/<wb.Stack>: input type: expected a sequence of tensors, got SequenceType(SequenceType(TensorType([2], "
     "'float32')))"),
    ("Pad", lambda: wb.Pad(0), TypeError, "Pad: n: expected an integer of at least 1, got 0"),
    ("Pad", lambda: (vectors() >> wb.Pad(1)).eval_one([[1, 2]] * 2), weft.ShapeError,
     "Pipe[1]/<wb.Pad 1>: expected at most 1 items, got 2, in example 0"),
    ("Filter", lambda: vectors() >> wb.Filter(nn.Tanh()), TypeError,
     "Pipe[1]/Filter[0]/<wb.Function Tanh()>: output type: expected one number or a Python object to decide by, got "
     "TensorType([2], 'float32')"),
    ("Filter", lambda: (vectors() >> wb.Filter(wb.Function(positive))).max_depth([]), weft.StructureError,
     "Pipe[1]/<wb.Filter>: what is computed depends on the values of tensors; it is not known before running"),
    ("While", lambda: wb.While(wb.Function(positive), wb.Function(torch.neg), -1), TypeError,
     "While: max_steps: expected an integer of at least 0, got -1"),
    ("While", lambda: wb.Vector(2) >> wb.While(wb.Function(positive), wb.Function(torch.sum), 3), TypeError,
     "Type mismatch between output type TensorType([], 'float32') and expected output type TensorType([2], 'float32') in "
     "Pipe[1]/While[body]/<wb.Function sum>"),
    ("Softmax", lambda: vectors() >> wb.Softmax(), TypeError,
     "Pipe[1]/<wb.Softmax>: input type: expected floating point numbers without dimensions, got "
     "SequenceType(TensorType([2], 'float32'))"),
    ("Attend", lambda: vectors() >> wb.Attend(nn.Tanh()), TypeError,
     "Pipe[1]/Attend[score]/<wb.Function Tanh()>: output type: expected floating point numbers without dimensions, got "
     "TensorType([2], 'float32')"),
    ("Attend", lambda: wb.Attend(wb.GetItem(0) >> wb.Scalar(), wb.Vector(2)).eval_one(5), TypeError,
     "<wb.Attend>: expected something to loop over, got int 5, in example 0"),
]  # fmt: skip


def test_every_block_is_here() -> None:
    every = {name.split()[0] for name in CASES} - {"Json"}  # its own tests have those of Json
    assert LINES.keys() - {"ZipWith"} == every == {name for name, *_ in WRONG} - {"ZipWith"}


@pytest.mark.parametrize("name", LINES)
def test_lines(name: str) -> None:
    make, line = LINES[name]
    assert repr(make()) == line


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_faults(number: int) -> None:
    _, wrong, kind, text = WRONG[number]
    with pytest.raises(kind) as caught:
        wrong()
    assert str(caught.value) == text
    assert isinstance(caught.value, weft.WeftError | ValueError | IndexError)


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("Vector", "OneHot", "NGrams", "GetItem", "FC", "Pad"), (1,)),
    **{name: (wb.Scalar(),) for name in ("Optional", "Map", "Fold", "RNN", "Reduce", "ZipWith", "Filter", "Attend")},
    "Tensor": ([],),
    "FromTensor": (torch.ones(1),),
    "InputTransform": (len,),
    "OneHotFromList": ("a",),
    "Zeros": ([],),
    "Function": (torch.neg,),
    "Record": ([],),
    "OneOf": (len, [wb.Scalar()]),
    "Metric": ("m",),
    "Embedding": (1, 1),
    "FractalNet": (1, 1, nn.Tanh),
    "While": (wb.Scalar(), wb.Scalar(), 1),
    "Pipe": (wb.Scalar(), nn.Tanh()),
}


@pytest.mark.parametrize("name", LINES)
def test_every_constructor_takes_a_name(name: str) -> None:
    with pytest.raises(TypeError, match="name: expected a string, got 3"):
        getattr(wb, name)(*ARGUMENTS.get(name, ()), name=3)
