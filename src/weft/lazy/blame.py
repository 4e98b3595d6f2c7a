"""Errors that come up when recorded calls are run say which example and which line of code they belong to."""

from __future__ import annotations

import linecache
from pathlib import Path
from types import CodeType

Site = tuple[CodeType, int]
"""A place in the user's code: its code object, and the instruction there."""

WITHIN = "_weft_within"
"""The attribute of an error that says how many operations of a block had been run before it."""

_MOST_SHOWN = 100
"""How much of a line is shown."""


def name_example(error: BaseException, example: int) -> None:
    """Say in a note which example an error belongs to."""
    _note(error, f"in example {example}")


def name_site(error: BaseException, site: Site | None) -> None:
    """Say in a note which line had recorded what failed."""
    if site is None:
        return
    code, instruction = site
    line = next((start for at, start in enumerate(_lines(code)) if at == instruction // 2), None)
    if line is None:
        return
    text = linecache.getline(code.co_filename, line).strip()
    text = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
    _note(error, f"recorded in {code.co_qualname}, {Path(code.co_filename).name}:{line}" + (f": {text}" if text else ""))


def _lines(code: CodeType) -> list[int | None]:
    return [start for start, *_ in code.co_positions()]


def _note(error: BaseException, note: str) -> None:
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
