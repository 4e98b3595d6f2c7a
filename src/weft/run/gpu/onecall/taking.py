"""Products take rows themselves from where they are, instead of having them copied before.

    take     a, places -> b
    product  b, weight -> c      becomes      product  a, places, weight -> c

That is a kernel of ours (`run/gpu/products.py`), with other tiles for more rows. From some number of rows on, it is the
library's product of copied rows as before.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.run.gpu import products, rowcopy
from weft.run.gpu.onecall.blocks import Block, Storage, same
from weft.run.gpu.onecall.numbers import Size, at_least
from weft.run.gpu.onecall.operations import Launch, Operation, Product, storages_of


def with_taken_rows(operations: Sequence[Operation], results: Sequence[Storage]) -> list[Operation]:
    """The operations, with such products wherever rows are taken only for products."""
    found = list(operations)
    for take in operations:
        if isinstance(take, Launch) and _takes_given_rows(take) and _block(take, 0).storage not in results:
            copied = _block(take, 0).storage
            users = [one for one in operations if one is not take and copied in storages_of(one)]
            if all(_may_take(one, _block(take, 0)) for one in users):
                _take_there(found, take, [one for one in users if isinstance(one, Product)])
    return found


def _block(launch: Launch, number: int) -> Block:
    """Which of the blocks that a launch is given."""
    return [one for one in launch.arguments if isinstance(one, Block)][number]


def _takes_given_rows(launch: Launch) -> bool:
    """Whether a launch takes rows of what nobody writes to, and adds nothing to them."""
    if launch.only is not None or len(blocks := [one for one in launch.arguments if isinstance(one, Block)]) != 5:
        return False
    out, a, places, *_ = blocks
    width = a.shape[-1]
    if a.dim() != 2 or not isinstance(width, int) or launch.kernel is not rowcopy.taker(a.dtype, False, width).kernel:
        return False
    given = all(one.storage.name.startswith(("t", "f")) for one in (a, places))
    return given and same((out.offset,), (0,))


def _may_take(product: Operation, rows: Block) -> bool:
    if not isinstance(product, Product) or product.adds or product.other.storage is rows.storage:
        return False
    weight, one = product.other.t(), product.one
    columns, inner = weight.shape
    if not isinstance(columns, int) or not isinstance(inner, int) or not weight.contiguous_:
        return False
    as_taken = same((*one.shape, *one.strides, one.offset), (*rows.shape, *rows.strides, 0))
    return as_taken and products.multiplies(one.dtype, inner, columns)


def _take_there(operations: list[Operation], take: Launch, users: Sequence[Product]) -> None:
    """Have products take the rows; and have them copied where the library multiplies one of them."""
    copied, a, places, *_ = (one for one in take.arguments if isinstance(one, Block))
    rows, limits = places.shape[0], []
    for product in users:
        weight = product.other.t()
        columns, inner = weight.shape
        assert isinstance(columns, int) and isinstance(inner, int)
        limits.append(products.most_rows(inner, columns))
        product.only = at_least(rows, limits[-1])
        numbers, blocks = (rows, a.shape[0], *products.parts(inner, columns)), (product.out, a, places, weight)
        ours = []
        for least, end, tile in products.ranges(columns, limits[-1], a.device):
            quick = products.multiplier(a.dtype, tile, inner, columns)
            programs: Size = eval(quick.grid, {f"n{at}": number for at, number in enumerate(numbers)})
            between = (at_least(rows, least) if least else 1) * (1 - at_least(rows, end))
            ours.append(Launch(quick.kernel, programs, [*numbers, *blocks], quick.constants, between))
        place = operations.index(product)
        operations[place:place] = ours
    take.only = at_least(rows, min(limits))
    assert copied.storage.count is not None
    copied.storage.count = copied.storage.count * take.only
