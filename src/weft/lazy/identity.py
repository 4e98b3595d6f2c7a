"""When two functions are the same: a cell made anew in every call of the code around it must not be learned anew.

Functions of the same code are the same if what they close over is: numbers and strings by what they are, modules, parameters
and classes by identity. Values that it closes over are arguments of the call. What closes over anything else (a tensor, a list)
is itself alone. A function that is one of many is recorded as a copy that holds its variables as they are now, since the code
around it may give them other values before the recording runs.
"""

from __future__ import annotations

from types import BuiltinFunctionType, CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from weft.lazy.value import Value

_PLAIN = frozenset((bool, int, str, bytes, type(None), torch.dtype, torch.device, torch.Size))
_HELD = (nn.Module, nn.Parameter, type, BuiltinFunctionType)
"""What is the same if it is the same object; the recording holds it."""


def identity(fn: Any, within: tuple[Any, ...] = (), numbers: bool = True) -> Any:
    """What equals for functions that do the same; the function itself where only it does. `within`: who closes over it.

    Without `numbers` functions are the same that differ only in which numbers with a fraction they close over.
    """
    if isinstance(fn, MethodType):
        held = isinstance(fn.__self__, nn.Module)
        return (MethodType, id(fn.__self__), identity(fn.__func__, within, numbers)) if held else fn
    if not isinstance(fn, FunctionType) or fn.__defaults__ or fn.__kwdefaults__ or fn.__dict__.keys() - _OURS:
        return fn
    if fn.__closure__ is None:
        return (FunctionType, id(fn.__code__), id(fn.__globals__))
    key: list[Any] = [FunctionType, id(fn.__code__), id(fn.__globals__)]
    for cell in fn.__closure__:
        part = _part(cell, (*within, fn), numbers)
        if part is None:
            return fn
        key.append(part)
    return tuple(key)


_OURS = {"__wrapped__", "_weft_recorded"}


def _part(cell: CellType, within: tuple[Any, ...], numbers: bool) -> Any:
    """A variable of a closure, as a key; None where it cannot be one."""
    try:
        found = cell.cell_contents
    except ValueError:
        return None
    cls = found.__class__
    if cls is float and not numbers:
        return float
    if cls in _PLAIN or cls is float:
        return (cls, found if cls is not float or (found == found and found != 0) else repr(found))
    if isinstance(found, Value):
        return Value
    if isinstance(found, FunctionType | MethodType):
        inner = found if found in within else identity(found, within, numbers)  # what calls itself is itself alone
        return None if inner is found else inner
    return (cls, id(found)) if isinstance(found, _HELD) else None


def closed_over(fn: Any) -> tuple[Value, ...]:
    """The values among the variables of a function's closure."""
    cells = fn.__closure__ if isinstance(fn, FunctionType) and fn.__closure__ else ()
    return tuple(cell.cell_contents for cell in cells if isinstance(cell.cell_contents, Value))


class Frozen:
    """A function with its variables as they are now; those that are values come as its first argument."""

    def __init__(self, fn: FunctionType) -> None:
        found = [cell.cell_contents for cell in fn.__closure__ or ()]
        self.places = tuple(at for at, each in enumerate(found) if isinstance(each, Value))
        self.fn = _with_variables(fn, [None if at in self.places else frozen(each) for at, each in enumerate(found)])
        self.__name__, self.__qualname__ = fn.__name__, fn.__qualname__

    def __call__(self, values: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
        variables = [cell.cell_contents for cell in self.fn.__closure__ or ()]
        for at, value in zip(self.places, values, strict=True):
            variables[at] = value
        return _with_variables(self.fn, variables)(*args, **kwargs)


def frozen(fn: Any) -> Any:
    """The function with its variables as they are now."""
    if not isinstance(fn, FunctionType) or fn.__closure__ is None or fn is identity(fn):
        return fn
    return _with_variables(fn, [frozen(cell.cell_contents) for cell in fn.__closure__])


def _with_variables(fn: FunctionType, variables: list[Any]) -> FunctionType:
    made = FunctionType(fn.__code__, fn.__globals__, fn.__name__, None, tuple(map(CellType, variables)))
    made.__qualname__ = fn.__qualname__
    return made
