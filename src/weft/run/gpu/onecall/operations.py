"""What a recipe does to memory, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from weft.run.gpu.launch import Kernel
from weft.run.gpu.onecall.blocks import Block, Either, Storage
from weft.run.gpu.onecall.numbers import Size
from weft.run.gpu.sweep import Walk
from weft.run.gpu.table import Limits


@dataclass(eq=False)
class Launch:
    """A kernel: `arguments` are numbers and blocks; where `only` is given, it is launched if that number is negative."""

    kernel: Kernel
    programs: Size
    arguments: list[Size | Block]
    constants: tuple[Any, ...] = ()
    only: Size | None = None


@dataclass(eq=False)
class Product:
    """out = one @ other; or, where it `adds`, out += one @ other."""

    one: Block
    other: Block
    out: Block
    adds: bool = False


@dataclass(eq=False)
class Fill:
    """Zeros."""

    out: Block


@dataclass(eq=False)
class Copy:
    """The same numbers elsewhere."""

    one: Block
    out: Block


@dataclass(eq=False)
class Turns:
    """Stretches of a group's steps, from the `first` on: by a sweep's kernels, or one by one, by the operations in `apart`.

    In these operations `at` is the step's number, `lo` and `hi` are its rows.
    """

    turns: str
    """The variable of the steps' rows."""
    first: int
    limits: Limits
    """Which tell how wide a step is."""
    walk: Walk
    arguments: list[Size | Block]
    """Of the sweep: the table first."""
    apart: list[Operation] = field(default_factory=list)


Operation = Launch | Product | Fill | Copy | Turns


def blocks_of(operation: Operation) -> Iterator[Block]:
    """Everything that an operation reads or writes."""
    if isinstance(operation, Product):
        yield from (operation.one, operation.other, operation.out)
    elif isinstance(operation, Copy):
        yield from (operation.one, operation.out)
    elif isinstance(operation, Fill):
        yield operation.out
    else:
        yield from (one for one in operation.arguments if isinstance(one, Block))
        for inner in operation.apart if isinstance(operation, Turns) else ():
            yield from blocks_of(inner)


def storages_of(operation: Operation) -> Iterator[Storage]:
    """The memory behind these."""
    pending = list(blocks_of(operation))
    while pending:
        storage = pending.pop().storage
        if isinstance(storage, Either):
            assert storage.one is not None and storage.other is not None
            pending += [storage.one, storage.other]
        else:
            yield storage
