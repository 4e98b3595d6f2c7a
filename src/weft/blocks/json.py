"""Networks for nested JSON records, made from examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn

from weft.blocks import reading
from weft.blocks.block import Block
from weft.blocks.checks import is_integer
from weft.blocks.choice import OneOf
from weft.blocks.compose import AllOf, Pipe
from weft.blocks.constants import OneHotFromList, Scalar
from weft.blocks.emit import Emitter, Value, Writing
from weft.blocks.functions import Function
from weft.blocks.inference import set_type
from weft.blocks.json_parts import FieldOf, GatedLayer, Read, side_by_side
from weft.blocks.layers import Embedding
from weft.blocks.leaves import Optional, Zeros
from weft.blocks.reductions import Max, Mean, Sum
from weft.blocks.schema import Category, Either, Fields, Items, Key, Number, Schema, Text, check_schema
from weft.blocks.sequences import Map
from weft.blocks.show import shortened
from weft.blocks.types import PyObjectType, TensorType
from weft.errors import ShapeError, TypeMismatch


class Json(Block):
    """From a nested JSON record to a vector of `dim` numbers, by a network that is made from examples or a schema.

    Numbers are normalised; strings and whole numbers with few values are categories; other strings are seen as words and groups
    of three characters, with one table for all of them; lists become mean, maximum and length; records put their fields side
    by side into one layer, each with a gate. What is missing or null counts as zeros. `Json.schema_of(examples)` is the schema
    alone: print it, change it, and give it instead of examples.

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
        _check_settings(dim, keep_prob)
        given = schema_or_examples
        schema = given if isinstance(given, Schema) else Schema.of(given)
        check_schema(schema)
        super().__init__([_Maker(schema, dim, keep_prob).whole()], name=name)
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


def _check_settings(dim: Any, keep_prob: Any) -> None:
    if not is_integer(dim):
        raise TypeMismatch(f"Json: dim: expected a whole number, got {shortened(dim, 60)}")
    if dim < 1:
        raise ShapeError(f"Json: dim: expected at least 1, got {dim}")
    if keep_prob is not None and (not isinstance(keep_prob, int | float) or not 0 < keep_prob <= 1):
        raise TypeMismatch(f"Json: keep_prob: expected None or a number above 0 and at most 1, got {shortened(keep_prob, 60)}")


class _Made(NamedTuple):
    """A block that gives a tensor, or nested tuples of tensors, of `size` numbers together."""

    block: Block
    size: int
    nested: bool = False

    def vector(self) -> Block:
        return self.block >> Function(side_by_side) if self.nested else self.block


class _Maker:
    """Makes blocks for the parts of a schema, the innermost first. Of what says nothing, none is made."""

    def __init__(self, schema: Schema, dim: int, keep_prob: float | None) -> None:
        self.schema, self.dim, self.keep_prob = schema, dim, keep_prob
        pieces = {piece for part in schema.parts() if isinstance(part, Text) for piece in part.pieces}
        self.numbers = {piece: number for number, piece in enumerate(sorted(pieces))}
        self.table = Embedding(max(1, len(pieces)), dim)
        self.made: dict[int, _Made | None] = {}

    def whole(self) -> Block:
        """The block of the outermost part: a vector of `dim`."""
        for part in reversed(list(self.schema.parts())):
            self.made[id(part)] = self._with_presence(part, self._of(part))
        made = self.made[id(self.schema)]
        if made is None:
            return Read(reading.nothing) >> Scalar() >> self._layer([1])
        if isinstance(self.schema, Fields) and not self.schema.optional:
            return made.block
        return AllOf(made.block) >> self._layer([made.size])

    def _layer(self, sizes: list[int]) -> nn.Module:
        return GatedLayer(sizes, self.dim, self.keep_prob)

    def _with_presence(self, schema: Schema, made: _Made | None) -> _Made | None:
        """Where something may be missing, a number more that says whether it is there."""
        if not schema.optional or isinstance(schema, Key):
            return made
        there = Read(reading.is_number if isinstance(schema, Number) else reading.is_there) >> Scalar()
        return _Made(there, 1) if made is None else _Made(AllOf(made.block, there), made.size + 1, True)

    def _of(self, schema: Schema) -> _Made | None:
        if isinstance(schema, Number):
            return _Made(_scalar(schema), 1)
        if isinstance(schema, Category):
            values = schema.values
            return _Made(Read(reading.simple) >> OneHotFromList(values, strict=False), len(values)) if len(values) > 1 else None
        if isinstance(schema, Text):
            return self._text(schema) if schema.pieces else None
        if isinstance(schema, Items):
            return self._items(schema)
        if isinstance(schema, Fields):
            return self._fields(schema)
        return self._either(schema) if isinstance(schema, Either) else None

    def _text(self, schema: Text) -> _Made:
        known = reading.AsPieces({piece: self.numbers[piece] for piece in schema.pieces})
        return _Made(Read(known) >> Map(Scalar("int64") >> self.table) >> Mean(), self.dim)

    def _fields(self, schema: Fields) -> _Made | None:
        found = [(name, self.made[id(part)]) for name, part in schema.fields.items()]
        speaking = [(name, made) for name, made in found if made is not None]
        if not speaking:
            return None
        may_be_missing = schema is not self.schema or schema.optional
        all_optional = all(part.optional for part in schema.fields.values())
        whole = Read(reading.AsRecord(schema.fields, all_optional, may_be_missing))
        fields = [Pipe(FieldOf(name), made.block, name=_block_name(name)) for name, made in speaking]
        block = AllOf(*fields) >> self._layer([made.size for _, made in speaking])
        return _Made(whole >> (Optional(block) if may_be_missing else block), self.dim)

    def _items(self, schema: Items) -> _Made | None:
        """Mean and maximum, or just the item where there is never more than one; the length where it varies."""
        item, parts, size = self._item(schema.item), list[Block](), 0
        if item is not None and schema.longest is not None and schema.longest <= 1:
            parts, size = [Map(item.vector()) >> Sum()], item.size
        elif item is not None:
            parts, size = [Map(item.vector()) >> AllOf(Mean(), Max())], 2 * item.size
        if schema.shortest != schema.longest:
            parts, size = [*parts, Read(reading.log_length) >> Scalar()], size + 1
        return _Made(Read(reading.as_list) >> AllOf(*parts), size, True) if parts else None

    def _item(self, schema: Schema) -> _Made | None:
        """An item of a list. One that is a list of lists becomes a vector of `dim`.

        A list is more than twice as wide as its items, so that lists in lists in lists would grow without bound.
        """
        made = self.made[id(schema)]
        if made is None or not (isinstance(schema, Items) and isinstance(schema.item, Items)):
            return made
        return _Made(AllOf(made.block) >> self._layer([made.size]), self.dim)

    def _either(self, schema: Either) -> _Made:
        """A vector of `dim` for each kind, and which kind it was."""
        cases: dict[str, Any] = {"other": Zeros(TensorType([self.dim]))}
        for kind, part in schema.kinds.items():
            made = self.made[id(part)]
            if made is not None:
                cases[kind] = AllOf(made.block) >> self._layer([made.size])
        which = Read(reading.KnownKind(tuple(schema.kinds))) >> OneHotFromList(list(schema.kinds) or [None], strict=False)
        known = OneOf(reading.KnownKind(tuple(cases)), cases)
        return _Made(AllOf(known, which), self.dim + max(1, len(schema.kinds)), True)


def _scalar(schema: Number) -> Block:
    return Read(reading.AsNumber(schema.mean, schema.deviation, schema.logarithmic, schema.code_points)) >> Scalar()


def _block_name(name: Any) -> str | None:
    return name if isinstance(name, str) and name.isidentifier() else None
