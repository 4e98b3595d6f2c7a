"""What a recipe does, in an order that needs little memory.

A recipe is written type by type, as its pass was done. As one call it is a list, of which only this must stay: operations on
the same memory follow each other as they did. So

1. a product that is only added to another adds itself up there: gradients of a weight that several types share need no
   memory for each type's part;
2. of all orders that leave it so, one is looked for that needs little: a large gradient is read by all its readers, and its
   memory free, before the next one is made.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from weft.run.gpu import rowcopy
from weft.run.gpu.onecall.blocks import Block, Storage, same
from weft.run.gpu.onecall.operations import Launch, Operation, Product, storages_of

MOST_ORDERS = 32
"""So many beginnings of an order are followed at a time."""


@dataclass(frozen=True, eq=False)
class Memory:
    """What is known of the memory that operations use: by storage whose it is, None where nobody writes it; by owner its
    bytes. What is `given` is in use from the start, `results` are in use to the end."""

    owners: Mapping[Storage, Hashable | None]
    bytes: Mapping[Hashable, int]
    given: frozenset[Hashable]
    results: frozenset[Hashable]

    def of(self, operation: Operation) -> set[Hashable]:
        found = {self.owners[storage] for storage in storages_of(operation)}
        return found - {None}


def in_thrifty_order(operations: Sequence[Operation], memory: Memory) -> list[Operation]:
    """The same operations, in the order that needs the least memory of those that are tried."""
    plain = _Order(operations, memory)
    least = plain.least()
    return list(min((plain, least, least.late()), key=lambda order: order.most()).operations)


def added_up(operations: Sequence[Operation], results: Sequence[Storage]) -> list[Operation]:
    """The operations without sums of two products: the second is added to the first."""
    found = list(operations)
    for launch in operations:
        if isinstance(launch, Launch):
            _add_up(found, launch, results)
    return found


def _add_up(operations: list[Operation], launch: Launch, results: Sequence[Storage]) -> None:
    out = launch.arguments[-1]
    if not isinstance(out, Block) or launch.kernel is not rowcopy.adder(out.dtype).kernel:
        return
    products: list[Product] = []
    for part in launch.arguments[1:3]:
        assert isinstance(part, Block)
        users = [one for one in operations if one is not launch and part.storage in storages_of(one)]
        made = [one for one in users if isinstance(one, Product) and one.out.storage is part.storage]
        whole = same((part.numel(), part.offset), (part.storage.count or 0, 0))
        if part.storage in results or not made or len(made) < len(users) or not whole:
            return
        products += made
    for at, product in enumerate(sorted(products, key=operations.index)):
        product.out, product.adds = Block(out.recorder, out.storage, product.out.shape, product.out.strides), at > 0
    operations.remove(launch)


class _Order:
    """One order of the operations. Sets of operations are numbers, with a bit for each."""

    def __init__(self, operations: Sequence[Operation], memory: Memory) -> None:
        self.operations, self.memory = operations, memory
        self.used = [memory.of(operation) for operation in operations]
        self.users: dict[Hashable, int] = {}
        for at, used in enumerate(self.used):
            for one in used:
                self.users[one] = self.users.get(one, 0) | 1 << at
        self.all = (1 << len(self.used)) - 1

    def most(self) -> int:
        """Bytes in use at the highest point."""
        found = [sum(self.memory.bytes.get(one, 0) for one in self.memory.given)]
        now, done = found[0], 0
        for at in range(len(self.used)):
            found.append(now + self._new(at, done))
            now += self._new(at, done) - self._freed(at, done)
            done |= 1 << at
        return max(found)

    def least(self) -> _Order:
        """Of many orders, built up side by side, the one that needs the least."""
        before = [reduce(or_, [self.users[one] for one in used], 0) & ((1 << at) - 1) for at, used in enumerate(self.used)]
        found: dict[int, tuple[int, int, tuple[int, ...]]] = {0: (0, 0, ())}
        for _ in self.used:
            longer: dict[int, tuple[int, int, tuple[int, ...]]] = {}
            for done, (most, now, order) in found.items():
                for at in range(len(self.used)):
                    if done >> at & 1 or before[at] & ~done:
                        continue
                    high = now + self._new(at, done)
                    made = max(most, high), high - self._freed(at, done), (*order, at)
                    known = longer.get(done | 1 << at)
                    if known is None or made < known:
                        longer[done | 1 << at] = made
            found = dict(sorted(longer.items(), key=lambda item: item[1])[:MOST_ORDERS])
        return self._reordered(found[self.all][2])

    def late(self) -> _Order:
        """What allocates comes right before the next operation on that memory."""
        found: list[int] = []
        for at in range(len(self.used) - 1, -1, -1):
            done, place = (1 << at) - 1, 0
            if self._new(at, done) > self._freed(at, done):
                place = next((i for i, one in enumerate(found) if self.used[one] & self.used[at]), 0)
            found.insert(place, at)
        return self._reordered(found)

    def _new(self, at: int, done: int) -> int:
        """Bytes that an operation is the first to use."""
        return sum(
            self.memory.bytes.get(one, 0)
            for one in self.used[at]
            if not self.users[one] & done and one not in self.memory.given
        )

    def _freed(self, at: int, done: int) -> int:
        """Bytes that it is the last to use."""
        left = self.all & ~done & ~(1 << at)
        return sum(
            self.memory.bytes.get(one, 0)
            for one in self.used[at]
            if not self.users[one] & left and one not in self.memory.results
        )

    def _reordered(self, order: Sequence[int]) -> _Order:
        return _Order([self.operations[at] for at in order], self.memory)
