"""Kinds of calls that differ from known ones in their sizes alone are traced when they have been used often, and not before.

A function of a whole sequence is another kind of call for every length. To trace and compile one takes as long as to run it a
hundred times by plain vmap, which is not much slower than traced. So only the first few sizes of a form are traced at once:

    uses of a new size     1  2  3  ...  OFTEN  |  then
                           plain vmap           |  traced, one kind in a flush, so that no flush takes long

It loses where all sizes come about OFTEN times and never again: then both costs are paid.
"""

from __future__ import annotations

from collections.abc import Hashable

from torch import nn

from weft.graph.calls import CallType

FEW, OFTEN = 3, 16
"""So many sizes of one form are traced at once; further ones after so many uses."""

NEW = "it is like others but for its sizes, and has not been used often yet"
"""Why such a cell is not traced."""


class Young:
    """How often kinds of calls were used that may be traced later."""

    def __init__(self) -> None:
        self._traced: dict[Hashable, set[int]] = {}
        """For each form the kinds of calls that are not young."""
        self._uses: dict[int, int] = {}
        self._has_grown = False

    def begin(self) -> None:
        """Another flush: one kind of call may be traced that was young until now."""
        self._has_grown = False

    def is_young(self, t: int, kind: CallType) -> bool:
        """Whether this kind of call, which is used now, is not to be traced yet. What draws numbers always draws them alike."""
        if kind.random or kind.many is not None or kind.hands_on:
            return False
        traced = self._traced.setdefault(_form(kind), set())
        if t not in traced and len(traced) >= FEW:
            self._uses[t] = self._uses.get(t, 0) + 1
            if self._uses[t] <= OFTEN or self._has_grown:
                return True
            self._has_grown = True
        traced.add(t)
        return False


def _form(kind: CallType) -> Hashable:
    """What is computed, for tensors of all sizes."""
    tensors = [(len(spec.shape), spec.dtype) for spec in (*kind.args, *kind.feeds, *kind.outputs)]
    return kind.name, *tensors, *[id(owner) for owner in kind.owners if isinstance(owner, nn.Module)]
