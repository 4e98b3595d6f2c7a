"""Fusing what ended up in the same piece."""

from __future__ import annotations

from collections import Counter

import torch

from weft.graph.tape import Rows, Tape, Value, operands

aten = torch.ops.aten


def fuse_products(tape: Tape, home: dict[int, str]) -> None:
    """`mm(a, b) + c` is `addmm(c, a, b)` where nothing else reads the product, and both run in the same piece."""
    uses = Counter(id(operand) for value in tape.values for operand in operands(value))
    uses.update(id(value) for value in tape.outputs.values() if value is not None)
    for value in tape.values:
        if value.target is not aten.add.Tensor or value.kwargs:
            continue
        first, second = value.args
        for product, other in ((second, first), (first, second)):
            if not (isinstance(product, Value) and isinstance(other, Value)):
                continue
            together = home.get(id(product)) is not None and home.get(id(product)) == home.get(id(value))
            if together and product.target is aten.mm.default and uses[id(product)] == 1 and _fits(other, value, product):
                value.target, value.args = aten.addmm.default, (other, *product.args)
                del home[id(product)]
                break


def _fits(other: Value, value: Value, product: Value) -> bool:
    if product.shape != value.shape or other.dtype != product.dtype or not product.rows:
        return False
    shape = other.shape or ()
    return shape == value.shape or (len(shape) == 1 and not isinstance(shape[0], Rows) and shape[0] == (value.shape or ())[-1])
