"""Blocks become Python source: one function that records the calls of one example.

Blocks are static, so what they do to an example is straight code with loops and branches. Tuples exist only while the code is
written; values of tensor type are references to calls, kept in local variables. A part that refers back to itself, is used in
several places or is nested too deep becomes a function of its own: a generator, which hands the next function and its
argument to the loop that runs them all (`weft.blocks.building`). Nothing here or there recurses.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from weft.blocks.kinds import Constant, Kind, Kinds, constant_kind
from weft.blocks.types import (
    BroadcastSequenceType,
    PyObjectType,
    ResultType,
    SequenceType,
    TensorType,
    TupleType,
    VoidType,
)
from weft.graph.recording import OUTPUT_BITS

if TYPE_CHECKING:
    from weft.blocks.block import Block

Value = Any
"""While code is written: a `Name` of a tensor, sequence or Python object, a `Constant`, a tuple of values, None for nothing.

The value of an endless sequence is the value of its one item."""

Writing = Generator[tuple["Block", Value], Value, Value]
"""What a block's `_emit` returns where it has parts: it yields (part, input) and is sent that part's output."""

DEEPEST = 12
"""More levels of indentation than this go to another function; Python allows 20 nested loops."""


class Name(str):
    """A variable. While errors are being looked for, `place` names another that says where in the example the value is:
    `''` for the example itself, else (place of what it is an item of, key)."""

    place: str = "''"

    def __new__(cls, text: str, place: str = "''") -> Name:
        made = super().__new__(cls, text)
        made.place = place
        return made


class Emitter:
    """Writes the functions of one root block."""

    def __init__(self, shared: set[Block], waiting: set[Block], traced: bool) -> None:
        self.shared, self.waiting, self.traced = shared, waiting, traced
        self.kinds = Kinds([], {})
        self.objects: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}
        self._labelled: dict[str, bool] = {}
        self.blocks: list[Block] = []
        self.value_dependent: Block | None = None
        self.units: dict[Block, str] = {}
        self.pending: list[Block] = []
        self.lines: list[str] = []
        self.indent = 0
        self._count = 0
        self._names: dict[int, str] = {}

    def fresh(self, letter: str = "v") -> str:
        self._count += 1
        return f"{letter}{self._count}"

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def let(self, expression: str, place: str = "''") -> Name:
        """A new variable."""
        name = self.fresh()
        self.line(f"{name} = {expression}")
        return self.placed(name, place)

    def placed(self, name: str, place: str) -> Name:
        if not self.traced or place == "''":
            return Name(name)
        where = self.fresh("p")
        self.line(f"{where} = {place}")
        return Name(name, where)

    def object(self, value: Any) -> str:
        """A name for any object that the code needs."""
        found = self._names.get(id(value))
        if found is None:
            found = self._names[id(value)] = f"K{len(self.objects)}"
            self.objects[found] = value
        return found

    @contextmanager
    def under(self, header: str) -> Iterator[None]:
        self.line(header)
        self.indent += 1
        yield
        self.indent -= 1

    @contextmanager
    def loop(self, x: Value, type: ResultType) -> Iterator[Value]:
        """Code for each item of a sequence, tuple or Python object."""
        if isinstance(type, PyObjectType):
            item = self.fresh()
            if self.traced:
                number = self.fresh("i")
                with self.under(f"for {number}, {item} in enumerate({x}):"):
                    yield self.placed(item, f"({x.place}, {number})")
            else:
                with self.under(f"for {item} in {x}:"):
                    yield Name(item)
            return
        item = self.fresh()
        with self.under(f"for {item} in {self.listed(x, type)}:"):
            yield self.unpack(item, element_of(type))

    def listed(self, x: Value, type: ResultType) -> str:
        """A runtime list or tuple of the items."""
        if isinstance(type, TupleType):
            return f"({''.join(self.pack(part, kind) + ', ' for part, kind in zip(x, type, strict=True))})"
        return str(x)

    def pack(self, value: Value, type: ResultType) -> str:
        """An expression for the value as one object, to go into a list or to another function."""
        if isinstance(type, TupleType):
            return f"({''.join(self.pack(part, kind) + ', ' for part, kind in zip(value, type, strict=True))})"
        if isinstance(type, VoidType):
            return "None"
        if isinstance(type, BroadcastSequenceType):
            return self.pack(value, type.element_type)
        if isinstance(type, PyObjectType) and self.traced:
            return f"({value}, {value.place})"
        return self.reference(value)

    def unpack(self, name: str, type: ResultType) -> Value:
        """The inverse of `pack`."""
        if isinstance(type, TupleType):
            parts = [self.fresh() for _ in type]
            if parts:
                self.line(f"{', '.join(parts)}, = {name}")
            return tuple(self.unpack(part, kind) for part, kind in zip(parts, type, strict=True))
        if isinstance(type, VoidType):
            return None
        if isinstance(type, BroadcastSequenceType):
            return self.unpack(name, type.element_type)
        if isinstance(type, PyObjectType) and self.traced:
            made = Name(self.fresh(), self.fresh("p"))
            self.line(f"{made}, {made.place} = {name}")
            return made
        return Name(name)

    def variables(self, type: ResultType) -> Value:
        """New variables for a value of this type, to be set by `assign`."""
        if isinstance(type, TupleType):
            return tuple(self.variables(item) for item in type)
        if isinstance(type, VoidType):
            return None
        if isinstance(type, BroadcastSequenceType):
            return self.variables(type.element_type)
        return Name(self.fresh(), self.fresh("p")) if isinstance(type, PyObjectType) else Name(self.fresh())

    def assign(self, target: Value, value: Value, type: ResultType) -> None:
        pairs = list(self._pairs(target, value, type))
        if pairs:
            self.line(f"{', '.join(left for left, _ in pairs)} = {', '.join(right for _, right in pairs)}")

    def _pairs(self, target: Value, value: Value, type: ResultType) -> Iterator[tuple[str, str]]:
        if isinstance(type, TupleType):
            for left, right, kind in zip(target, value, type, strict=True):
                yield from self._pairs(left, right, kind)
        elif isinstance(type, BroadcastSequenceType):
            yield from self._pairs(target, value, type.element_type)
        elif not isinstance(type, VoidType):
            yield target, self.reference(value)
            if self.traced and isinstance(type, PyObjectType):
                yield target.place, value.place

    def reference(self, value: Value) -> str:
        """A constant becomes a call; anything else is one, or a Python object, already."""
        if not isinstance(value, Constant):
            return str(value)
        key = ("constant", value.key, value.feed, value.type)
        (out,) = self.call(key, lambda: constant_kind(value), feeds=[value.name])
        return str(out)

    def call(
        self, key: Hashable, make: Any, arguments: Sequence[Value] = (), feeds: Sequence[str] = (), many: str | None = None
    ) -> list[Name]:
        """Record a call; the names of its outputs. `many` names a list of further arguments."""
        number = self.kinds.number(key, make)
        given = [self.reference(argument) for argument in arguments]
        made = self.fresh()
        self.line(f"{made} = len(t) << {OUTPUT_BITS}; T({number})")
        if len(given) == 1:
            self.line(f"A({given[0]})")
        elif given:
            self.line(f"E(({', '.join(given)}))")
        if many is not None:
            self.line(f"E({many}); R(len({many}))")
        for place, feed in enumerate(feeds):
            self.line(f"F{number}_{place}({feed})")
        return self._outputs(made, len(self.kinds.known[number].outputs))

    def _outputs(self, first: str, count: int) -> list[Name]:
        return [Name(first), *(self.let(f"{first} + {place}") for place in range(1, count))]

    def ragged_call(self, make: Any, arguments: Sequence[Value], lengths: Sequence[str], count: int) -> list[Name]:
        """Record a call whose kind depends on lengths: `make(*lengths)` describes it (key, kind)."""
        number, made = self.fresh("k"), self.fresh()
        self.line(f"{number} = KIND({self.object(make)!r}, {', '.join(lengths)})")
        self.line(f"{made} = len(t) << {OUTPUT_BITS}; T({number}); E(({''.join(f'{self.reference(a)}, ' for a in arguments)}))")
        return self._outputs(made, count)

    def metric(self, name: str, type: ResultType, labelled: bool, block: Block) -> int:
        """The number of a metric; it has one type in the whole model, and labels everywhere or nowhere."""
        known = self.metrics.setdefault(name, type)
        if known != type:
            raise block._mismatch(f"Metric {name} has incompatible types: {known!r} and {type!r}")
        if self._labelled.setdefault(name, labelled) != labelled:
            raise block._mismatch(f"Metric {name} has incompatible types: with a label and without")
        return list(self.metrics).index(name)

    def function_of(self, block: Block) -> str:
        """The name of the function that does a block's work."""
        found = self.units.get(block)
        if found is None:
            found = self.units[block] = f"U{len(self.units)}"
            self.pending.append(block)
        return found

    def through_function(self, block: Block, x: Value) -> Value:
        """Have another function do a block's work."""
        given = self.pack(x, block._known("input"))
        name = self.fresh()
        self.line(f"{name} = yield ({self.function_of(block)}, {given})")
        return self.unpack(name, block._known("output"))

    def write(self, block: Block) -> None:
        """The function of a block."""
        self.indent = 0
        with self.under(f"def {self.units[block]}(x):"):
            self.line("if 0: yield")
            x = self.unpack("x", block._known("input"))
            y = self._inline(block, x)
            self.line(f"return {self.pack(y, block._known('output'))}")

    def _inline(self, block: Block, x: Value) -> Value:
        """Write a block's code and that of its parts, without recursion."""
        result: Value = None
        stack: list[tuple[Block, Any]] = []
        todo: tuple[Block, Value] | None = (block, x)
        while True:
            if todo is not None:
                part, given = todo
                result, begun = self._begin(part, given, bool(stack))
                todo = None
                if begun is not None:
                    stack.append((part, begun))
                    result = None
                elif not stack:
                    return result
                continue
            part, writing = stack[-1]
            try:
                todo = writing.send(result)
            except StopIteration as end:
                stack.pop()
                result = self._ended(part, end.value)
                if not stack:
                    return result

    def _begin(self, block: Block, x: Value, inner: bool) -> tuple[Value, Writing | None]:
        if inner and (block in self.shared or (self.indent > DEEPEST and block.subblocks)):
            return self.through_function(block, x), None
        if self.traced:
            self.blocks.append(block)
            value = self.pack(x, block._known("input"))
            self.line(f"ENTER({len(self.blocks) - 1}, {value}, {place_of(x)})")
        begun = block._emit(self, x)
        if isinstance(begun, Generator):
            return None, begun
        return self._ended(block, begun), None

    def _ended(self, block: Block, y: Value) -> Value:
        if not self.traced:
            return y
        y = self.settled(y, block._known("output"))
        self.line(f"LEAVE({self.pack(y, block._known('output'))})")
        return y

    def settled(self, value: Value, type: ResultType) -> Value:
        """Constants made into calls now."""
        if isinstance(type, TupleType):
            return tuple(self.settled(part, kind) for part, kind in zip(value, type, strict=True))
        if isinstance(type, BroadcastSequenceType):
            return self.settled(value, type.element_type)
        return Name(self.reference(value)) if isinstance(value, Constant) else value


def element_of(type: ResultType) -> ResultType:
    """The type of the items of a sequence, a tuple of equal items or a Python object."""
    if isinstance(type, SequenceType):
        return type.element_type
    return type[0] if isinstance(type, TupleType) else type


def place_of(value: Value) -> str:
    """The expression that says where in the example a value is: that of its first Python object."""
    if isinstance(value, tuple):
        return next((found for found in map(place_of, value) if found != "None"), "None")
    return value.place if isinstance(value, Name) and value.place != "''" else "None"


def tensors_in(value: Value, type: ResultType) -> list[tuple[Value, TensorType]]:
    """The leaves of a nest of tensors."""
    if isinstance(type, TupleType):
        return [leaf for part, kind in zip(value, type, strict=True) for leaf in tensors_in(part, kind)]
    assert isinstance(type, TensorType)
    return [(value, type)]


def nest_of(names: Iterator[Value], type: ResultType) -> Value:
    return tuple(nest_of(names, item) for item in type) if isinstance(type, TupleType) else next(names)


__all__ = ["Constant", "Emitter", "Kind", "Name", "Value", "Writing", "element_of", "nest_of", "tensors_in"]
