"""The passes that are written in C: compiled when first needed, kept in the user's cache folder.

The text lies in `c/`. Where there is no compiler, or `WEFT_NATIVE=0` is set, each pass has a slow twin in numpy.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.cc import build, compiler

TEXTS = ("work.c", "order.c", "tables.c", "rows.c", "gathers.c", "returns.c", "plan.c", "graphs.c", "wanted.c", "calls.c")
NUMBER, POINTER = ctypes.c_long, ctypes.c_void_p
FUNCTIONS = {
    "weft_plan": (POINTER, (NUMBER, NUMBER, NUMBER, *[POINTER] * 5, NUMBER, NUMBER, POINTER, NUMBER, ctypes.c_int)),
    "weft_fill": (ctypes.c_int, (POINTER, POINTER)),
    "weft_returns": (ctypes.c_int, (POINTER, POINTER)),
    "weft_graph": (POINTER, (POINTER,) * 5),
    "weft_release": (None, (POINTER,)),
    "weft_collect": (ctypes.c_int, (POINTER, NUMBER, POINTER, NUMBER, NUMBER, POINTER, POINTER)),
    "weft_totals": (None, (POINTER, NUMBER, POINTER)),
    "weft_merge": (None, (POINTER, NUMBER, *[POINTER] * 3)),
    "weft_roots": (None, (POINTER, NUMBER, POINTER)),
    "weft_program": (NUMBER, (POINTER, NUMBER, NUMBER, *[POINTER] * 5)),
    "weft_wanted": (NUMBER, (POINTER, NUMBER, NUMBER, POINTER, NUMBER, POINTER, NUMBER, NUMBER, NUMBER, POINTER)),
    "weft_all_known": (ctypes.c_int, (NUMBER, *[POINTER] * 7, NUMBER)),
    "weft_all_read": (ctypes.c_int, (NUMBER, NUMBER, POINTER, POINTER, NUMBER, NUMBER, POINTER)),
    "weft_plan_graphs": (POINTER, (POINTER, NUMBER, NUMBER, POINTER, POINTER, NUMBER, POINTER, NUMBER, ctypes.c_int)),
}


_pointer, _HEAD = POINTER.from_address, object.__basicsize__


@functools.cache
def library() -> Any:
    """The compiled passes; None where the machine cannot have them."""
    path, probe = compiler(), np.zeros(2, dtype=np.int32)
    if path is None or ctypes.sizeof(POINTER) != 8 or any(address(array) != array.ctypes.data for array in (probe, probe[1:])):
        return None
    folder = Path(__file__).parent / "c"
    try:
        made = build(path, "".join((folder / name).read_text(encoding="utf-8") for name in TEXTS), "-O3")
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(made, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError, subprocess.SubprocessError):
        return None
    return made


def address(array: npt.NDArray[Any]) -> int:
    """Where an array's numbers lie.

    It is the first field of numpy's array object, after what every Python object starts with; reading it there takes a tenth
    of the time of numpy's own ways to ask. `library` makes sure that it is so.
    """
    return _pointer(id(array) + _HEAD).value or 0


def is_plain(array: npt.NDArray[Any]) -> bool:
    """Whether C can read an array: 32 bits a number, one after the other."""
    return array.dtype == np.int32 and array.flags.c_contiguous
