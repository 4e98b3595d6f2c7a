"""What options of the commands may be: wrong ones are told before any work begins."""

from __future__ import annotations

import math
import os
from argparse import ArgumentTypeError
from pathlib import Path


def at_least_one(text: str) -> int:
    """A number of things.

    >>> at_least_one("0")
    Traceback (most recent call last):
    argparse.ArgumentTypeError: expected a whole number of at least 1, got 0
    """
    number = _whole(text)
    if number is None or number < 1:
        raise ArgumentTypeError(f"expected a whole number of at least 1, got {text}")
    return number


def above_zero(text: str) -> float:
    """A finite number above 0.

    >>> above_zero("1e-3")
    0.001
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ArgumentTypeError(f"expected a number above 0, got {text}")
    return number


def seed(text: str) -> int:
    """A seed that torch takes."""
    number = _whole(text)
    if number is None or not -(2**63) <= number < 2**64:
        raise ArgumentTypeError(f"expected a whole number from -2**63 to 2**64 - 1, got {text}")
    return number


def why_no_file(path: Path) -> str | None:
    """Why a file cannot be written; None if it can."""
    if path.is_dir():
        return f"{path} is a folder; expected a file"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent} to write {path.name} to"
    return None if os.access(path if path.exists() else path.parent, os.W_OK) else f"{path} cannot be written"


def why_no_folder(path: Path) -> str | None:
    """Why files cannot be written into a folder, which is made if it is not there; None if they can."""
    nearest = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    if not nearest.is_dir():
        return f"{nearest} is a file; expected a folder"
    return None if os.access(nearest, os.W_OK) else f"{nearest} cannot be written to"


def _whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
