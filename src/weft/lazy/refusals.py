"""Errors of code that insists on real tensors, in words that say what to do."""

from __future__ import annotations

from weft.errors import TraceError, WeftError
from weft.lazy.value import Value

_SHOWN = (f"{Value.__module__}.", "Value(shape=", "type 'Value'", "operand 'Value'", "not Value", "type Value", "got Value")
"""How the messages of such code show that it met a Value."""


def explained(error: BaseException) -> BaseException:
    """The error itself; where something refused a Value, a TraceError that says what to do."""
    text = str(error).strip()
    if isinstance(error, WeftError) or not isinstance(error, Exception) or not any(shown in text for shown in _SHOWN):
        return error
    meant = TraceError(
        f"{text.splitlines()[0]}: it insists on real tensors; put the call into a weft.cell, or pass weft.value(v)"
    )
    meant.__cause__ = error
    return meant
