"""Functions of C that are compiled when they are needed, many at a time: the compiler's start takes longer than most do."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from weft.cc import build_functions, function_name
from weft.locks import lock

_loaded: dict[str, Any] = {}
_lock = lock()


class Native:
    """A function of C, by its text, in which it is called NAME; `head` is what comes before, the same for many.

    It is compiled by `compile_all` or when it is first called. Functions of equal text are one.
    """

    def __init__(self, path: str, head: str, text: str, arguments: Sequence[Any]) -> None:
        self.path, self.head, self.text, self.arguments = path, head, text, arguments
        self.name = function_name(path, head, text)
        self.function: Any = _loaded.get(self.name)

    @property
    def ready(self) -> bool:
        return self.function is not None

    def __call__(self, *arguments: int) -> None:
        if self.function is None and not compile_all([self]):
            raise OSError(f"{self.path} cannot compile a part of a function that it compiled before")
        self.function(*arguments)


def compile_all(natives: Sequence[Native]) -> bool:
    """Compile what is not compiled yet, together where it has the same head. Whether all have a function then."""
    with _lock:
        waiting: dict[tuple[str, str], dict[str, Native]] = {}
        for native in natives:
            if native.name not in _loaded:
                waiting.setdefault((native.path, native.head), {})[native.name] = native
        for some in waiting.values():
            _compile(list(some.values()))
        for native in natives:
            native.function = _loaded.get(native.name)
    return all(native.ready for native in natives)


def _compile(natives: Sequence[Native]) -> None:
    """Of one head. Where not all of them compile, those that do."""
    texts = {native.name: native.text for native in natives}
    try:
        functions = build_functions(natives[0].path, natives[0].head, texts)
    except (OSError, subprocess.SubprocessError):
        if len(natives) > 1:
            for native in natives:
                _compile([native])
        return
    for native, function in zip(natives, functions, strict=True):
        function.argtypes, function.restype = native.arguments, None
        _loaded[native.name] = function
