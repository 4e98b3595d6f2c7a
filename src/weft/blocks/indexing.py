"""Sequences put side by side, and items picked out of them."""

from __future__ import annotations

import itertools
import operator
from typing import Any

from weft.blocks.block import Block
from weft.blocks.checks import as_integer, check_count, is_integer
from weft.blocks.compose import Pipe, literal, missing
from weft.blocks.constants import brief
from weft.blocks.emit import Emitter, Value
from weft.blocks.inference import set_type
from weft.blocks.sequences import SEQUENCE_LIKE, Map, items_of, not_iterable
from weft.blocks.types import BroadcastSequenceType, PyObjectType, SequenceType, TupleType
from weft.errors import TypeMismatch, WeftError


class Broadcast(Block):
    """An endless sequence of its input, to be zipped with others.

    >>> import torch, weft.blocks as wb
    >>> pair = wb.AllOf(wb.GetItem("xs") >> wb.Map(wb.Scalar()), wb.GetItem("y") >> wb.Scalar() >> wb.Broadcast())
    >>> net = pair >> wb.ZipWith(wb.Function(torch.mul))
    >>> net.eval_one({"xs": [1, 2], "y": 10}, tolist=True)
    [10.0, 20.0]
    """

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=name)

    def _update(self) -> None:
        if self.input_type is not None:
            set_type(self, "output", BroadcastSequenceType(self.input_type))
        elif isinstance(self.output_type, BroadcastSequenceType):
            set_type(self, "input", self.output_type.element_type)

    def _emit(self, e: Emitter, x: Value) -> Value:
        if isinstance(self.output_type, PyObjectType):
            return e.let(f"{e.object(itertools.repeat)}({x})", x.place)
        return e.settled(x, self._known("input"))


class Zip(Block):
    """From a tuple of sequences to a sequence of tuples, as long as the shortest.

    >>> import weft.blocks as wb
    >>> (wb.AllOf(wb.Map(wb.Scalar()), wb.Map(wb.Scalar("int64"))) >> wb.Zip()).eval_one([1, 2], tolist=True)
    [(1.0, 1), (2.0, 2)]
    """

    _input_classes = (TupleType, PyObjectType)

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=name)

    def _update(self) -> None:
        given = self.input_type
        if isinstance(given, PyObjectType):
            set_type(self, "output", PyObjectType())
        elif isinstance(given, TupleType):
            if not len(given):
                raise self._mismatch("input type: expected at least one sequence, got TupleType()")
            if not all(isinstance(item, SEQUENCE_LIKE) for item in given):
                raise self._mismatch(f"input type: expected a tuple of sequences, got {given!r}")
            items = [items_of(self, item, endless=True) for item in given]
            endless = all(isinstance(item, BroadcastSequenceType) for item in given)
            set_type(self, "output", (BroadcastSequenceType if endless else SequenceType)(TupleType(*items)))

    def _emit(self, e: Emitter, x: Value) -> Value:
        given = self._known("input")
        if isinstance(given, PyObjectType):
            return e.let(f"list(zip(*{x}))", x.place)
        if isinstance(self.output_type, BroadcastSequenceType):
            return x
        assert isinstance(given, TupleType)
        rows = []
        for part, type in zip(x, given, strict=True):
            if isinstance(type, BroadcastSequenceType):
                rows.append(f"{e.object(itertools.repeat)}({e.pack(part, type.element_type)})")
            elif isinstance(type, PyObjectType) and e.traced:
                rows.append(f"[(i, ({part.place}, n)) for n, i in enumerate({part})]")
            else:
                rows.append(e.listed(part, type))
        return e.let(f"list(zip({', '.join(rows)}))")

    def _explain(self, error: Exception, value: Any) -> Exception | None:
        return next(filter(None, map(not_iterable, (value, *(value if isinstance(value, tuple | list) else ())))), None)


def ZipWith(elem_block: Any, *, name: str | None = None) -> Block:
    """`Zip() >> Map(elem_block)`.

    >>> import torch, weft.blocks as wb
    >>> (wb.AllOf(wb.Map(wb.Scalar()), wb.Map(wb.Scalar())) >> wb.ZipWith(wb.Function(torch.add))).eval_one([1, 2], tolist=True)
    [2.0, 4.0]
    """
    return Pipe(Zip(), Map(elem_block), name=name)


class NGrams(Block):
    """All windows of `n` neighbours, as tuples.

    >>> import weft.blocks as wb
    >>> (wb.Map(wb.Scalar()) >> wb.NGrams(2)).eval_one([1, 2, 3], tolist=True)
    [(1.0, 2.0), (2.0, 3.0)]
    """

    _input_classes = SEQUENCE_LIKE

    def __init__(self, n: int, *, name: str | None = None) -> None:
        super().__init__(name=name)
        check_count(self.name, "n", n)
        self._n = int(n)

    def _update(self) -> None:
        if self.input_type is not None:
            item = items_of(self, self.input_type, endless=True)
            endless = isinstance(self.input_type, BroadcastSequenceType)
            set_type(self, "output", (BroadcastSequenceType if endless else SequenceType)(TupleType(*[item] * self._n)))

    def _emit(self, e: Emitter, x: Value) -> Value:
        if isinstance(self._known("input"), BroadcastSequenceType):
            return (x,) * self._n
        rows = e.let(f"list({e.listed(x, self._known('input'))})")
        found = f"list(zip({', '.join(f'{rows}[{place}:]' for place in range(self._n))}))"
        return e.let(found, x.place if isinstance(self.output_type, PyObjectType) else "''")

    def _explain(self, error: Exception, value: Any) -> Exception | None:
        return not_iterable(value)


class Nth(Block):
    """One item of a sequence, from `(sequence, index)`; the index is a Python number and may be negative.

    >>> import weft.blocks as wb
    >>> net = wb.AllOf(wb.GetItem("xs") >> wb.Map(wb.Scalar()), wb.GetItem("n")) >> wb.Nth()
    >>> net.eval_one({"xs": [5, 6, 7], "n": -1})
    tensor(7.)
    """

    _input_classes = (TupleType, PyObjectType)

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=name)

    def _update(self) -> None:
        given = self.input_type
        if isinstance(given, PyObjectType):
            set_type(self, "output", PyObjectType())
        elif given is not None:
            if not isinstance(given, TupleType) or len(given) != 2 or not isinstance(given[1], PyObjectType):
                raise self._mismatch(f"input type: expected a tuple of a sequence and a Python number, got {given!r}")
            set_type(self, "output", items_of(self, given[0]))

    def _emit(self, e: Emitter, x: Value) -> Value:
        given = self._known("input")
        if isinstance(given, PyObjectType):
            return e.let(f"{x}[0][{x}[1]]", x.place)
        assert isinstance(given, TupleType)
        at = f"{x[1]} if type({x[1]}) is int else {e.object(_whole_number)}({x[1]})"
        return e.unpack(e.let(f"{e.listed(x[0], given[0])}[{at}]"), self._known("output"))

    def _explain(self, error: Exception, value: Any) -> Exception | None:
        if isinstance(error, WeftError):
            return error
        if not isinstance(value, tuple | list) or len(value) != 2:
            return TypeMismatch(f"expected a pair of a sequence and the number of an item, got {brief(value)}")
        return missing(value[0], [value[1]])


def _whole_number(x: Any) -> int:
    """What can index a list: integers, of numpy and tensors too."""
    try:
        return operator.index(x)
    except TypeError:
        raise TypeMismatch(f"expected an integer as the number of an item, got {brief(x)}") from None


class GetItem(Block):
    """`x[key]` of a Python object, tuple or sequence; the key may be a slice.

    >>> import weft.blocks as wb
    >>> (wb.GetItem("age") >> wb.Scalar()).eval_one({"age": 30})
    tensor(30.)
    """

    _input_classes = SEQUENCE_LIKE

    def __init__(self, key: Any, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self._key = int(key) if is_integer(key) and not isinstance(key, int) else key

    def _update(self) -> None:
        given, key = self.input_type, self._key
        if given is None:
            if not isinstance(key, int | slice):
                set_type(self, "input", PyObjectType())
        elif isinstance(given, PyObjectType):
            set_type(self, "output", PyObjectType())
        elif isinstance(given, TupleType):
            if not isinstance(key, int | slice) or (isinstance(key, int) and not -len(given) <= key < len(given)):
                raise self._mismatch(f"{key!r} is not an item of {given!r}")
            set_type(self, "output", given[key])
        else:
            item = items_of(self, given)
            if not isinstance(key, int | slice):
                raise self._mismatch(f"the items of a sequence are numbered, got the key {key!r}")
            set_type(self, "output", given if isinstance(key, slice) else item)

    def _emit(self, e: Emitter, x: Value) -> Value:
        given = self._known("input")
        if isinstance(given, TupleType):
            return x[self._key]
        place = (
            f"({x.place}, {literal(e, self._key)})"
            if isinstance(given, PyObjectType) and not isinstance(self._key, slice)
            else x.place
        )
        found = e.let(f"{x}[{literal(e, self._key)}]", place)
        return found if isinstance(given, PyObjectType) else e.unpack(found, self._known("output"))

    def _explain(self, error: Exception, value: Any) -> Exception | None:
        return missing(value, [self._key])


def Slice(
    *args: Any, start: int | None = None, stop: int | None = None, step: int | None = None, name: str | None = None
) -> Block:
    """`x[start:stop:step]`.

    >>> import weft.blocks as wb
    >>> (wb.Map(wb.Scalar()) >> wb.Slice(start=1)).eval_one([1, 2, 3], tolist=True)
    [2.0, 3.0]
    """
    if args:
        raise TypeMismatch("Slice: say start=, stop= and step= by name")
    given = {"start": start, "stop": stop, "step": step}
    for what, number in given.items():
        if number is not None:
            as_integer("Slice", what, number)
    if step == 0:
        raise ValueError("Slice: step: expected an integer other than 0, got 0")
    return GetItem(slice(start, stop, step), name=name).set_constructor_name_args("Slice", (), given)
