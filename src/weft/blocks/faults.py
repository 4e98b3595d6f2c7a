"""Errors of blocks that are of two kinds at once: weft's own, and the one that Python code would catch."""

from __future__ import annotations

from weft.errors import MissingKey, ShapeError, StructureError, TypeMismatch


class WiringError(StructureError, ValueError):
    """Blocks that cannot be wired so: a cycle, recursion without end, or no composition to wire them in."""


class Unresolved(StructureError, TypeMismatch):
    """A declaration that stands for nothing yet."""


class Endless(StructureError):
    """Data that contains itself."""


class NoOrder(TypeMismatch, RuntimeError):
    """A tuple came where items are known by name alone."""


class MissingIndex(MissingKey, IndexError):
    """An index outside a list."""


class WrongInput(ShapeError, TypeMismatch):
    """A layer was given a tensor of another shape or dtype than it takes, or a list came where a number belongs."""


class NotMade(RuntimeError, AttributeError):
    """A parameter that does not exist, or not yet."""
