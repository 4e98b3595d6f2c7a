"""What JSON records look like: a tree that prints, and that can be edited."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weft.blocks.show import shortened
from weft.errors import TypeMismatch


@dataclass
class Schema:
    """A kind of JSON value. `optional` where examples miss it or have null there.

    >>> print(Schema.of([{"age": 30, "tags": ["a"]}, {"age": 41.5, "tags": []}]))
    record
      age: number, mean 35.75, deviation 5.75
      tags: list of up to 1
        text, 0 pieces
    """

    optional: bool = field(default=False, kw_only=True)

    @staticmethod
    def of(examples: Sequence[Any]) -> Schema:
        """The schema of all these examples."""
        from weft.blocks.schema_of import schema_of

        return schema_of(examples)

    def parts(self) -> Iterator[Schema]:
        """This schema and all inside it."""
        return (part for _, part in self.places())

    def places(self) -> Iterator[tuple[str, Schema]]:
        """This schema and all inside it, each with its place: `.age`, `.tags[*]`; nothing for the schema itself."""
        pending: list[tuple[str, Schema]] = [("", self)]
        while pending:
            place, each = pending.pop()
            yield place, each
            if isinstance(each, Schema):
                pending += reversed([(f"{place}{each._step(name)}", part) for name, part in each._inner()])

    def copy(self) -> Schema:
        """The same schema, to be edited."""
        return self._rebuilt(lambda part: True)

    def without(self, *kinds: type[Schema]) -> Schema:
        """A copy in which records have no fields of these kinds, nor lists of them."""
        return self._rebuilt(lambda part: not isinstance(_innermost(part), kinds) and not isinstance(part, kinds))

    def _rebuilt(self, keep: Callable[[Schema], bool]) -> Schema:
        """A copy, of records only the fields to keep. Records, lists and choices are made first and filled later."""
        made = replace(self)
        pending = [made]
        while pending:
            part = pending.pop()
            if isinstance(part, Items):
                part.item = replace(part.item)
                pending.append(part.item)
            elif isinstance(part, Fields):
                part.fields = {name: replace(inner) for name, inner in part.fields.items() if keep(inner)}
                pending += part.fields.values()
            elif isinstance(part, Either):
                part.kinds = {kind: replace(inner) for kind, inner in part.kinds.items()}
                pending += part.kinds.values()
            elif isinstance(part, Category):
                part.values = list(part.values)
            elif isinstance(part, Text):
                part.pieces = list(part.pieces)
        return made

    def _title(self) -> str:
        raise NotImplementedError

    def _inner(self) -> Iterator[tuple[Any, Schema]]:
        return iter(())

    def _step(self, name: Any) -> str:
        return ""

    def _wrong(self) -> str | None:
        """What is wrong with what it says, if anything."""
        return None

    def __str__(self) -> str:
        lines: list[str] = []
        pending: list[tuple[str, str, Schema]] = [("", "", self)]
        while pending:
            indent, label, each = pending.pop()
            lines.append(f"{indent}{label}{each._title()}{', may be missing' if each.optional else ''}")
            pending += reversed([(f"{indent}  ", _label(name), part) for name, part in each._inner()])
        return "\n".join(lines)


@dataclass
class Number(Schema):
    """A number, brought to mean 0 and deviation 1; strings of digits count. `logarithmic`: of sign(x) * log(1 + |x|).

    `code_points`: it is written as a list of the code points of its digits.
    """

    mean: float
    deviation: float
    logarithmic: bool = False
    code_points: bool = False

    def _title(self) -> str:
        scale = "number on a logarithmic scale" if self.logarithmic else "number"
        return f"{scale}, mean {self.mean:.4g}, deviation {self.deviation:.4g}"

    def _wrong(self) -> str | None:
        for what, number in (("mean", self.mean), ("deviation", self.deviation)):
            if not isinstance(number, int | float) or not math.isfinite(number) or (what == "deviation" and number <= 0):
                above = " above 0" if what == "deviation" else ""
                return f"{what}: expected a finite number{above}, got {shortened(number, 60)}"
        return None


@dataclass
class Category(Schema):
    """One of a few values; others count as none of them."""

    values: list[Any]

    def _title(self) -> str:
        if len(self.values) == 1 and not self.optional:
            return f"always {self.values[0]!r}, left out"
        shown = ", ".join(map(repr, self.values[:6]))
        return f"one of {len(self.values)}: {shown}{', ...' if len(self.values) > 6 else ''}" if self.values else "nothing"

    def _wrong(self) -> str | None:
        try:
            different = len(set(self.values))
        except TypeError:
            return f"values: expected strings, numbers, True, False or None, got {shortened(self.values, 60)}"
        return None if different == len(self.values) else f"values: expected different ones, got {shortened(self.values, 60)}"


@dataclass
class Key(Schema):
    """A number that only tells records apart, as a row number does. It is left out."""

    def _title(self) -> str:
        return "key, left out"


@dataclass
class Text(Schema):
    """A string, or a list of code points, seen as words and groups of three characters; `pieces` are those it may have."""

    pieces: list[str]

    def _title(self) -> str:
        return f"text, {len(self.pieces)} pieces"

    def _wrong(self) -> str | None:
        strings = isinstance(self.pieces, list) and all(isinstance(piece, str) for piece in self.pieces)
        return None if strings else f"pieces: expected a list of strings, got {shortened(self.pieces, 60)}"


@dataclass
class Items(Schema):
    """A list. `shortest` and `longest` tell how long the lists of the examples are, where that is known."""

    item: Schema
    shortest: int = 0
    longest: int | None = None

    def _title(self) -> str:
        if self.longest is None:
            return "list of"
        return f"list of {'' if self.shortest == self.longest else 'up to '}{self.longest}"

    def _inner(self) -> Iterator[tuple[Any, Schema]]:
        yield ITEM, self.item

    def _step(self, name: Any) -> str:
        return "[*]"


@dataclass
class Fields(Schema):
    """A record: its fields by name. Delete what should not be seen: `del schema.fields["id"]`."""

    fields: dict[Any, Schema]

    def _title(self) -> str:
        return "record"

    def _inner(self) -> Iterator[tuple[Any, Schema]]:
        yield from self.fields.items()

    def _step(self, name: Any) -> str:
        return f".{name}" if isinstance(name, str) and name.isidentifier() else f"[{name!r}]"

    def _wrong(self) -> str | None:
        return None if isinstance(self.fields, dict) else f"fields: expected a dict, got {shortened(self.fields, 60)}"


@dataclass
class Either(Schema):
    """Values of several kinds, each with a schema of its own: "record", "list", "text", "number"."""

    kinds: dict[str, Schema]

    def _title(self) -> str:
        return "either"

    def _inner(self) -> Iterator[tuple[Any, Schema]]:
        yield from self.kinds.items()

    def _wrong(self) -> str | None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        return f"kinds: expected some of {', '.join(KINDS)}, got {unknown[0]!r}" if unknown else None


ITEM = object()
"""The name of what is in a list."""
KINDS = ("record", "list", "text", "number")


def check_schema(schema: Schema) -> None:
    """Raise where a schema, perhaps edited, makes no sense."""
    for place, part in schema.places():
        if not isinstance(part, Schema):
            raise TypeMismatch(f"Json: schema{place}: expected a schema, got {shortened(part, 60)}")
        wrong = part._wrong()
        if wrong is not None:
            raise TypeMismatch(f"Json: schema{place}: {wrong}")


def _label(name: Any) -> str:
    return "" if name is ITEM else f"{name}: " if isinstance(name, str) else f"{name!r}: "


def _innermost(schema: Schema) -> Schema:
    while isinstance(schema, Items):
        schema = schema.item
    return schema
