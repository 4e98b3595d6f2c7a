"""Copies that need not be made: what is only made to be copied elsewhere is made there.

look up rows -> m3              look up rows -> rows 5 to 9 of m1
copy m3 -> rows 5 to 9 of m1
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.run.gpu.onecall.blocks import Block, Storage
from weft.run.gpu.onecall.operations import Copy, Fill, Launch, Operation, Product, Turns, storages_of


def without_copies(operations: Sequence[Operation], results: Sequence[Storage]) -> list[Operation]:
    """The operations without such copies; what the caller receives stays where it is."""
    found = list(operations)
    for copy in operations:
        if isinstance(copy, Copy):
            _spare(found, copy, results)
    return found


def _spare(operations: list[Operation], copy: Copy, results: Sequence[Storage]) -> None:
    made, place = copy.one, copy.out
    if not made.is_whole or made.storage.count is None or place.storage.count is None or made.storage in results:
        return
    end = operations.index(copy)
    users = [at for at, one in enumerate(operations) if one is not copy and made.storage in storages_of(one)]
    if not users or users[-1] > end or any(isinstance(operations[at], Turns) for at in users):
        return
    if any(place.storage in storages_of(one) for one in operations[users[0] : end]):
        return
    for at in users:
        _move(operations[at], made.storage, place)
    del operations[end]


def _move(operation: Operation, storage: Storage, place: Block) -> None:
    """Let an operation use another place instead of some memory."""

    def moved(block: Block) -> Block:
        if block.storage is not storage:
            return block
        return Block(block.recorder, place.storage, block.shape, block.strides, place.offset + block.offset)

    if isinstance(operation, Product):
        operation.one, operation.other, operation.out = map(moved, (operation.one, operation.other, operation.out))
    elif isinstance(operation, Copy):
        operation.one, operation.out = moved(operation.one), moved(operation.out)
    elif isinstance(operation, Fill):
        operation.out = moved(operation.out)
    elif isinstance(operation, Launch):
        operation.arguments = [moved(one) if isinstance(one, Block) else one for one in operation.arguments]
