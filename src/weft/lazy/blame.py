"""Errors say which example they belong to, which module or cell they come from, and which line recorded what failed."""

from __future__ import annotations

import linecache
from pathlib import Path
from traceback import walk_tb
from types import CodeType, MethodType
from typing import Any

from torch import nn

Site = tuple[CodeType, int]
"""A place in the user's code: its code object, and the instruction there."""

CELL = "_weft_cell"
"""The attribute of modules and classes that `weft.cell` marked."""

WITHIN = "_weft_within"
"""The attribute of an error that says how many operations of a block had been run before it."""

_MOST_SHOWN = 100
"""How much of a line is shown."""


def name_example(error: BaseException, example: int) -> None:
    """Say in a note which example an error belongs to."""
    _note(error, f"in example {example}")


def name_path(told: BaseException, error: BaseException, fn: Any) -> None:
    """Say in a note of `told` in which module or cell an error came up: its path from `fn`, or from the first module called."""
    called = _called(error)
    if not called:
        return
    root = fn.__self__ if isinstance(fn, MethodType) else fn
    root = root if isinstance(root, nn.Module) else next((each for each in called if isinstance(each, nn.Module)), None)
    last = called[-1]
    if not isinstance(last, nn.Module):
        _note(told, f"in cell {getattr(last, '__qualname__', type(last).__name__)}")
    elif last is not root and root is not None:
        path = next((name for name, module in root.named_modules() if module is last), None)
        kind = type(last).__name__
        shown = kind if path is None else f"{path} ({kind})"
        _note(told, f"in cell {shown}" if getattr(last, CELL, False) is True else f"in {shown}")


def _called(error: BaseException) -> list[Any]:
    """The modules, and the functions that are cells, in whose calls an error came up, the innermost last."""
    found: list[Any] = []
    for frame, _ in walk_tb(error.__traceback__):
        name = frame.f_code.co_name
        if name == "_wrapped_call_impl" or name == "forward":
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module):
                found.append(module)
        elif name == "marked" and frame.f_globals.get("__name__") == "weft.lazy.cells":
            found.append(frame.f_locals["fn"])
    return found


def name_cell(error: BaseException, name: str, func: Any, fn: Any) -> None:
    """The same for a cell whose code was run with what was recorded."""
    if isinstance(func, nn.Module):
        if getattr(func, CELL, False) is True:
            name_path(error, error, fn)
    else:
        _note(error, f"in cell {name}")


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
