"""FILE.py:NAME, as `weft explain` takes it: the file is loaded, its function called, and what that returns is checked."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class NotAnExample(Exception):
    """What is wrong with FILE.py:NAME, in one line."""


@contextmanager
def importable(file: Path) -> Iterator[None]:
    """Imports find what lies beside the file, as they do when it is run, and what lies in the current folder."""
    before = list(sys.path)
    sys.path[:0] = [str(file.resolve().parent), str(Path.cwd())]
    try:
        yield
    finally:
        sys.path[:] = before


def split(target: str) -> tuple[Path, str]:
    """File and name of a target.

    >>> split("models/tree.py:example")[1]
    Traceback (most recent call last):
    weft.target.NotAnExample: there is no file models/tree.py
    """
    file, _, name = target.rpartition(":")
    if not file or not name:
        raise NotAnExample(f"expected FILE.py:NAME, got {target}")
    if not Path(file).is_file():
        raise NotAnExample(f"there is no file {file}")
    return Path(file), name


def example(file: Path, name: str) -> Sequence[Any]:
    """What the function returns: a model and its inputs."""
    function = getattr(_load(file), name, None)
    if not callable(function):
        raise NotAnExample(f"{file} has no function {name}")
    if needed := _without_default(function):
        raise NotAnExample(f"{name} in {file} needs arguments ({', '.join(needed)}); expected a function that needs none")
    found = function()
    if not isinstance(found, tuple | list) or not found:
        shown = "nothing to plan" if isinstance(found, tuple | list) else type(found).__name__
        raise NotAnExample(f"{name} in {file} returned {shown}; expected a tuple (model, *inputs)")
    return found


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise NotAnExample(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _without_default(function: Any) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some functions of C have none to show
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in optional]
