"""One call without copies that need not be made: the same results, by fewer operations."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from weft.run.gpu.onecall.blocks import Block, Storage
from weft.run.gpu.onecall.copies import without_copies
from weft.run.gpu.onecall.operations import Copy, Fill, Operation, Product

NOBODY: Any = SimpleNamespace(device=torch.device("cpu"))
SIDE = 2


def memory(name: str, blocks: int = 1, given: bool = False) -> Block:
    """So many square matrices, one behind the other."""
    rows = SIDE * blocks
    return Block(NOBODY, Storage(name, torch.float64, None if given else rows * SIDE), (rows, SIDE), (SIDE, 1))


def part(of: Block, number: int) -> Block:
    return of.narrow(0, SIDE * number, SIDE)


def done(operations: list[Operation], start: dict[str, Tensor]) -> dict[str, Tensor]:
    """What is in memory in the end."""
    found = {name: tensor.clone() for name, tensor in start.items()}

    def seen(block: Block) -> Tensor:
        assert isinstance(block.offset, int)
        return found[block.storage.name].as_strided((SIDE, SIDE), (SIDE, 1), block.offset)

    for one in operations:
        if isinstance(one, Copy):
            seen(one.out).copy_(seen(one.one))
        elif isinstance(one, Fill):
            seen(one.out).zero_()
        elif isinstance(one, Product):
            seen(one.out).copy_(seen(one.one) @ seen(one.other))
    return found


def test_what_is_made_to_be_copied_is_made_there() -> None:
    a, m, out = memory("a", given=True), memory("m"), memory("out", 3)
    product = Product(a, a, m)
    assert without_copies([product, Copy(m, part(out, 1))], [out.storage]) == [product]
    assert product.out.storage is out.storage and product.out.offset == SIDE * SIDE


def test_parts_are_made_at_their_place() -> None:
    a, m, out = memory("a", given=True), memory("m", 2), memory("out", 3)
    parts = [Fill(part(m, 0)), Product(a, a, part(m, 1))]
    assert without_copies([*parts, Copy(m, out.narrow(0, SIDE, 2 * SIDE))], [out.storage]) == parts
    assert [one.out.offset for one in parts] == [SIDE * SIDE, 2 * SIDE * SIDE]


def test_what_is_read_afterwards_or_received_is_copied() -> None:
    a, m, out, more = memory("a", given=True), memory("m"), memory("out"), memory("more")
    for results, after in (([out.storage, m.storage], []), ([out.storage, more.storage], [Product(m, a, more)])):
        operations: list[Operation] = [Product(a, a, m), Copy(m, out), *after]
        assert without_copies(operations, results) == operations


def test_what_is_given_is_copied() -> None:
    a, out, given = memory("a", given=True), memory("out"), memory("g", given=True)
    m = memory("m")
    for operations in ([Copy(a, out)], [Fill(m), Copy(m, given)]):
        assert without_copies(operations, [out.storage]) == operations


def test_a_place_that_is_used_until_then_is_copied_to() -> None:
    a, m, out = memory("a", given=True), memory("m"), memory("out")
    operations = [Fill(out), Product(a, a, m), Product(out, a, part(memory("b"), 0)), Copy(m, out)]
    assert without_copies(operations, [out.storage]) == operations


def test_random_operations_give_the_same() -> None:
    fewer = 0
    for seed in range(300):
        made = random.Random(seed)
        torch.manual_seed(seed)
        given = memory("a", 2, given=True)
        fresh = [memory(f"m{at}", at % 2 + 1) for at in range(6)]
        places = [part(one, at) for one in fresh for at in range(int(one.numel()) // SIDE**2)]
        written, operations = [part(given, 0), part(given, 1)], list[Operation]()
        for _ in range(10):
            out, one, other = made.choice(places), made.choice(written), made.choice(written)
            made_by = Fill(out), Product(one, other, out), Copy(one, out), Copy(one, out)
            operation = made_by[made.randrange(4)]
            if not isinstance(operation, Copy) or one.storage is not out.storage:
                operations.append(operation)
                written.append(out)
        results = made.sample(fresh, 2)
        start = {one.storage.name: torch.randn(int(one.numel()), dtype=torch.float64) for one in (given, *fresh)}
        expected = done(operations, start)
        shorter = without_copies(operations, [one.storage for one in results])
        found, fewer = done(shorter, start), fewer + len(operations) - len(shorter)
        for one in results:
            assert torch.equal(found[one.storage.name], expected[one.storage.name]), seed
    assert fewer > 30
