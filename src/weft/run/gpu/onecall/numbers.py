"""Sizes that differ from plan to plan, as text that both Python and C understand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ALIGNED = 16
"""Bytes: kernels are compiled for pointers to multiples of this, or for any."""


class NotLowered(Exception):
    """Something in a recipe that only Python can do; the text says what."""


def floor(number: int, by: int) -> int:
    """What FLOOR means in texts."""
    return number // by


@dataclass(eq=False)
class Example:
    """The values of variables in the call that is looked at, and what must be so in every call that does the same."""

    values: dict[str, int] = field(default_factory=dict)
    guards: list[str] = field(default_factory=list)

    def decide(self, text: str) -> bool:
        """Whether something is so; calls in which it is otherwise are told apart by a guard."""
        try:
            found = bool(self._evaluated(text))
        except NameError:
            raise NotLowered(f"a decision that differs from step to step: {text}") from None
        guard = text if found else f"not ({text})"
        if guard not in self.guards:
            self.guards.append(guard)
        return found

    def value(self, size: Size) -> int:
        """What a size is in this call."""
        return size if isinstance(size, int) else int(self._evaluated(size.text))

    def _evaluated(self, text: str) -> Any:
        return eval(text, {"FLOOR": floor}, self.values)


class Number:
    """An integer that is known when the recipe runs."""

    __slots__ = ("example", "text")

    def __init__(self, text: str, example: Example) -> None:
        self.text, self.example = text, example

    def __str__(self) -> str:
        return self.text

    def _made(self, text: str) -> Number:
        return Number(text, self.example)

    def __add__(self, other: Size) -> Size:
        return self if type(other) is int and other == 0 else self._made(f"({self} + {other})")

    def __radd__(self, other: Size) -> Size:
        return self + other

    def __sub__(self, other: Size) -> Size:
        return self if type(other) is int and other == 0 else self._made(f"({self} - {other})")

    def __rsub__(self, other: Size) -> Size:
        return self._made(f"({other} - {self})")

    def __mul__(self, other: Size) -> Size:
        return self if type(other) is int and other == 1 else self._made(f"({self} * {other})")

    def __rmul__(self, other: Size) -> Size:
        return self * other

    def __floordiv__(self, other: Size) -> Size:
        return self._made(f"FLOOR({self}, {other})")

    def __neg__(self) -> Size:
        return self._made(f"(-{self})")

    def __eq__(self, other: Any) -> bool:
        return self._compared("==", other)

    def __ne__(self, other: Any) -> bool:
        return self._compared("!=", other)

    def __lt__(self, other: Any) -> bool:
        return self._compared("<", other)

    def __ge__(self, other: Any) -> bool:
        return self._compared(">=", other)

    def __bool__(self) -> bool:
        return self._compared("!=", 0)

    __hash__ = object.__hash__

    def _compared(self, how: str, other: Any) -> bool:
        if not isinstance(other, int | Number):
            return how == "!="
        if str(self) == str(other):
            return how in ("==", ">=")
        return self.example.decide(f"{self} {how} {other}")

    def __index__(self) -> int:
        raise NotLowered(f"a use of {self} that wants the number itself")


Size = int | Number
