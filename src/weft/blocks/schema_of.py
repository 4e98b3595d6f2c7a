"""Schemas found out from examples.

Values are looked at kind by kind, from the records inwards, without recursion: what is inside waits in a list until its turn.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from weft.blocks.constants import brief
from weft.blocks.reading import is_missing, kind_of, number_of, on_scale, pieces_of, text_of
from weft.blocks.schema import Category, Either, Fields, Items, Key, Number, Schema, Text
from weft.blocks.show import shortened
from weft.errors import StructureError, TypeMismatch

MOST_VALUES = 32
"""Strings and whole numbers with at most so many different values are categories, if values come again often enough."""
TIMES_EACH = 4
TEXTS_EACH = 20
"""So many texts there are for each piece of text that is looked at."""
FEWEST_KEYS = 100
"""So many whole numbers, all different and evenly spread, are no measurements but keys."""
MOST_UNEVEN = 1.2
FAR_OUT = 6.0
"""Numbers so many deviations away from the mean ask for a logarithmic scale."""
DEEPEST = 100
PRINTABLE = range(32, 0x3000)


def schema_of(examples: Sequence[Any]) -> Schema:
    """What all examples have in common."""
    if not isinstance(examples, list | tuple) or not examples:
        raise TypeMismatch(f"Json: expected a schema or a list of at least one example, got {shortened(examples, 60)}")
    return _Finder(examples).found()


class _Finder:
    """Looks at values kind by kind, from the records inwards; what is inside waits for its turn."""

    def __init__(self, examples: Sequence[Any]) -> None:
        self.examples = examples
        self.waiting: list[tuple[list[Any], int, Callable[[Schema], None]]] = []
        """Values whose schema is still to be found, how deep they are, and where the schema goes."""
        self.texts = _Texts()

    def found(self) -> Schema:
        made: list[Schema] = []
        self.waiting.append((list(self.examples), 0, made.append))
        while self.waiting:
            values, depth, put = self.waiting.pop()
            if depth > DEEPEST:
                where = place_in(self.examples, values[0])
                hint = "write a recursive block with ForwardDeclaration"
                raise StructureError(f"Json: examples{where}: nested deeper than {DEEPEST} levels; {hint}")
            there = [value for value in values if not is_missing(value)]
            schema = self._of_kinds(self._by_kind(there), depth)
            schema.optional = len(there) < len(values)
            put(schema)
        self.texts.choose_pieces()
        return made[0]

    def _by_kind(self, values: list[Any]) -> dict[str, list[Any]]:
        kinds: dict[str, list[Any]] = {}
        for value in values:
            kind = kind_of(value)
            if kind is None:
                where = place_in(self.examples, value)
                raise TypeMismatch(f"Json: examples{where}: expected a JSON value, got {brief(value)}")
            kinds.setdefault(kind, []).append(value)
        if set(kinds) == {"text", "number"} and None not in map(number_of, kinds["text"]):
            return {"number": values}
        return kinds

    def _of_kinds(self, kinds: dict[str, list[Any]], depth: int) -> Schema:
        if not kinds:
            return Category([])
        found = {kind: self._of_kind(kind, values, depth) for kind, values in kinds.items()}
        return Either(found) if len(found) > 1 else next(iter(found.values()))

    def _of_kind(self, kind: str, values: list[Any], depth: int) -> Schema:
        if kind == "record":
            return self._record(values, depth)
        if kind != "list":
            return self._simple(values)
        items = [item for value in values for item in value]
        if _code_points(items):
            return self._simple([text_of(value) for value in values], code_points=True)
        lengths = [len(value) for value in values]
        made = Items(Category([]), min(lengths), max(lengths))
        if items:
            self.waiting.append((items, depth + 1, lambda found: setattr(made, "item", found)))
        return made

    def _record(self, values: list[dict[Any, Any]], depth: int) -> Fields:
        names = dict.fromkeys(name for value in values for name in value)
        made = Fields({name: Category([]) for name in names})
        for name in names:
            put = functools.partial(made.fields.__setitem__, name)
            self.waiting.append(([value.get(name) for value in values], depth + 1, put))
        return made

    def _simple(self, values: list[Any], code_points: bool = False) -> Schema:
        if any(isinstance(value, bool) for value in values) and not all(isinstance(value, bool) for value in values):
            values = [int(value) if isinstance(value, bool) else value for value in values]
        if not code_points and _few(values):
            return Category(sorted(set(values), key=lambda value: (str(type(value)), value)))
        read = [number_of(value) for value in values]
        finite = [number for number in read if number is not None and math.isfinite(number)]
        if None in read:
            return self.texts.add(values)
        if all(type(value) is int for value in values) and _only_tell_apart(finite):
            return Key()
        return _number(finite, code_points)


def _number(found: list[float], code_points: bool) -> Number:
    """On the plain scale, unless some are far out there and nearer on the logarithmic one."""
    plain = Number(*_mean_and_deviation(found), code_points=code_points)
    if _farthest(found, plain) <= FAR_OUT:
        return plain
    scaled = [on_scale(number, True) for number in found]
    logarithmic = Number(*_mean_and_deviation(scaled), logarithmic=True, code_points=code_points)
    return logarithmic if _farthest(scaled, logarithmic) < _farthest(found, plain) else plain


def _mean_and_deviation(found: list[float]) -> tuple[float, float]:
    """Scaled down first, so that no sum of squares is too large for a float."""
    largest = max(map(abs, found), default=0.0)
    if not largest:
        return 0.0, 1.0
    parts = [number / largest for number in found]
    mean = math.fsum(parts) / len(parts)
    deviation = math.sqrt(math.fsum((part - mean) ** 2 for part in parts) / len(parts))
    return mean * largest, deviation * largest if deviation > 1e-12 else 1.0


def _farthest(found: list[float], scale: Number) -> float:
    return max((abs(number / scale.deviation - scale.mean / scale.deviation) for number in found), default=0.0)


class _Texts:
    """All texts of the examples. Their pieces have one table, so they are chosen when all are counted."""

    def __init__(self) -> None:
        self.found: list[tuple[Text, Counter[str], int]] = []
        self.counts: Counter[str] = Counter()

    def add(self, values: list[Any]) -> Text:
        counts = Counter(piece for value in values for piece in pieces_of(value))
        self.counts.update(counts)
        made = Text([])
        self.found.append((made, counts, len(values)))
        return made

    def choose_pieces(self) -> None:
        """Of each text the most frequent, one for every `TEXTS_EACH`: rare ones would only be learned by heart.

        What is in every text says nothing.
        """
        for text, counts, texts in self.found:
            known = [piece for piece, count in counts.most_common() if count < texts and self.counts[piece] >= TIMES_EACH]
            text.pieces = known[: texts // TEXTS_EACH]


def _code_points(items: list[Any]) -> bool:
    """Whether lists of whole numbers are texts: characters that come again, among them letters or digits alone."""
    if not items or not all(type(item) is int and item in PRINTABLE for item in items):
        return False
    texts = any(chr(item).isalpha() for item in items) or all(chr(item) in "0123456789.,:-+/ " for item in items)
    return texts and len(set(items)) < len(items)


def _few(values: list[Any]) -> bool:
    """Whether there are few different values, which come again: strings and whole numbers, or always the same."""
    different = len(set(values))
    if different > MOST_VALUES or len(values) < TIMES_EACH * different:
        return False
    return different == 1 or not any(isinstance(value, numbers.Real) and value % 1 for value in values)


def _only_tell_apart(found: list[float]) -> bool:
    """Whether whole numbers are all different and spread evenly: numbers of rows, not of things measured.

    Evenly: no farther from the straight line than even numbers are by chance (Kolmogorov and Smirnov's distance).
    """
    if len(found) < FEWEST_KEYS or len(set(found)) < len(found):
        return False
    first, count = min(found), len(found)
    step = (max(found) - first) / (count - 1)
    distance = max(abs((number - first) / step - place) for place, number in enumerate(sorted(found)))
    return distance < MOST_UNEVEN * math.sqrt(count)


def place_in(examples: Sequence[Any], wanted: Any) -> str:
    """Where a value is in the examples: `[3].tags[0]`."""
    pending: list[tuple[str, Any]] = [("", examples)]
    while pending:
        place, value = pending.pop()
        if value is wanted:
            return place
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
        named = Fields({})
        pending += reversed([(f"{place}{named._step(key)}", item) for key, item in inner])
    return ""
