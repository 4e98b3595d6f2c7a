"""What a recipe does, in an order that needs little memory.

A recipe is written type by type, as its pass was done. As one call it is a list, of which only this must stay: operations on
the same memory follow each other as they did. So

1. a product that is only added to another adds itself up there: gradients of a weight that several types share need no
   memory for each type's part;
2. of all orders that leave it so, one is looked for that needs little: a large gradient is read by all its readers, and its
   memory free, before the next one is made. First by how much is in use at a time, of which orders are built up side by
   side; then by the bytes that the blocks of such an order take when they are placed, which gaps between them make more.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from weft.run.gpu import rowcopy
from weft.run.gpu.onecall.blocks import Block, Storage
from weft.run.gpu.onecall.operations import Launch, Operation, Product, storages_of
from weft.run.gpu.onecall.placing import Placed, Spare, bytes_of_room

MOST_ORDERS = 16
"""So many beginnings of an order are followed at a time."""

MOST_OPERATIONS = 64
"""Of longer lists no order is looked for: that would take seconds."""


@dataclass(frozen=True, eq=False)
class Memory:
    """What is known of the memory that operations use: by storage whose it is, None where nobody writes it; by owner its
    bytes. What is `given` is in use from the start and lies side by side, `results` are in use to the end."""

    owners: Mapping[Storage, Hashable | None]
    bytes: Mapping[Hashable, int]
    given: Sequence[Hashable]
    results: Sequence[Hashable]

    def of(self, operation: Operation) -> list[Hashable]:
        found = dict.fromkeys(self.owners[storage] for storage in storages_of(operation))
        return [owner for owner in found if owner is not None]


def in_thrifty_order(operations: Sequence[Operation], memory: Memory) -> list[Operation]:
    """The same operations, in the order that needs the least memory of those that are tried."""
    if len(operations) > MOST_OPERATIONS:
        return list(operations)
    orders = _Orders([memory.of(operation) for operation in operations], memory)
    found = min((range(len(operations)), orders.built_up()), key=orders.room)
    return [operations[at] for at in orders.improved(tuple(found))]


def room_of(used: Sequence[Sequence[Hashable]], memory: Memory) -> int:
    """Bytes that operations need beside what is given and the results; `used`: what memory each uses."""
    return _Orders(used, memory).room(range(len(used)))


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
        if any(product.out.storage is part.storage for product in products):
            return  # one product, added to itself
        users = [one for one in operations if one is not launch and part.storage in storages_of(one)]
        made = [one for one in users if isinstance(one, Product) and one.out.storage is part.storage]
        if part.storage in results or not made or len(made) < len(users) or not part.is_whole:
            return
        products += made
    for at, product in enumerate(sorted(products, key=operations.index)):
        product.out, product.adds = Block(out.recorder, out.storage, product.out.shape, product.out.strides), at > 0
    operations.remove(launch)


class _Orders:
    """Orders of operations, of which it is known what memory each uses. Sets of operations are numbers, with a bit for each."""

    def __init__(self, used: Sequence[Sequence[Hashable]], memory: Memory) -> None:
        self.used, self.memory = used, memory
        self.users: dict[Hashable, int] = {}
        for at, each in enumerate(used):
            for one in each:
                self.users[one] = self.users.get(one, 0) | 1 << at
        masks = [reduce(or_, [self.users[one] for one in each], 0) for each in used]
        self.before = [mask & ((1 << at) - 1) for at, mask in enumerate(masks)]

    def room(self, order: Sequence[int]) -> int:
        """Bytes that an order needs beside what is given and the results."""
        first: dict[Hashable, int] = {}
        last: dict[Hashable, int] = {}
        for when, at in enumerate(order):
            for one in self.used[at]:
                first.setdefault(one, when)
                last[one] = when
        fixed = [*self.memory.given, *self.memory.results]
        working = [Placed(self.memory.bytes.get(one, 0), first[one], last[one]) for one in first if one not in fixed]
        given = [Spare(self.memory.bytes[one], last.get(one, -1) + 1, len(order)) for one in self.memory.given]
        results = [Spare(self.memory.bytes[one], 0, first[one] - 1) for one in self.memory.results if one in first]
        return bytes_of_room(working, given, results)

    def built_up(self) -> tuple[int, ...]:
        """The order with the least in use at its highest point, of those that are followed."""
        found: dict[int, tuple[int, int, tuple[int, ...]]] = {0: (0, 0, ())}
        for _ in self.used:
            longer: dict[int, tuple[int, int, tuple[int, ...]]] = {}
            for done, (most, now, order) in found.items():
                for at in range(len(self.used)):
                    if done >> at & 1 or self.before[at] & ~done:
                        continue
                    high = now + self._new(at, done)
                    made = max(most, high), high - self._freed(at, done), (*order, at)
                    known = longer.get(done | 1 << at)
                    if known is None or made < known:
                        longer[done | 1 << at] = made
            found = dict(sorted(longer.items(), key=lambda item: item[1])[:MOST_ORDERS])
        return found[(1 << len(self.used)) - 1][2]

    def improved(self, order: tuple[int, ...]) -> tuple[int, ...]:
        """An order in which no operation has a better place."""
        least, again = self.room(order), True
        while again and least:
            again = False
            for at in range(len(order)):
                for other in self._moved(order, at):
                    room = self.room(other)
                    if room < least:
                        order, least, again = other, room, True
        return order

    def _moved(self, order: tuple[int, ...], at: int) -> list[tuple[int, ...]]:
        """An operation at other places, as far as it may go."""
        here = order.index(at)
        rest = order[:here] + order[here + 1 :]
        first = max((place + 1 for place, one in enumerate(rest) if self.before[at] >> one & 1), default=0)
        last = min((place for place, one in enumerate(rest) if self.before[one] >> at & 1), default=len(rest))
        return [(*rest[:place], at, *rest[place:]) for place in range(first, last + 1) if place != here]

    def _new(self, at: int, done: int) -> int:
        """Bytes that an operation is the first to use."""
        new = [one for one in self.used[at] if not self.users[one] & done and one not in self.memory.given]
        return sum(self.memory.bytes.get(one, 0) for one in new)

    def _freed(self, at: int, done: int) -> int:
        """Bytes that it is the last to use."""
        freed = [one for one in self.used[at] if not self.users[one] & ~(done | 1 << at) and one not in self.memory.results]
        return sum(self.memory.bytes.get(one, 0) for one in freed)
