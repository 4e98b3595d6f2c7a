"""Calls that were seen before, recorded in C (`c/record.c`): a few tenths of a microsecond each, where Python takes one or two.

A shortcut stands where a Python function stood, looks the call up in the same tables and appends to the same lists; whatever it
does not know it hands to the Python function. Without a compiler, without Python's headers, or with `WEFT_NATIVE=0`, the
Python functions do all of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from weft.lazy.constants import BOOL, INT, Constant
from weft.lazy.mode import HANDLE, SPECIAL, Recording
from weft.lazy.native import functions
from weft.lazy.pools import Rows
from weft.lazy.quick import Quick
from weft.lazy.tape import Tape, active
from weft.lazy.value import ARITHMETIC, COMPARISONS, STEP, Value, picked

BINARY, UNARY, GETITEM, MODULE, MODE, NUMBER, HANDLED, GUARDED, MAKE, ASKED, ITEM = range(11)


@functools.cache
def shortcut_type() -> Any:
    """The type of shortcuts; None where the machine cannot have them."""
    made = functions("record", "weft_shortcuts")
    if made is None:
        return None
    return made[0](
        (
            Value,
            Constant,
            Tape,
            Quick,
            Rows,
            nn.Parameter,
            active,
            picked,
            HANDLE,
            INT,
            BOOL,
            torch._C._len_torch_function_stack,
            SPECIAL,
            STEP,
        )
    )


def shortcut(how: int, name: Any, func: Any, fallback: Callable[..., Any]) -> Any:
    """The fallback, or what does the same in less time where it can."""
    made = shortcut_type()
    return fallback if made is None else made(how, name, func, fallback)


def install() -> None:
    """Give values, and the mode that sees torch functions, their shortcuts."""
    made = shortcut_type()
    if made is None:
        return
    operators = {f"__{name}__" for name in (*COMPARISONS, *ARITHMETIC, *(f"r{name}" for name in ARITHMETIC))}
    for name, method in list(vars(Value).items()):
        func = getattr(Tensor, name, None)
        if name in operators:
            setattr(Value, name, made(BINARY, name, func, method))
        elif getattr(method, "is_unary", False):
            setattr(Value, name, made(UNARY, name, func, method))
    Tape.numbers = made(ASKED, None, None, Tape.numbers)  # type: ignore[method-assign]  # in C
    for name, func in (("item", None), ("__bool__", bool), ("__int__", int), ("__float__", float)):
        setattr(Value, name, made(ITEM, None, func, getattr(Value, name)))
    Tape.make = staticmethod(made(MAKE, None, None, Tape.make))  # type: ignore[method-assign]  # in C
    Value.__getitem__ = made(GETITEM, None, Tensor.__getitem__, Value.__getitem__)  # type: ignore[method-assign]  # in C
    Recording.__torch_function__ = made(MODE, None, None, Recording.__torch_function__)  # type: ignore[method-assign]  # in C
