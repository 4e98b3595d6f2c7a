"""Errors in the user's words. Every error that weft raises on purpose derives from `WeftError`."""

from __future__ import annotations

import sys
import warnings
from types import FrameType


class WeftError(Exception):
    """Base of all errors that weft raises on purpose.

    >>> import weft
    >>> issubclass(weft.StructureError, weft.WeftError)
    True
    """


class StructureError(WeftError):
    """The structure of an example cannot be computed: a cycle, a missing field, empty where something is needed."""


class MissingKey(WeftError, KeyError):
    """A key or field that a model reads does not exist."""

    __str__ = Exception.__str__


class TypeMismatch(WeftError, TypeError):
    """A value of one kind came where another kind was expected."""


class ShapeError(WeftError, ValueError, RuntimeError):
    """A tensor of one shape, dtype or length came where another was expected."""


class TraceError(WeftError):
    """Something that cannot be recorded or batched; the message says the way out."""


FROM_OUTSIDE = (TimeoutError, InterruptedError, MemoryError)
"""What no code and no data is to blame for; an alarm, for one, raises a TimeoutError anywhere."""


class FallbackWarning(UserWarning):
    """A cell runs by a slower way of batching than it could; the message names it and says why."""


def warn(text: str, category: type[Warning] = FallbackWarning) -> None:
    """Warn at the line of the user's code that led here: the nearest that is neither weft's, nor generated, nor torch's."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("weft", "torch", ""):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)
