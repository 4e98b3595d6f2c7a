"""Where the stack of a fiber begins.

Torch walks up the stack when it makes an error. A fiber goes on where another part of the program called it, not where it was
begun, so what lies above its first frame is not what it was: walking there may end in a crash. One function in C, which every
fiber begins with, tells all who walk that there is nothing above it. Without a compiler fibers begin without.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weft.cc import build, compiler

SOURCE = """
PyObject *weft_begin(PyObject *nobody, PyObject *given) {
#if defined(__x86_64__)
    __asm__ volatile(".cfi_undefined rip");
#elif defined(__aarch64__)
    __asm__ volatile(".cfi_undefined x30");
#endif
    PyObject *result = PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(given, 0), PyTuple_GET_ITEM(given, 1), NULL);
    __asm__ volatile("" ::: "memory"); /* so that the call is no jump, and this frame stays */
    return result;
}

static PyMethodDef method = {"begin", weft_begin, METH_VARARGS, NULL};

PyObject *weft_beginning(void) { return PyCFunction_New(&method, NULL); }
"""


@functools.cache
def _begin() -> Any:
    """The function in C; None where it cannot be made."""
    path, header = compiler(), Path(sysconfig.get_paths()["include"]) / "Python.h"
    if path is None or not header.exists():
        return None
    try:
        made = build(path, f'#include "{header}"\n{SOURCE}', "-O1")
    except (OSError, subprocess.SubprocessError):
        return None
    function = ctypes.PyDLL(made._name).weft_beginning
    function.restype = ctypes.py_object
    return function()


def bounded(function: Callable[[Any], None]) -> Callable[[Any], None]:
    """The function of one argument as one that a fiber may begin with."""
    begin = _begin()
    return function if begin is None else functools.partial(begin, function)
