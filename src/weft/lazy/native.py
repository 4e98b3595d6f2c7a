"""C that works on Python's own objects (`c/*.c`): compiled when it is first needed."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weft.cc import build, compiler

FILES = {"record": ("keys", "record", "numbers", "shortcuts"), "weave": ("arrays", "divide", "rewrite", "reach")}
"""What each library is made of: files that follow each other, as one text."""


@functools.cache
def functions(library: str, *names: str) -> tuple[Callable[[Any], Any], ...] | None:
    """Some functions of a library, each of one object; None without a compiler or Python's headers, or with WEFT_NATIVE=0."""
    path, headers = compiler(), Path(sysconfig.get_paths()["include"])
    unfit = sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED")
    if path is None or unfit or not (headers / "Python.h").exists():
        return None
    folder = Path(__file__).parent / "c"
    text = "\n".join((folder / f"{file}.c").read_text(encoding="utf-8") for file in FILES[library])
    includes = [f'#include "{headers / name}"' for name in ("Python.h", "structmember.h")]
    try:
        made = ctypes.PyDLL(build(path, "\n".join((f"/* {sys.version!r} */", *includes, text)), "-O2")._name)
    except (OSError, subprocess.SubprocessError):
        return None
    found = [getattr(made, name) for name in names]
    for function in found:
        function.restype, function.argtypes = ctypes.py_object, (ctypes.py_object,)
    return tuple(found)
