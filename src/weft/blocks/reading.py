"""Values of JSON read as what a schema says they are."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

from weft.blocks.constants import brief
from weft.errors import MissingKey, TypeMismatch

FARTHEST = 5.0
"""Numbers are no more deviations away from the mean than this."""
SIMPLE = "a number, a string, True, False or null"


def kind_of(value: Any) -> str | None:
    """Which kind of JSON value this is; None for what is none."""
    if isinstance(value, dict):
        return "record"
    if isinstance(value, list | tuple):
        return "list"
    if isinstance(value, str):
        return "text"
    return "number" if isinstance(value, numbers.Real) else None


def is_missing(value: Any) -> bool:
    """Null, and what is not a number."""
    return value is None or (isinstance(value, numbers.Real) and value != value)


def number_of(value: Any) -> float | None:
    """A number, or a string of one, as a float: infinite where it is too large, None where it is none."""
    if isinstance(value, str) and "_" in value:
        return None
    try:
        number = float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        return None
    if isinstance(value, str) and not math.isfinite(number):
        return None
    return None if math.isnan(number) else number


def text_of(value: Any) -> str:
    """A string; numbers as they are written, lists as code points; nothing for what is none of these."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return "".join(chr(point) for point in value if isinstance(point, int) and 0 <= point < 0x110000)
    return "" if is_missing(value) else str(value)


def pieces_of(value: Any) -> list[str]:
    """The words of a text and their groups of three characters, each once."""
    found: dict[str, None] = {}
    for word in text_of(value).lower().split():
        marked = f"<{word}>"
        found[marked] = None
        found.update(dict.fromkeys(marked[at : at + 3] for at in range(len(marked) - 2)))
    return list(found)


def on_scale(number: float, logarithmic: bool) -> float:
    return math.copysign(math.log1p(abs(number)), number) if logarithmic else number


def simple(value: Any) -> Any:
    """The value itself, which must not be a record or a list."""
    if isinstance(value, dict | list | tuple):
        raise TypeMismatch(f"expected {SIMPLE}, got {brief(value)}")
    return value


def is_there(value: Any) -> float:
    return 0.0 if is_missing(value) else 1.0


def is_number(value: Any) -> float:
    return 0.0 if number_of(text_of(value) if isinstance(value, list | tuple) else value) is None else 1.0


def nothing(value: Any) -> float:
    return 0.0


def log_length(value: Sequence[Any]) -> float:
    return math.log1p(len(value))


def as_list(value: Any) -> Any:
    """A list; an empty one where there is none."""
    if isinstance(value, list | tuple):
        return value
    if not is_missing(value):
        raise TypeMismatch(f"expected a list, got {brief(value)}")
    return ()


class AsNumber:
    """To mean 0 and deviation 1, and no further out than `FARTHEST`; what is no number counts as the mean."""

    def __init__(self, mean: float, deviation: float, logarithmic: bool, code_points: bool) -> None:
        self.mean, self.deviation, self.logarithmic, self.code_points = mean, deviation, logarithmic, code_points

    def __call__(self, value: Any) -> float:
        number = number_of(text_of(value) if self.code_points and isinstance(value, list | tuple) else simple(value))
        if number is None:
            return 0.0
        distance = (on_scale(number, self.logarithmic) - self.mean) / self.deviation
        return max(-FARTHEST, min(FARTHEST, distance))


class AsPieces:
    """The numbers of the pieces of a text that are known."""

    def __init__(self, known: dict[str, int]) -> None:
        self.known = known

    def __call__(self, value: Any) -> list[int]:
        if isinstance(value, dict):
            raise TypeMismatch(f"expected a text, got {brief(value)}")
        return [self.known[piece] for piece in pieces_of(value) if piece in self.known]


class AsRecord:
    """The value itself, which must be a record; None, too, where that is allowed.

    A record that has fields, but none that is known, is a mistake, unless the examples had such records.
    """

    def __init__(self, names: Iterable[Any], all_optional: bool, may_be_missing: bool) -> None:
        self.names, self.all_optional, self.may_be_missing = dict.fromkeys(names), all_optional, may_be_missing

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, dict):
            if is_missing(value) and self.may_be_missing:
                return None
            raise TypeMismatch(f"expected a record, got {brief(value)}")
        if value and not self.all_optional and self.names.keys().isdisjoint(value):
            known, found = (", ".join(map(repr, list(names)[:8])) for names in (self.names, value))
            raise MissingKey(f"expected a record with some of the fields {known}, found {found}")
        return value


class KnownKind:
    """The kind of a value, or "other" for a kind that no example had."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self.kinds = kinds

    def __call__(self, value: Any) -> str:
        kind = None if is_missing(value) else kind_of(value)
        return kind if kind is not None and kind in self.kinds else "other"
