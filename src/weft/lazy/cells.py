"""`weft.cell`: mark a static function of one example's tensors as one unit of batching."""

from __future__ import annotations

import functools
from collections.abc import Callable
from sys import _getframe
from typing import Any, TypeVar

from torch import nn

from weft.errors import TypeMismatch
from weft.lazy.blame import CELL
from weft.lazy.modules import record_owned
from weft.lazy.tape import active

F = TypeVar("F", bound=Callable[..., Any])


def cell(fn_or_module: F) -> F:
    """Mark a function, a method, a module or a module class as one unit: what happens inside is one recorded call.

    A marked module stays what it is: the same object, with its attributes, `state_dict` keys, hooks and modes. A marked
    function is a function; both simply compute where nothing is being recorded. Inside there are real tensors, so everything
    that insists on them works there. Arguments are nests of tensors and of constants that hash; what is done may depend on
    the constants and on shapes, not on the numbers in tensors.

    >>> import torch, weft
    >>> @weft.cell
    ... def gate(x, y):
    ...     return torch.sigmoid(x) * y
    >>> gate(torch.zeros(2), torch.ones(2))
    tensor([0.5000, 0.5000])
    >>> weft.batched(gate)(torch.zeros(3, 2), torch.ones(3, 2)).shape
    torch.Size([3, 2])
    """
    if isinstance(fn_or_module, nn.Module):
        fn_or_module.__dict__[CELL] = True
        return fn_or_module
    if isinstance(fn_or_module, type):
        if not issubclass(fn_or_module, nn.Module):
            raise TypeMismatch(
                f"weft.cell: expected a function, a module or a module class, got the class {fn_or_module.__name__}"
            )
        setattr(fn_or_module, CELL, True)
        return fn_or_module
    if not callable(fn_or_module):
        raise TypeMismatch(f"weft.cell: expected a function, a module or a module class, got {type(fn_or_module).__name__}")
    return _marked(fn_or_module)


def _marked(fn: F) -> F:
    @functools.wraps(fn)
    def marked(*args: Any, **kwargs: Any) -> Any:
        tape = active.tape
        if tape is None or tape.paused:
            return fn(*args, **kwargs)
        return record_owned(tape, fn, args, kwargs, _getframe(1), None)

    return marked  # type: ignore[return-value]  # it takes and gives what fn does
