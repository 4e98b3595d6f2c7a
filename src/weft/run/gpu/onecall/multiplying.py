"""Products by kernels of ours (`run/gpu/products.py`), with other tiles for more rows; for many rows by the library.

They take rows themselves from where they are, instead of having them copied before.

    take     a, places -> b
    product  b, weight -> c      becomes      product  a, places, weight -> c
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.run.gpu import products, rowcopy
from weft.run.gpu.onecall.blocks import Block, Storage, same
from weft.run.gpu.onecall.numbers import Size, at_least
from weft.run.gpu.onecall.operations import Launch, Operation, Product, storages_of


def with_our_products(operations: Sequence[Operation], results: Sequence[Storage]) -> list[Operation]:
    """The operations, with launches for products that are ours, each before that of the library."""
    takes = _takes(operations, results)
    found: list[Operation] = []
    for operation in operations:
        if isinstance(operation, Product) and operation.ours and not operation.adds:
            found += _launches(operation, takes.get(operation.one.storage))
            rows, (inner, columns) = operation.one.shape[0], _sizes(operation)
            operation.only = at_least(rows, products.most_rows(inner, columns))
        found.append(operation)
    for copied, take in takes.items():
        users = [one for one in operations if isinstance(one, Product) and one.one.storage is copied]
        take.only = at_least(users[0].one.shape[0], min(products.most_rows(*_sizes(one)) for one in users))
        assert copied.count is not None
        copied.count = copied.count * take.only
    return found


def _sizes(product: Product) -> tuple[int, int]:
    """The numbers of a row, and the columns, of a product that is ours."""
    inner, columns = product.other.shape
    assert isinstance(inner, int) and isinstance(columns, int)
    return inner, columns


def _launches(product: Product, take: Launch | None) -> list[Launch]:
    (inner, columns), weight, found = _sizes(product), product.other.t(), []
    rows, a, places = product.one.shape[0], product.one, product.one
    if take is not None:
        _, a, places, *_ = _blocks(take)
    numbers = (rows, a.shape[0], *products.parts(inner, columns))
    for least, end, tile in products.ranges(inner, columns, a.device):
        quick = products.multiplier(a.dtype, tile, take is not None, inner, columns)
        programs: Size = eval(quick.grid, {f"n{at}": number for at, number in enumerate(numbers)})
        between = (at_least(rows, least) if least else 1) * (1 - at_least(rows, end))
        found.append(Launch(quick.kernel, programs, [*numbers, product.out, a, places, weight], quick.constants, between))
    return found


def _takes(operations: Sequence[Operation], results: Sequence[Storage]) -> dict[Storage, Launch]:
    """What takes rows for such products alone, by the memory that they are copied to."""
    found = {}
    for take in operations:
        if isinstance(take, Launch) and _takes_given_rows(take):
            copied = _blocks(take)[0]
            users = [one for one in operations if one is not take and copied.storage in storages_of(one)]
            if users and copied.storage not in results and all(_multiplies(one, copied) for one in users):
                found[copied.storage] = take
    return found


def _blocks(launch: Launch) -> list[Block]:
    return [one for one in launch.arguments if isinstance(one, Block)]


def _takes_given_rows(launch: Launch) -> bool:
    """Whether a launch takes rows of what nobody writes to, and adds nothing to them."""
    if launch.only is not None or len(blocks := _blocks(launch)) != 5:
        return False
    out, a, places, *_ = blocks
    width = a.shape[-1]
    if a.dim() != 2 or not isinstance(width, int) or launch.kernel is not rowcopy.taker(a.dtype, False, width).kernel:
        return False
    return same((out.offset,), (0,)) and all(one.storage.name.startswith(("t", "f")) for one in (a, places))


def _multiplies(product: Operation, rows: Block) -> bool:
    """Whether that is all that an operation does with rows."""
    if not isinstance(product, Product) or not product.ours or product.adds or product.other.storage is rows.storage:
        return False
    one = product.one
    return same((*one.shape, *one.strides, one.offset), (*rows.shape, *rows.strides, 0))
