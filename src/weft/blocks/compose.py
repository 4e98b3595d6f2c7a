"""Blocks made of blocks: one after the other, and side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from weft.blocks.block import Block, convert_to_block
from weft.blocks.constants import brief
from weft.blocks.emit import Emitter, Value, Writing
from weft.blocks.faults import MissingIndex, NoOrder
from weft.blocks.inference import bad_type, set_type
from weft.blocks.leaves import Identity
from weft.blocks.show import text_of
from weft.blocks.types import PyObjectType, ResultType, TupleType, VoidType
from weft.blocks.wiring import merged
from weft.errors import MissingKey, TypeMismatch


class _Pipe(Block):
    """Blocks one after the other."""

    def __init__(self, blocks: list[Block], name: str | None) -> None:
        super().__init__(blocks, name=name)
        self.__dict__["_constructed"] = ((), {})
        self.__dict__["_constructor_name"] = "Pipe"

    @property
    def name(self) -> str:
        return self._given_name or "Pipe"

    def _update(self) -> None:
        parts = self.subblocks
        links = [(self, "input", parts[0], "input"), (parts[-1], "output", self, "output")]
        links += [(one, "output", two, "input") for one, two in pairwise(parts)]
        for one, a, two, b in links:
            for left, side, right, its in ((one, a, two, b), (two, b, one, a)):
                if left._types[side] is not None:
                    set_type(right, its, left._types[side])

    def _passed_on(self) -> Iterable[Block]:
        return self.subblocks[:1]

    def _emit(self, e: Emitter, x: Value) -> Writing:
        for part in self.subblocks:
            x = yield part, x
        return x


def Pipe(*blocks: Any, name: str | None = None) -> Block:
    """Blocks one after the other, as `a >> b >> c`. Identities are dropped; of one block it is that very block.

    >>> import torch, weft.blocks as wb
    >>> wb.Pipe(wb.Scalar(), wb.Function(torch.neg)).eval_one(1)
    tensor(-1.)
    """
    parts: list[Block] = []
    for block in map(convert_to_block, blocks):
        if isinstance(block, _Pipe) and block._given_name is None:
            parts += block.subblocks
        elif not (type(block) is Identity and block._given_name is None):
            parts.append(block)
    if len(parts) > 1:
        return _Pipe(parts, name)
    if not parts:
        return Identity(name=name)
    return parts[0]


def named_blocks(given: Any) -> list[tuple[Any, Any]]:
    """(key, block) pairs from a dict, a list of pairs, or a tuple or list of blocks, whose keys are their positions."""
    if isinstance(given, dict):
        return list(given.items())
    items = list(given)
    if isinstance(given, list) and items and all(isinstance(item, tuple) and len(item) == 2 for item in items):
        return items
    return list(enumerate(items))


class Record(Block):
    """Each part gets one item of the input, by key; the result is a tuple.

    From a dict (sorted by key unless it is an OrderedDict), a list of (key, block) pairs, or a tuple of blocks for the items
    0, 1, ... A tuple as input is taken apart by position.

    >>> import weft.blocks as wb
    >>> wb.Record({"b": wb.Scalar(), "a": wb.Scalar("int64")}).eval_one({"a": 1, "b": 2})
    (tensor(1), tensor(2.))
    """

    _output_classes = (TupleType, PyObjectType)

    def __init__(self, named_children: Any, *, name: str | None = None) -> None:
        if not isinstance(named_children, dict | list | tuple):
            raise TypeMismatch(f"Record: expected a dict, a list of pairs or a tuple of blocks, got {named_children!r}")
        pairs = named_blocks(named_children)
        self_sorted = type(named_children) is dict
        if self_sorted:
            pairs.sort(key=lambda pair: _sortable(pair[0]))
        super().__init__([block for _, block in pairs], name=name)
        self._keys = [key for key, _ in pairs]
        self._by_name = self_sorted

    def _update(self) -> None:
        parts, given = self.subblocks, self.input_type
        if isinstance(given, PyObjectType):
            for part in parts:
                if not isinstance(part.input_type, VoidType):
                    set_type(part, "input", PyObjectType())
        elif isinstance(given, TupleType):
            if len(given) != len(parts):
                raise self._mismatch(f"input type: expected a tuple of {len(parts)}, got {given!r}")
            for part, type in zip(parts, given, strict=True):
                set_type(part, "input", type)
        elif given is not None:
            if not isinstance(given, VoidType) or not self._needs_no_input():
                raise bad_type(self, "input", given, "PyObjectType or TupleType")
        else:
            self._from_parts()
        outputs = [part.output_type for part in parts]
        if None not in outputs:
            set_type(self, "output", TupleType(*outputs))
        elif isinstance(self.output_type, TupleType) and len(self.output_type) == len(parts):
            for part, type in zip(parts, self.output_type, strict=True):
                set_type(part, "output", type)

    def _from_parts(self) -> None:
        inputs = [part.input_type for part in self.subblocks]
        if not inputs or (self._needs_no_input() and not self._by_name):
            return
        if self._by_name or all(isinstance(type, PyObjectType | VoidType) for type in inputs):
            set_type(self, "input", PyObjectType())
        elif None not in inputs:
            set_type(self, "input", TupleType(*inputs))

    def _needs_no_input(self) -> bool:
        """Whether every part is there without any: tensors, zeros."""
        return bool(self.subblocks) and all(isinstance(part.input_type, VoidType) for part in self.subblocks)

    def _differs(self, side: str, ours: ResultType, theirs: ResultType) -> TypeMismatch:
        if side == "input" and self._by_name and isinstance(theirs, TupleType):
            return NoOrder(
                f"{self._path()}: a Record from a plain dict has no order, so it takes no tuple; got {theirs!r}; "
                "make it from a list of pairs"
            )
        return super()._differs(side, ours, theirs)

    def _emit(self, e: Emitter, x: Value) -> Writing:
        found = []
        for place, (key, part) in enumerate(zip(self._keys, self.subblocks, strict=True)):
            if isinstance(part._known("input"), VoidType):
                item = None
            elif isinstance(self._known("input"), PyObjectType):
                item = e.let(f"{x}[{literal(e, key)}]", f"({x.place}, {literal(e, key)})")
            else:
                item = x[place]
            found.append((yield part, item))
        return merged(e, tuple(found), self._known("output"))

    def _explain(self, error: Exception, value: Any) -> Exception | None:
        return missing(value, self._keys)

    def _item_position(self, key: Any) -> Any:
        return self._keys.index(key) if key in self._keys else key

    def _labels(self) -> Iterator[tuple[str, Block]]:
        yield from ((str(key), part) for key, part in zip(self._keys, self.subblocks, strict=True))

    def _named(self) -> list[tuple[str, Block]]:
        given = [
            (part._given_name or _identifier(key, place), part)
            for place, (key, part) in enumerate(zip(self._keys, self.subblocks, strict=True))
        ]
        names = [name for name, _ in given]
        return [(name if names.count(name) == 1 else f"{name}_{place}", part) for place, (name, part) in enumerate(given)]


def _identifier(key: Any, place: int) -> str:
    return str.__str__(key) if isinstance(key, str) and key.isidentifier() else str(place)


def _sortable(key: Any) -> Any:
    return (str(type(key)), key) if isinstance(key, str | int | float | tuple) else (str(type(key)), repr(key))


def literal(e: Emitter, key: Any) -> str:
    return repr(key) if isinstance(key, str | int) and type(key) in (str, int) else e.object(key)


def missing(value: Any, keys: list[Any]) -> Exception | None:
    """What a failed `value[key]` means; None where it is an error of the user's own."""
    for key in keys:
        try:
            value[key]
        except KeyError:
            shown = ", ".join(map(text_of, list(value)[:8])) if hasattr(value, "__iter__") else "none"
            return MissingKey(f"expected the key {text_of(key)}, found {shown or 'none'}")
        except IndexError:
            found = f"{len(value)} items" if hasattr(value, "__len__") else "none"
            return MissingIndex(f"expected an item {text_of(key)}, found {found}")
        except TypeError:
            return TypeMismatch(f"expected something with an item {text_of(key)}, got {brief(value)}")
        except Exception:
            return None
    return None


class AllOf(Block):
    """The same input to every part; the result is a tuple.

    >>> import weft.blocks as wb
    >>> wb.AllOf(wb.Scalar(), wb.Length()).set_input_type(wb.PyObjectType()).subblocks
    (<wb.Scalar>, <wb.Length>)
    """

    def __init__(self, *blocks: Any, name: str | None = None) -> None:
        super().__init__(blocks, name=name)

    def _update(self) -> None:
        parts = self.subblocks
        if not parts:
            set_type(self, "output", VoidType())
            return
        takers = [part for part in parts if not isinstance(part.input_type, VoidType)]
        for one in (self, *takers):
            if one.input_type is not None and (one is not self or not isinstance(one.input_type, VoidType)):
                for other in (self, *takers):
                    set_type(other, "input", one.input_type)
        if not takers:
            if self.input_type is None:
                set_type(self, "input", VoidType())
        outputs = [part.output_type for part in parts]
        if None not in outputs:
            set_type(self, "output", TupleType(*outputs))

    def _passed_on(self) -> Iterable[Block]:
        return self.subblocks

    def _emit(self, e: Emitter, x: Value) -> Writing:
        if not self.subblocks:
            return None
        if self._known("input") and len(self.subblocks) > 1:
            x = e.settled(x, self._known("input"))
        found = []
        for part in self.subblocks:
            found.append((yield part, None if isinstance(part._known("input"), VoidType) else x))
        return merged(e, tuple(found), self._known("output"))
