"""Networks for nested JSON records, made from examples."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from weft.blocks.block import Block
from weft.blocks.choice import OneOf
from weft.blocks.compose import AllOf, Pipe
from weft.blocks.constants import OneHotFromList, Scalar
from weft.blocks.emit import Emitter, Value, Writing
from weft.blocks.functions import Concat
from weft.blocks.indexing import GetItem
from weft.blocks.inference import set_type
from weft.blocks.layers import FC, Embedding
from weft.blocks.leaves import InputTransform, Optional, Zeros
from weft.blocks.reductions import Max, Mean
from weft.blocks.schema import Category, Either, Fields, Items, Number, Schema, Text, kind_of, pieces_of
from weft.blocks.sequences import Map
from weft.blocks.types import PyObjectType, TensorType


class Json(Block):
    """From a nested JSON record to a vector of `dim` numbers, by a network that is made from examples or a schema.

    Numbers are normalised; strings and whole numbers with few values are categories; other strings are seen as words and groups
    of three characters, with one table for all of them; lists become mean, maximum and length; records put their fields side
    by side into one layer. Fields that are missing or null somewhere say so. `Json.schema_of(examples)` is the schema alone:
    print it, change it, and give it instead of examples.

    >>> import weft.blocks as wb
    >>> records = [{"name": "Ann", "marks": [1, 2.5]}, {"name": "Bob", "marks": [], "age": 30}]
    >>> net = wb.Json(records, 8)
    >>> net.eval_one(records[1]).shape
    torch.Size([8])
    """

    _input_classes = (PyObjectType,)
    _output_classes = (TensorType,)

    def __init__(
        self, schema_or_examples: Schema | Sequence[Any], dim: int, keep_prob: float | None = None, *, name: str | None = None
    ) -> None:
        given = schema_or_examples
        schema = given if isinstance(given, Schema) else Schema.of(given)
        made = _Maker(schema, dim, keep_prob)
        super().__init__([made.encoder(schema, outermost=True)], name=name)
        self.schema = schema
        self.__dict__["_constructed"] = ((dim,), {})

    @staticmethod
    def schema_of(examples: Sequence[Any]) -> Schema:
        """What the examples look like."""
        return Schema.of(examples)

    def _update(self) -> None:
        (encoder,) = self.subblocks
        for side in ("input", "output"):
            if encoder._types[side] is not None:
                set_type(self, side, encoder._types[side])

    def _emit(self, e: Emitter, x: Value) -> Writing:
        return (yield self.subblocks[0], x)


class _Maker:
    """Makes blocks for the parts of a schema. Blocks give vectors, or numbers that count as vectors of one."""

    def __init__(self, schema: Schema, dim: int, keep_prob: float | None) -> None:
        self.dim, self.keep_prob = dim, keep_prob
        pieces = {piece for part in schema.parts() if isinstance(part, Text) for piece in part.pieces}
        self.numbers = {piece: number for number, piece in enumerate(sorted(pieces))}
        self.table = Embedding(max(1, len(pieces)), dim)

    def encoder(self, schema: Schema, outermost: bool = False) -> Block:
        block = self._of(schema)
        if schema.optional:
            block = AllOf(Optional(block), InputTransform(_is_there) >> Scalar()) >> Concat()
        if outermost and not (isinstance(schema, Fields) and not schema.optional):
            block = AllOf(block) >> Concat() >> self._layer()
        return block

    def _vector(self, schema: Schema) -> Block:
        block = self.encoder(schema)
        type = block.output_type
        return block if isinstance(type, TensorType) and type.ndim == 1 else AllOf(block) >> Concat()

    def _layer(self) -> FC:
        return FC(self.dim, output_keep_prob=self.keep_prob)

    def _of(self, schema: Schema) -> Block:
        if isinstance(schema, Number):
            return InputTransform(_Normalise(schema.mean, schema.deviation)) >> Scalar()
        if isinstance(schema, Category):
            return OneHotFromList(schema.values or [None], strict=False)
        if isinstance(schema, Text):
            return InputTransform(_Pieces(self.numbers, schema.pieces)) >> Map(Scalar("int64") >> self.table) >> Mean()
        if isinstance(schema, Items):
            return self._items(schema)
        if isinstance(schema, Fields):
            fields = [self._field(name, part) for name, part in schema.fields.items()]
            return AllOf(*fields or [InputTransform(_nothing) >> Scalar()]) >> Concat() >> self._layer()
        assert isinstance(schema, Either)
        return self._either(schema)

    def _field(self, name: str, schema: Schema) -> Block:
        item = InputTransform(operator.methodcaller("get", name)) if schema.optional else GetItem(name)
        return Pipe(item, self.encoder(schema), name=name if name.isidentifier() else None)

    def _items(self, schema: Items) -> Block:
        item = self._vector(schema.item)
        length = InputTransform(_log_length) >> Scalar()
        return AllOf(Map(item) >> AllOf(Mean(), Max()) >> Concat(), length) >> Concat()

    def _either(self, schema: Either) -> Block:
        """A vector of `dim` for each kind, and which kind it was."""
        cases: dict[str, Any] = {kind: self._vector(part) >> self._layer() for kind, part in schema.kinds.items()}
        which = InputTransform(kind_of) >> OneHotFromList(list(cases), strict=False)
        known = OneOf(_Known(tuple(cases)), {**cases, "other": Zeros(TensorType([self.dim]))})
        return AllOf(known, which) >> Concat()


class _Known:
    """The kind of a value, or "other" for a kind that no example had."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self.kinds = kinds

    def __call__(self, value: Any) -> str:
        kind = kind_of(value)
        return kind if kind in self.kinds else "other"


class _Normalise:
    """To mean 0 and deviation 1, and no further out than 5; what is no number counts as the mean."""

    def __init__(self, mean: float, deviation: float) -> None:
        self.mean, self.deviation = mean, deviation

    def __call__(self, value: Any) -> float:
        try:
            number = (float(value) - self.mean) / self.deviation
        except (TypeError, ValueError):
            return 0.0
        return max(-5.0, min(5.0, number)) if number == number else 0.0


class _Pieces:
    """The numbers of the pieces of a text that are known."""

    def __init__(self, numbers: dict[str, int], known: Sequence[str]) -> None:
        self.numbers = {piece: numbers[piece] for piece in known}

    def __call__(self, value: Any) -> list[int]:
        numbers = self.numbers
        return [numbers[piece] for piece in pieces_of(value) if piece in numbers]


def _is_there(value: Any) -> float:
    return 0.0 if value is None else 1.0


def _nothing(value: Any) -> float:
    return 0.0


def _log_length(value: Any) -> float:
    return math.log1p(len(value))
