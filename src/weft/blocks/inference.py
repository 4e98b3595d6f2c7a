"""Two-way type inference. A type is set once; setting it again must agree.

Every block knows the relations between its own types and those of its parts (`_update`). Setting a type wakes the block and
those that hold it, until nothing changes. If a contradiction comes up, all types set since the outermost step began are taken
back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from weft.blocks.types import ResultType, canonicalize_type
from weft.errors import TypeMismatch

if TYPE_CHECKING:
    from weft.blocks.block import Block


class _Work(threading.local):
    def __init__(self) -> None:
        self.depth = 0
        self.pending: dict[Block, None] = {}
        self.journal: list[tuple[Block, str]] = []
        self.updating: Block | None = None
        """The block that is following up its own types."""


_work = _Work()


@contextmanager
def inferring() -> Iterator[None]:
    """Types set inside are followed up at the end of the outermost of these."""
    _work.depth += 1
    try:
        yield
        if _work.depth == 1:
            _settle()
    except BaseException:
        if _work.depth == 1:
            for block, side in _work.journal:
                block._types[side] = None
        raise
    finally:
        _work.depth -= 1
        if _work.depth == 0:
            _work.pending, _work.journal, _work.updating = {}, [], None


def wake(block: Block) -> None:
    _work.pending[block] = None


def _settle() -> None:
    while _work.pending:
        _work.updating, _ = _work.pending.popitem()
        _work.updating._update()
    _work.updating = None


def set_type(block: Block, side: str, type: Any) -> None:
    """Set the input or output type of a block, or check that it is this one."""
    known = block._types[side]
    if type is known:
        return
    found = canonicalize_type(type)
    if known is None:
        check_classes(block, side, found, block._classes[side])
        block._types[side] = found
        _work.journal.append((block, side))
        wake(block)
        for holder in block._holders():
            wake(holder)
    elif known != found:
        ours, theirs = (found, known) if _work.updating is block else (known, found)
        raise block._differs(side, ours, theirs)


def check_classes(block: Block, side: str, type: ResultType, classes: tuple[type[ResultType], ...]) -> None:
    if not isinstance(type, classes):
        allowed = " or ".join(cls.__name__ for cls in classes)
        raise bad_type(block, side, type, allowed)


def bad_type(block: Block, side: str, type: ResultType, allowed: str) -> TypeMismatch:
    """A type of a class that the block cannot have there."""
    return TypeMismatch(f"bad {side} type {type!r} for {block._path()}, expected {allowed}")
