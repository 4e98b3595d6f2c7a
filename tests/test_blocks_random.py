"""Random blocks over random data: batched equals one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import weft.blocks as wb
from block_parts import Cell, assert_equal, assert_same_gradients, dot, doubled, gradients, is_list, leaves, mix, total

TREES, GROUP, EXAMPLES = 320, 40, 3
OPTIONS: list[dict[str, Any]] = [{}, {"policy": "agenda"}, {"dedupe": True}, {"policy": "depth", "backend": "eager"}]
Data = Callable[[random.Random], Any]
Made = tuple[wb.Block, Data]


VECTOR = wb.TensorType([3], "float64")


def spread(rows: torch.Tensor) -> torch.Tensor:
    return rows.cumsum(0).square().sum(0)


def halved(nine: torch.Tensor) -> torch.Tensor:
    return nine.reshape(3, 3).sum(0) / 2


class Parts:
    """Modules that all trees of a group share, so that equal work is traced once."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3, dtype=torch.float64)
        self.table = nn.Embedding(6, 3, dtype=torch.float64)
        self.cell = Cell(3).double()


class Trees:
    """Makes random blocks from Python objects to vectors, and data for them. Notes what each tree has in it."""

    def __init__(self, seed: int, parts: Parts) -> None:
        self.random = random.Random(seed)
        self.parts = parts
        self.has: set[str] = set()
        self.older: list[Made] = []

    def vector(self, depth: int) -> Made:
        choices = [self.plain, self.embedded, self.low]
        if depth:
            choices = [
                self.mapped,
                self.mapped,
                self.joined,
                self.optional,
                self.chosen,
                *[self.recursive, self.again, self.unused] * 2,
                self.attended,
                self.random.choice([self.recurrent, self.windows, self.zipped, self.stacked, self.padded, self.composed]),
            ]
        made = self.random.choice(choices)(depth - 1)
        self.older.append(made)
        return made

    def plain(self, depth: int) -> Made:
        return wb.Vector(3, "float64"), lambda r: [r.uniform(-1, 1) for _ in range(3)]

    def embedded(self, depth: int) -> Made:
        self.has.add("several dtypes")
        return wb.Scalar("int64") >> self.parts.table, lambda r: r.randrange(6)

    def low(self, depth: int) -> Made:
        self.has.add("several dtypes")
        block = wb.Vector(3, "float32") >> wb.Function(doubled) >> wb.Function(torch.Tensor.double)  # exact in float32
        return block, lambda r: [r.uniform(-1, 1) for _ in range(3)]

    def mapped(self, depth: int) -> Made:
        item, data = self.vector(depth)
        endings: list[Callable[[], wb.Block]] = [
            wb.Sum,
            wb.Mean,
            wb.Max,
            wb.Min,
            lambda: wb.Reduce(wb.Function(mix)),
            lambda: wb.Fold(wb.Function(mix), wb.Zeros(VECTOR)),
        ]
        return wb.Map(item) >> self.random.choice(endings)(), self.listed(data)

    def listed(self, data: Data) -> Data:
        def draw(r: random.Random) -> list[Any]:
            count = r.choice([0, 0, 1, 2, 3])
            if not count:
                self.has.add("empty sequences")
            return [data(r) for _ in range(count)]

        return draw

    def joined(self, depth: int) -> Made:
        (a, first), (b, second) = self.vector(depth), self.vector(depth)
        block = wb.Record([("a", a), ("b", b)]) >> wb.Function(mix) >> self.parts.linear
        return block, lambda r: {"a": first(r), "b": second(r)}

    def optional(self, depth: int) -> Made:
        block, data = self.vector(depth)
        return wb.Optional(block), lambda r: None if r.random() < 0.4 else data(r)

    def chosen(self, depth: int) -> Made:
        (a, first), (b, second) = self.vector(depth), self.vector(depth)
        block = wb.OneOf(wb.GetItem(0), (wb.GetItem(1) >> a, wb.GetItem(1) >> b))
        return block, lambda r: (0, first(r)) if r.random() < 0.5 else (-1, second(r))

    def recursive(self, depth: int) -> Made:
        self.has.add("recursion")
        leaf, data = self.vector(min(depth, 0))
        deep = wb.ForwardDeclaration(wb.PyObjectType(), VECTOR)
        inner = wb.Map(deep()) >> wb.Sum() >> self.parts.linear >> wb.Function(torch.tanh)
        deep.resolve_to(wb.OneOf(wb.InputTransform(is_nested), (wb.GetItem("leaf") >> leaf, inner)))

        def nested(r: random.Random, height: int) -> Any:
            if height == 0 or r.random() < 0.3:
                return {"leaf": data(r)}
            return self.listed(lambda r: nested(r, height - 1))(r)

        return deep(), lambda r: nested(r, 4)

    def again(self, depth: int) -> Made:
        """The same block in two places."""
        self.has.add("sharing")
        block, data = self.random.choice(self.older) if self.older else self.vector(0)
        return wb.Record((block, block)) >> wb.Function(mix), lambda r: (data(r), data(r))

    def unused(self, depth: int) -> Made:
        self.has.add("unused parts")
        (kept, first), (dropped, second) = self.vector(depth), self.vector(depth)
        return wb.Record((dropped, kept)) >> wb.GetItem(1), lambda r: (second(r), first(r))

    def attended(self, depth: int) -> Made:
        (query, first), (item, second) = self.vector(0), self.vector(depth)
        many = self.listed(second)
        block = wb.Record((query, wb.Map(item))) >> wb.Attend(wb.Function(dot))
        return block, lambda r: (first(r), many(r))

    def recurrent(self, depth: int) -> Made:
        item, data = self.vector(depth)
        cell = wb.Function(self.parts.cell).set_input_type((VECTOR, VECTOR))
        return wb.Map(item) >> wb.RNN(cell) >> wb.Record((wb.Sum(), wb.Identity())) >> wb.Function(mix), self.listed(data)

    def windows(self, depth: int) -> Made:
        item, data = self.vector(depth)
        return wb.Map(item) >> wb.NGrams(2) >> wb.Map(wb.Function(mix)) >> wb.Sum(), self.listed(data)

    def zipped(self, depth: int) -> Made:
        (one, first), (item, second) = self.vector(depth), self.vector(depth)
        many = self.listed(second)
        pairs = wb.Record((one >> wb.Broadcast(), wb.Map(item))) >> wb.ZipWith(wb.Function(mix)) >> wb.Max()
        return pairs, lambda r: (first(r), many(r))

    def stacked(self, depth: int) -> Made:
        item, data = self.vector(depth)
        return wb.Map(item) >> wb.Stack() >> wb.Function(spread), self.listed(data)

    def padded(self, depth: int) -> Made:
        item, data = self.vector(depth)
        return wb.Map(item) >> wb.Pad(3, 0.5) >> wb.Concat() >> wb.Function(halved), self.listed(data)

    def composed(self, depth: int) -> Made:
        (a, first), (b, second) = self.vector(depth), self.vector(depth)
        whole = wb.Composition()
        with whole.scope():
            one, two = (wb.GetItem(key).reads(whole.input) for key in ("a", "b"))
            left, right = ((wb.Map(part) >> wb.Sum()).reads(each) for part, each in ((a, one), (b, two)))
            whole.output.reads(wb.Function(mix).reads(left, right))
        lists = self.listed(first), self.listed(second)
        return whole, lambda r: {"a": lists[0](r), "b": lists[1](r)}

    def tree(self) -> Made:
        """A block that gives a vector, a number, a tuple or a sequence."""
        block, data = self.vector(3)
        ending = self.random.randrange(4)
        if ending == 0:
            return block >> wb.Function(total), data
        if ending == 1:
            return wb.AllOf(block, wb.InputTransform(str) >> wb.Length("int64")), data
        if ending == 2:
            return wb.Map(block), self.listed(data)
        return block, data


def is_nested(x: Any) -> bool:
    return is_list(x)


@pytest.mark.parametrize("group", range(TREES // GROUP))
def test_random_blocks(group: int) -> None:
    parts, r = Parts(), random.Random(group)
    makers = [Trees(group * GROUP + number, parts) for number in range(GROUP)]
    made = [maker.tree() for maker in makers]
    blocks = [block for block, _ in made]
    examples = [tuple(data(r) for _, data in made) for _ in range(EXAMPLES)]
    root = wb.Record(tuple(blocks))
    together = wb.compile(root, **OPTIONS[group % len(OPTIONS)])
    together.stack = False
    got = together(examples)
    wanted = [tuple(block.eval_one(x) for block, x in zip(blocks, example, strict=True)) for example in examples]
    assert_equal(got, wanted)
    mine = gradients(root, leaves(got))
    assert_same_gradients(mine, gradients(root, leaves(wanted)))
    shares = Counter(kind for maker in makers for kind in maker.has)
    for kind in ("sharing", "empty sequences", "several dtypes", "recursion", "unused parts"):
        assert shares[kind] >= 0.2 * GROUP, shares
