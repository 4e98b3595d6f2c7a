"""The order of one call's operations: those on the same memory follow each other as before, and less memory is needed."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from weft.cc import compiler
from weft.run.gpu import rowcopy
from weft.run.gpu.launch import has_triton
from weft.run.gpu.onecall.blocks import Block, Storage
from weft.run.gpu.onecall.operations import Copy, Launch, Operation, Product, storages_of
from weft.run.gpu.onecall.thrifty import Memory, _Orders, added_up, in_thrifty_order

NOBODY: Any = SimpleNamespace(device=torch.device("cpu"))


def block(name: str, rows: int = 2, columns: int = 2) -> Block:
    return Block(NOBODY, Storage(name, torch.float32, rows * columns), (rows, columns), (columns, 1))


def room(operations: list[Operation], memory: Memory) -> int:
    return _Orders([memory.of(one) for one in operations], memory).room(range(len(operations)))


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_operations_on_the_same_memory_keep_their_order_and_less_is_needed() -> None:
    plain = found = 0
    for seed in range(40):
        made = random.Random(seed)
        blocks = [block(f"m{at}") for at in range(10)]
        operations: list[Operation] = [Copy(made.choice(blocks[:at]), blocks[at]) for at in range(1, 10)]
        operations += [Copy(made.choice(blocks), made.choice(blocks)) for _ in range(4)]
        sizes = {one.storage: 256 * made.randrange(1, 20) for one in blocks}
        memory = Memory({one: one for one in sizes}, sizes, [blocks[0].storage], [blocks[9].storage])
        order = in_thrifty_order(operations, memory)
        assert sorted(map(id, order)) == sorted(map(id, operations))
        for at, one in enumerate(operations):
            for other in operations[:at]:
                if {*storages_of(one)} & {*storages_of(other)}:
                    assert order.index(other) < order.index(one)
        plain, found = plain + room(operations, memory), found + room(order, memory)
        assert room(order, memory) <= room(operations, memory)
    assert found < 0.9 * plain


needs_kernels = pytest.mark.skipif(not has_triton(), reason="the package triton is not installed")


def summed(one: Block, other: Block, out: Block) -> Launch:
    return Launch(rowcopy.adder(torch.float32).kernel, 1, [4, one, other, out])


@needs_kernels
def test_products_that_are_only_summed_add_up() -> None:
    a, b, c, one, two, three, both, all_ = (block(name) for name in ("a", "b", "c", "m0", "m1", "m2", "m3", "m4"))
    products = [Product(a, b, one), Product(b, c, two), Product(a, c, three)]
    found = added_up([*products, summed(one, two, both), summed(both, three, all_)], [all_.storage])
    assert found == products
    assert [product.out.storage for product in products] == [all_.storage] * 3
    assert [product.adds for product in products] == [False, True, True]


@needs_kernels
def test_a_product_that_somebody_else_reads_stays() -> None:
    a, b, one, two, out, elsewhere = (block(name) for name in ("a", "b", "m0", "m1", "m2", "m3"))
    products = [Product(a, b, one), Product(b, a, two)]
    for other, results in ((Copy(one, elsewhere), [out.storage]), (Copy(a, elsewhere), [out.storage, one.storage])):
        operations = [*products, summed(one, two, out), other]
        assert added_up(operations, results) == operations
        assert products[0].out is one and not products[1].adds


@needs_kernels
def test_a_product_that_is_added_to_itself_stays() -> None:
    a, one, both = (block(name) for name in ("a", "m0", "m1"))
    product = Product(a, a, one)
    operations: list[Operation] = [product, summed(one, one, both)]
    assert added_up(operations, [both.storage]) == operations
    assert product.out is one and not product.adds
