"""The tape: a cell's traced operations, forward and backward, valid for any number of rows.

Sizes that grow with the batch appear as `Rows`: `Rows("n", 2)` is twice the number of vertices, `Rows("e", 1)` the number of
edges. A tape comes from tracing the same function at two pairs of prime row counts and comparing (`weft.graph.twin`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch


@dataclass(frozen=True)
class Rows:
    """A size proportional to the number of vertices ("n") or edges ("e") of a batch."""

    kind: str
    times: int = 1


Name = tuple[Any, ...]
"""What an input or output is called; the first entry says of which kind it is."""

Shape = tuple["int | Rows", ...]


@dataclass(eq=False)
class Value:
    """One traced operation and its result; an input has no target. `shape` is None for operations with several results."""

    name: str
    target: Callable[..., Any] | None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    shape: Shape | None = None
    dtype: torch.dtype | None = None
    constant: torch.Tensor | None = None

    def __repr__(self) -> str:
        return f"%{self.name}"

    @cached_property
    def row_dim(self) -> int | None:
        """The dimension that carries rows, None for a value that is the same for every row."""
        return next((i for i, size in enumerate(self.shape or ()) if isinstance(size, Rows)), None)

    @cached_property
    def rows(self) -> Rows | None:
        at = self.row_dim
        size = None if at is None or self.shape is None else self.shape[at]
        return size if isinstance(size, Rows) else None


@dataclass(eq=False)
class Tape:
    """Operations in order, with named inputs and outputs. An output may be None: that gradient does not exist."""

    inputs: dict[Name, Value]
    values: list[Value]
    outputs: dict[Name, Value | None]


def operands(value: Value) -> Iterator[Value]:
    """The values that an operation reads, repeats included."""
    yield from walk((value.args, value.kwargs))


def walk(item: Any) -> Iterator[Value]:
    if isinstance(item, Value):
        yield item
    elif isinstance(item, tuple | list):
        for part in item:
            yield from walk(part)
    elif isinstance(item, dict):
        for part in item.values():
            yield from walk(part)


def replace(item: Any, change: Callable[[Value], Value]) -> Any:
    """The same nest with every value changed."""
    if isinstance(item, Value):
        return change(item)
    if isinstance(item, tuple):
        return tuple(replace(part, change) for part in item)
    if isinstance(item, list):
        return [replace(part, change) for part in item]
    if isinstance(item, dict):
        return {key: replace(part, change) for key, part in item.items()}
    return item


def prune(tape: Tape) -> None:
    """Drop operations that no output needs."""
    needed: set[int] = {id(value) for value in tape.outputs.values() if value is not None}
    kept: list[Value] = []
    for value in reversed(tape.values):
        if id(value) in needed:
            kept.append(value)
            needed.update(id(operand) for operand in operands(value))
    tape.values = kept[::-1]
