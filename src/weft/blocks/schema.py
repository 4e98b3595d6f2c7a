"""What JSON records look like, found out from examples: a tree that prints, and that can be edited."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.errors import StructureError, TypeMismatch

MOST_VALUES = 32
"""Strings and whole numbers with at most so many different values are categories, if values come again often enough."""
TIMES_EACH = 4
TEXTS_EACH = 20
"""So many texts there are for each piece of text that is looked at."""
DEEPEST = 100
PRINTABLE = range(32, 0x3000)


@dataclass
class Schema:
    """A kind of JSON value. `optional` where it may be missing or null.

    >>> print(Schema.of([{"age": 30, "tags": ["a"]}, {"age": 41.5, "tags": []}]))
    record
      age: number, mean 35.75, deviation 5.75
      tags: list of
        text, 0 pieces
    """

    optional: bool = field(default=False, kw_only=True)

    @staticmethod
    def of(examples: Sequence[Any]) -> Schema:
        """The schema of all these examples."""
        if not isinstance(examples, list | tuple) or not examples:
            raise TypeMismatch(f"Json: expected a schema or a list of at least one example, got {examples!r:.60}")
        return _inferred(examples, 0)

    def parts(self) -> Iterator[Schema]:
        """This schema and all inside it."""
        pending: list[Schema] = [self]
        while pending:
            each = pending.pop()
            yield each
            pending += reversed([part for _, part in each._inner()])

    def without(self, *kinds: type[Schema]) -> Schema:
        """A copy in which records have no fields of these kinds, nor lists of them."""
        made = copy.deepcopy(self)
        for part in made.parts():
            if isinstance(part, Fields):
                kept = {name: inner for name, inner in part.fields.items() if not isinstance(inner, kinds)}
                part.fields = {name: inner for name, inner in kept.items() if not isinstance(_innermost(inner), kinds)}
        return made

    def _title(self) -> str:
        raise NotImplementedError

    def _inner(self) -> Iterator[tuple[str, Schema]]:
        return iter(())

    def __str__(self) -> str:
        lines: list[str] = []
        pending: list[tuple[str, str, Schema]] = [("", "", self)]
        while pending:
            indent, label, each = pending.pop()
            lines.append(f"{indent}{label}{each._title()}{', may be missing' if each.optional else ''}")
            pending += reversed([(f"{indent}  ", f"{name}: " if name else "", part) for name, part in each._inner()])
        return "\n".join(lines)


@dataclass
class Number(Schema):
    """A number, brought to mean 0 and deviation 1. Strings of digits count."""

    mean: float
    deviation: float

    def _title(self) -> str:
        return f"number, mean {self.mean:.4g}, deviation {self.deviation:.4g}"


@dataclass
class Category(Schema):
    """One of a few values; others count as none of them."""

    values: list[Any]

    def _title(self) -> str:
        shown = ", ".join(map(repr, self.values[:6]))
        return f"one of {len(self.values)}: {shown}{', ...' if len(self.values) > 6 else ''}"


@dataclass
class Text(Schema):
    """A string, or a list of code points, seen as words and groups of three characters; `pieces` are those it may have."""

    pieces: list[str]

    def _title(self) -> str:
        return f"text, {len(self.pieces)} pieces"


@dataclass
class Items(Schema):
    """A list of any length."""

    item: Schema

    def _title(self) -> str:
        return "list of"

    def _inner(self) -> Iterator[tuple[str, Schema]]:
        yield "", self.item


@dataclass
class Fields(Schema):
    """A record: its fields by name. Delete what should not be seen: `del schema.fields["id"]`."""

    fields: dict[str, Schema]

    def _title(self) -> str:
        return "record"

    def _inner(self) -> Iterator[tuple[str, Schema]]:
        yield from self.fields.items()


@dataclass
class Either(Schema):
    """Values of several kinds, each with a schema of its own."""

    kinds: dict[str, Schema]

    def _title(self) -> str:
        return "either"

    def _inner(self) -> Iterator[tuple[str, Schema]]:
        yield from self.kinds.items()


def _innermost(schema: Schema) -> Schema:
    while isinstance(schema, Items):
        schema = schema.item
    return schema


def kind_of(value: Any) -> str:
    """Which kind of JSON value this is."""
    if isinstance(value, dict):
        return "record"
    if isinstance(value, list | tuple):
        return "list"
    return "text" if isinstance(value, str) else "number"


def _inferred(values: Sequence[Any], depth: int) -> Schema:
    if depth > DEEPEST:
        raise StructureError(f"Json: nested deeper than {DEEPEST} levels; write a recursive block with ForwardDeclaration")
    there = [value for value in values if value is not None]
    kinds: dict[str, list[Any]] = {}
    for value in there:
        kinds.setdefault(kind_of(value), []).append(value)
    found = {kind: _of_kind(kind, group, depth) for kind, group in kinds.items()}
    schema = next(iter(found.values())) if len(found) == 1 else Either(found) if found else Category([])
    schema.optional = len(there) < len(values)
    return schema


def _of_kind(kind: str, values: list[Any], depth: int) -> Schema:
    if kind == "record":
        names = dict.fromkeys(name for value in values for name in value)
        return Fields({name: _inferred([value.get(name) for value in values], depth + 1) for name in names})
    if kind == "list":
        items = [item for value in values for item in value]
        return _text(values) if _code_points(items) else Items(_inferred(items, depth + 1) if items else Category([]))
    if _few(values):
        return Category(sorted(set(values), key=lambda value: (str(type(value)), value)))
    numbers = [_as_number(value) for value in values]
    if None in numbers:
        return _text(values)
    known = [number for number in numbers if number is not None]
    mean = math.fsum(known) / len(known)
    deviation = math.sqrt(math.fsum((number - mean) ** 2 for number in known) / len(known))
    return Number(mean, deviation or 1.0)


def pieces_of(value: Any) -> list[str]:
    """The words of a text and their groups of three characters, each once."""
    text = value if isinstance(value, str) else "".join(map(chr, value))
    found: dict[str, None] = {}
    for word in text.lower().split():
        marked = f"<{word}>"
        found[marked] = None
        found.update(dict.fromkeys(marked[at : at + 3] for at in range(len(marked) - 2)))
    return list(found)


def _text(values: list[Any]) -> Text:
    """The most frequent pieces, one for every `TEXTS_EACH` texts: rare ones would only be learned by heart."""
    counts = Counter(piece for value in values for piece in pieces_of(value))
    return Text([piece for piece, count in counts.most_common(len(values) // TEXTS_EACH) if count >= TIMES_EACH])


def _code_points(items: list[Any]) -> bool:
    """Whether lists of whole numbers are texts: many characters, of which some are letters."""
    if not items or not all(type(item) is int and item in PRINTABLE for item in items):
        return False
    return any(chr(item).isalpha() for item in items) and len(set(items)) < len(items)


def _few(values: list[Any]) -> bool:
    """Whether there are few different values, which come again: strings and whole numbers only."""
    if any(isinstance(value, float) and not value.is_integer() for value in values):
        return False
    different = len(set(values))
    return different <= MOST_VALUES and (len(values) >= TIMES_EACH * different)


def _as_number(value: Any) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
