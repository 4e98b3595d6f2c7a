"""Fusing what ended up in the same piece: a sum with the product it adds.

`a + b * c` is one `addcmul`. `a + mm(b, c)` is one `addmm` on a GPU; on a CPU the product followed by an addition in place is
faster (`addmm` first copies what it adds into the result).
"""

from __future__ import annotations

from collections import Counter

import torch

from weft.graph.tape import Rows, Tape, Value, operands

aten = torch.ops.aten


def fuse_sums(tape: Tape, home: dict[int, str], matrix_products: bool) -> None:
    """Rewrite sums in place where nothing else reads the product, and both run in the same piece."""
    uses = Counter(id(operand) for value in tape.values for operand in operands(value))
    uses.update(id(value) for value in tape.outputs.values() if value is not None)
    for value in tape.values:
        if value.target is not aten.add.Tensor or value.kwargs or not all(isinstance(arg, Value) for arg in value.args):
            continue
        first, second = value.args
        for product, other in ((second, first), (first, second)):
            here = home.get(id(product))
            if here is None or here != home.get(id(value)) or uses[id(product)] != 1 or first is second:
                continue
            if product.target is aten.mm.default and matrix_products and _fits(other, value, product):
                value.target, value.args = aten.addmm.default, (other, *product.args)
            elif product.target is aten.mul.Tensor and _multiplies_alike(product, other):
                value.target, value.args = aten.addcmul.default, (other, *product.args)
            else:
                continue
            del home[id(product)]
            break


def _fits(other: Value, value: Value, product: Value) -> bool:
    if product.shape != value.shape or other.dtype != product.dtype or not product.rows:
        return False
    shape = other.shape or ()
    return shape == value.shape or (len(shape) == 1 and not isinstance(shape[0], Rows) and shape[0] == (value.shape or ())[-1])


def _multiplies_alike(product: Value, other: Value) -> bool:
    factors = [arg for arg in product.args if isinstance(arg, Value)]
    if len(factors) != 2 or other.dtype is None or not other.dtype.is_floating_point:
        return False
    return all(factor.dtype == other.dtype and factor.shape for factor in factors)
