"""Checks of constructor arguments, worded alike."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.errors import TypeMismatch


def check_name(owner: str, name: Any) -> None:
    """A name is part of the keys of `state_dict`."""
    if not isinstance(name, str):
        raise TypeMismatch(f"{owner}: name: expected a string, got {name!r}")
    if not name or "." in name:
        raise TypeMismatch(f"{owner}: name: expected a string that is not empty and has no dot, got {name!r}")


def check_callable(owner: str, what: str, fn: Any) -> None:
    if not callable(fn):
        raise TypeMismatch(f"{owner}: {what}: expected something callable, got {fn!r}")


def check_chance(owner: str, what: str, chance: Any, lowest: str = "above 0") -> None:
    if chance is None:
        return
    if isinstance(chance, bool) or not isinstance(chance, int | float):
        raise TypeMismatch(f"{owner}: {what}: expected a number, got {chance!r}")
    if not 0 <= chance <= 1 or (chance == 0 and lowest == "above 0"):
        raise ValueError(f"{owner}: {what}: expected a number {lowest} and at most 1, got {chance!r}")


def is_integer(number: Any) -> bool:
    """Whether it is an integer, of Python or of numpy."""
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def as_integer(owner: str, what: str, number: Any) -> int:
    if not is_integer(number):
        raise TypeMismatch(f"{owner}: {what}: expected an integer, got {number!r}")
    return int(number)


def check_count(owner: str, what: str, count: Any) -> None:
    if as_integer(owner, what, count) < 1:
        raise ValueError(f"{owner}: {what}: expected at least 1, got {count}")
