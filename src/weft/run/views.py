"""Views cost nothing: they belong to no piece, and every piece makes those it needs."""

from __future__ import annotations

from collections.abc import Iterator

from weft.graph import ops
from weft.graph.tape import Value, operands


def is_free(value: Value) -> bool:
    """Views and their parts are made where they are needed; so are the numbers of rows, which differ from piece to piece."""
    if ops.is_getitem(value.target):
        return value.args[0].target in ops.TUPLE_VIEWS
    return ops.is_view(value.target) or value.target in ops.COUNTING


def bases(value: Value, per_step: bool = False) -> Iterator[Value]:
    """The values that must exist so that `value`, seen through views, can be read.

    A piece that runs per step does not make views that are the same for every step (a transposed weight): it is given them.
    """
    same_for_all = per_step and value.shape is not None and value.rows is None
    if not is_free(value) or same_for_all:
        yield value
        return
    for operand in operands(value):
        yield from bases(operand, per_step)
