"""Small networks from blocks: an evaluator, a text encoder by characters and words, a record, an LSTM cell from its parts."""

from __future__ import annotations

import torch
from torch import nn

import weft.blocks as wb


def evaluator() -> wb.Block:
    """The value of nested expressions such as `{"op": "+", "left": ..., "right": ...}`; nothing in it is learned."""
    expression = wb.ForwardDeclaration(wb.PyObjectType(), wb.TensorType([]))
    pair = wb.Record([("left", expression()), ("right", expression())])
    cases: dict[str, wb.Block] = {"num": wb.GetItem("value") >> wb.Scalar()}
    cases |= {"+": pair >> wb.Function(torch.add), "-": pair >> wb.Function(torch.sub), "*": pair >> wb.Function(torch.mul)}
    expression.resolve_to(wb.OneOf(wb.GetItem("op"), cases))
    return expression()


def hierarchical(size: int) -> wb.Block:
    """Sentences to vectors: characters in words in sentences, a recurrent network for each level."""
    character = wb.InputTransform(ord) >> wb.Scalar("int64") >> wb.Embedding(128, size)
    word = wb.Map(character) >> wb.RNN(lstm_cell(size, size), wb.Zeros((size, size))) >> wb.GetItem(1) >> wb.GetItem(0)
    words = wb.InputTransform(str.split) >> wb.Map(word)
    return words >> wb.RNN(lstm_cell(size, size), wb.Zeros((size, size))) >> wb.GetItem(1) >> wb.GetItem(0)


def record(size: int) -> wb.Block:
    """A person to a vector: numbers, a category, a list, something that may be missing."""
    fields = {
        "age": wb.Scalar(),
        "job": wb.OneHotFromList(["cook", "smith"]),
        "marks": wb.Map(wb.Scalar()) >> wb.Mean(),
        "height": wb.Optional(wb.Scalar()),
    }
    return wb.Record(fields) >> wb.Concat() >> wb.FC(size)


def lstm_cell(inputs: int, size: int) -> wb.Composition:
    """Hochreiter and Schmidhuber's cell (1997), gate by gate: from (x, (h, c)) to (h, (h, c))."""
    cell = wb.Composition(name="lstm").set_input_type((inputs, (size, size)))
    gate = {name: wb.Function(nn.Linear(inputs + size, size), name=name) for name in ("input", "forget", "output", "update")}
    with cell.scope():
        h, c = wb.GetItem(0).reads(cell.input[1]), wb.GetItem(1).reads(cell.input[1])
        xh = wb.Concat().reads(cell.input[0], h)
        kept = wb.Function(lambda f, c: f.sigmoid() * c).reads(gate["forget"].reads(xh), c)
        new = wb.Function(lambda i, u: i.sigmoid() * u.tanh()).reads(gate["input"].reads(xh), gate["update"].reads(xh))
        c = wb.Function(torch.add).reads(kept, new)
        h = wb.Function(lambda o, c: o.sigmoid() * c.tanh()).reads(gate["output"].reads(xh), c)
        state = wb.Identity(name="state").reads(h, c)
        cell.output.reads(h, state)
    return cell
