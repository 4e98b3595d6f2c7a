"""Every block through one battery: one example, a batch, gradients, depth, text, pickle, deepcopy, state."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import weft
import weft.blocks as wb
from block_parts import (
    Cell,
    assert_batches,
    assert_equal,
    dot,
    doubled,
    halves,
    is_list,
    mix,
    positive,
    running,
    small,
    total,
)


@dataclass(frozen=True)
class Case:
    """A block, examples of different shapes, and what the first of them gives and needs."""

    make: Callable[[], wb.Block]
    examples: list[Any]
    depth: int | None
    expected: Any = None


@pytest.fixture(autouse=True)
def in_double() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


def vector() -> wb.Block:
    return wb.Vector(3) >> nn.Linear(3, 3)


def vectors() -> wb.Block:
    return wb.Map(vector())


def numbers() -> wb.Block:
    return wb.Map(wb.Scalar())


def declared() -> wb.Block:
    deep = wb.ForwardDeclaration(wb.PyObjectType(), wb.TensorType([3]))
    deep.resolve_to(
        wb.OneOf(is_list, (wb.Scalar("int64") >> wb.Embedding(5, 3), wb.Map(deep()) >> wb.Sum() >> nn.Linear(3, 3)))
    )
    return deep()


def composed() -> wb.Block:
    whole = wb.Composition()
    with whole.scope():
        scaled = wb.Function(halves).reads(whole.input)
        whole.output.reads(wb.Function(mix).reads(scaled[1], scaled[0]), scaled)
    return vector() >> whole


V = [[[1, 2, 3], [4, 5, 6], [0, 1, 0]], [], [[1, 1, 2]], [[0.5, 2, 1]] * 4]
ONE = [[1, 2, 3], [0, -1, 4]]
PAIRS = [{"q": [1, 0, 1], "xs": xs} for xs in V]


class Layer(nn.Linear):
    """A base layer for fractals; a class, so that it pickles."""

    def __init__(self) -> None:
        super().__init__(3, 3)


RECORDS = [
    {"age": 30, "name": "ann", "marks": [1.5, 2], "more": {"ok": True}},
    {"age": None, "name": "bob", "marks": [], "more": {"ok": False}},
    {"age": 27.5, "marks": [2, 2, 4.5], "more": {"ok": True}, "name": 3},
]


CASES: dict[str, Case] = {
    "Tensor": Case(lambda: wb.Tensor([1, 2]), [[[1, 2]], [[3, 4]]], 0, torch.tensor([[1.0, 2.0]], dtype=torch.float64)),
    "Scalar": Case(lambda: wb.Scalar("int64"), [3, "4"], 0, torch.tensor(3)),
    "Vector": Case(lambda: wb.Vector(3), ONE, 0, torch.tensor([1.0, 2, 3], dtype=torch.float64)),
    "FromTensor": Case(lambda: wb.AllOf(vector(), wb.FromTensor(nn.Parameter(torch.ones(3)))) >> wb.Function(mix), ONE, 2),
    "InputTransform": Case(lambda: wb.InputTransform(sorted) >> numbers(), [[2, 1], []], 0),
    "OneHot": Case(lambda: wb.OneHot(1, 4) >> nn.Linear(3, 2), [1, 3], 1),
    "OneHotFromList": Case(lambda: wb.OneHotFromList("ab", strict=False), ["b", "z"], 0, torch.tensor([0.0, 1.0])),
    "Optional": Case(lambda: wb.Optional(vector()), [[1, 2, 3], None], 1),
    "Optional with a case": Case(lambda: wb.Optional(numbers() >> wb.Sum(), wb.FromTensor(torch.tensor(7.0))), [None, [1]], 0),
    "Zeros": Case(lambda: wb.Zeros(([2], wb.SequenceType([]))), [None, None], 0),
    "Void": Case(lambda: wb.AllOf(vector(), wb.Void()), ONE, 1),
    "Identity": Case(lambda: wb.Identity(name="same") >> vector() >> wb.Identity(name="again"), ONE, 1),
    "Function": Case(lambda: vector() >> wb.Function(halves) >> wb.Function(mix), ONE, 3),
    "Concat": Case(lambda: wb.AllOf(vector(), wb.GetItem(0) >> wb.Scalar()) >> wb.Concat(), ONE, 2),
    "Composition": Case(composed, ONE, 3),
    "Pipe": Case(lambda: wb.Pipe(vector(), nn.Tanh()), ONE, 2),
    "Record": Case(lambda: wb.Record({"xs": vectors() >> wb.Sum(), "q": vector()}), PAIRS, 3),
    "Record of a tuple": Case(lambda: vector() >> wb.Function(halves) >> wb.Record((nn.Linear(3, 2), nn.Tanh())), ONE, 3),
    "AllOf": Case(lambda: wb.AllOf(vector(), wb.Length(), wb.Zeros([2])), ONE, 1),
    "AllOf of nothing": Case(lambda: wb.AllOf(), ONE, 0),
    "OneOf": Case(lambda: wb.OneOf(len, {0: wb.Zeros([3]), 3: vector()}), [[1, 2, 3], []], 1),
    "OneOf with a first block": Case(lambda: wb.OneOf(len, [nn.Tanh(), nn.ReLU()], wb.GetItem(0) >> wb.Scalar()), [[1]], 1),
    "ForwardDeclaration": Case(declared, [[1, [2, 3]], 4, [], [[[1]]]], 5),
    "Map": Case(vectors, V, 1),
    "Map of objects": Case(lambda: wb.Map(wb.GetItem(0)) >> numbers() >> wb.Sum(), V, 2),
    "Fold": Case(lambda: vectors() >> wb.Fold(wb.Function(mix), wb.Zeros([3])), V, 4),
    "RNN": Case(lambda: vectors() >> wb.RNN(wb.Function(Cell(3)).set_input_type((3, 3))), V, 4),
    "RNN with a state": Case(
        lambda: wb.Record([("xs", vectors()), ("q", vector())]) >> wb.RNN(Cell(3), initial_state_from_input=True), PAIRS, 4
    ),
    "Reduce": Case(lambda: vectors() >> wb.Reduce(wb.Function(mix)), V, 3),
    "Sum": Case(lambda: vectors() >> wb.Sum(), V, 3),
    "Sum of integers": Case(
        lambda: wb.Map(wb.Scalar("int32")) >> wb.Sum(), [[1, 2], [], [3]], 1, torch.tensor(3, dtype=torch.int32)
    ),
    "Mean": Case(lambda: vectors() >> wb.Mean(), V, 4),
    "Max": Case(lambda: vectors() >> wb.Max(), V, 3),
    "Max of integers": Case(lambda: wb.Map(wb.Scalar("int64")) >> wb.Max(), [[1, 2], [], [-3]], 1, torch.tensor(2)),
    "Min": Case(lambda: vectors() >> wb.Min(), V, 3),
    "Broadcast": Case(
        lambda: wb.Record([("xs", vectors()), ("q", vector() >> wb.Broadcast())]) >> wb.ZipWith(wb.Function(mix)), PAIRS, 2
    ),
    "Zip": Case(lambda: wb.AllOf(vectors(), wb.Map(wb.Length("int64"))) >> wb.Zip(), V, 1),
    "NGrams": Case(lambda: vectors() >> wb.NGrams(2) >> wb.Map(wb.Function(mix)), V, 2),
    "Nth": Case(
        lambda: wb.AllOf(vectors(), wb.InputTransform(len) >> wb.InputTransform((-1).__add__)) >> wb.Nth(), [V[0], V[2]], 1
    ),
    "GetItem": Case(lambda: vectors() >> wb.GetItem(-1), [V[0], V[2]], 1),
    "Slice": Case(lambda: vectors() >> wb.Slice(start=1) >> wb.Sum(), V, 2),
    "Length": Case(lambda: vectors() >> wb.Length("int64"), V, 0, torch.tensor(3)),
    "Metric": Case(lambda: vectors() >> wb.Map(wb.AllOf(wb.Metric("seen"), wb.Function(total))), V, 2),
    "FC": Case(lambda: wb.Vector(3) >> wb.FC(4, weight_norm=True, normalization_fn=torch.sigmoid), ONE, 1),
    "Embedding": Case(lambda: wb.Scalar("int16") >> wb.Embedding(4, 2), [1, 7, -2], 1),
    "FractalNet": Case(lambda: wb.Vector(3) >> wb.FractalNet(1, 2, Layer), ONE, 1),
    "Stack": Case(lambda: vectors() >> wb.Stack() >> wb.Function(running), V, 3),
    "Pad": Case(lambda: vectors() >> wb.Pad(4, 0.5) >> wb.Concat(), V, 2),
    "Filter": Case(lambda: vectors() >> wb.Filter(wb.Function(positive)) >> wb.Sum(), V, None),
    "Filter of objects": Case(lambda: wb.Filter(wb.GetItem(0)) >> vectors() >> wb.Sum(), V, 2),
    "While": Case(lambda: vector() >> wb.While(wb.Function(small), nn.Linear(3, 3) >> wb.Function(doubled), 6), ONE, None),
    "Softmax": Case(lambda: vectors() >> wb.Map(wb.Function(total)) >> wb.Softmax(), V, 4),
    "Attend": Case(lambda: vectors() >> wb.Attend(wb.Function(total), nn.Linear(3, 2)), V, 3),
    "Attend with a query": Case(
        lambda: wb.Record([("q", vector()), ("xs", vectors())]) >> wb.Attend(wb.Function(dot)), PAIRS, 3
    ),
    "Json": Case(lambda: wb.Json(RECORDS, 4), RECORDS, 3),
}


def test_every_block_is_here() -> None:
    public = {name for name, value in vars(wb).items() if isinstance(value, type) and issubclass(value, wb.Block | nn.Module)}
    public |= {"Pipe", "Slice", "ForwardDeclaration"}
    shown = {name.split()[0] for name in CASES} | {"Block", "CompiledBlock"}
    assert public <= shown


@pytest.mark.parametrize("name", CASES)
def test_battery(name: str) -> None:
    case = CASES[name]
    block = case.make()
    wanted = assert_batches(block, case.examples)
    if case.expected is not None:
        assert_equal(wanted[0].to(case.expected.dtype), case.expected)
    if case.depth is None:
        with pytest.raises(weft.StructureError, match="depends on the values of tensors; it is not known before running"):
            block.max_depth(case.examples[0])
    else:
        assert block.max_depth(case.examples[0]) == case.depth
    assert repr(block).startswith("<wb.") and str(block).count("\n") + 1 >= len(block.subblocks)
    stacked = wb.compile(block)(case.examples)
    assert stacked is None or len(stacked) > 0


@pytest.mark.parametrize("name", CASES)
def test_copies(name: str) -> None:
    case = CASES[name]
    block = case.make()
    wanted = block.eval_one(case.examples[0])
    copies = [copy.deepcopy(block), pickle.loads(pickle.dumps(block))]
    other = case.make()
    other.load_state_dict(block.state_dict())
    for each in (*copies, other):
        assert list(each.state_dict()) == list(block.state_dict())
        assert_equal(each.eval_one(case.examples[0]), wanted)
    assert list(wb.compile(block).state_dict()) == list(block.state_dict())
    for parameter in copies[0].parameters():
        assert all(parameter is not mine for mine in block.parameters())
