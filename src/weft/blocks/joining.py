"""Tensors of a tuple joined to one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.blocks.block import Block
from weft.blocks.checks import as_integer
from weft.blocks.emit import Emitter, Value, tensors_in
from weft.blocks.functions import specs_of
from weft.blocks.inference import set_type
from weft.blocks.kinds import Body, Constant, Kind, spec_of
from weft.blocks.types import ResultType, TensorType, TupleType, is_tensor_nest
from weft.graph.rows import TensorSpec


class Concat(Block):
    """Concatenate a tuple of tensors; scalars count as vectors of one. `flatten` allows nested tuples.

    >>> import weft.blocks as wb
    >>> (wb.AllOf(wb.Scalar(), wb.Scalar()) >> wb.Concat()).eval_one(2)
    tensor([2., 2.])
    """

    _input_classes = (TupleType,)
    _output_classes = (TensorType,)

    def __init__(self, concat_dim: int = 0, flatten: bool = False, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self._dim, self._flatten = as_integer(self.name, "concat_dim", concat_dim), flatten

    def _update(self) -> None:
        if self.input_type is not None:
            set_type(self, "output", self._joined(self.input_type))

    def _joined(self, given: ResultType) -> TensorType:
        leaves = given.terminal_types()
        if not leaves or not is_tensor_nest(given):
            raise self._mismatch(f"input type: expected a tuple of tensors, got {given!r}")
        if not self._flatten and isinstance(given, TupleType) and any(isinstance(item, TupleType) for item in given):
            raise self._mismatch(f"input type: expected no nested tuples (or flatten=True), got {given!r}")
        shapes = [tuple(leaf.shape) or (1,) for leaf in leaves if isinstance(leaf, TensorType)]
        dtypes = {leaf.dtype for leaf in leaves if isinstance(leaf, TensorType)}
        dim = self._dim
        if any(None in shape for shape in shapes):
            raise self._mismatch(f"input type: expected known dimensions, got {given!r}")
        if len(dtypes) > 1:
            raise self._mismatch(f"input type: expected one dtype, got {given!r}")
        if any(not -len(shape) <= dim < len(shape) for shape in shapes):
            raise self._mismatch(f"concat_dim {dim} is not a dimension of all of {given!r}")
        dim %= len(shapes[0])
        if len({(*shape[:dim], *shape[dim + 1 :]) for shape in shapes}) > 1:
            raise self._mismatch(f"shapes must agree except in dimension {dim}, got {given!r}")
        total = sum(shape[dim] for shape in shapes)
        return TensorType([*shapes[0][:dim], total, *shapes[0][dim + 1 :]], dtypes.pop())

    def _emit(self, e: Emitter, x: Value) -> Value:
        given, output, dim = self._known("input"), self._known("output"), self._dim
        leaves = [leaf for leaf, _ in tensors_in(x, given)]
        specs = specs_of(given, ())
        parts = [_Part(None, spec) for spec in specs] if e.traced else _parts(leaves, specs)
        key = ("concat", dim, tuple(part.key for part in parts))
        taken = [leaf for leaf in leaves if e.traced or not isinstance(leaf, Constant)]

        def make() -> Kind:
            args, feeds = (tuple(part.spec for part in parts if part.is_fed == fed) for fed in (False, True))
            return Kind("Concat", _joining(dim, parts), args, feeds, (spec_of(output),), where=self._path())

        return e.call(key, make, taken, [part.feed(e) for part in parts if part.is_fed])[0]


class _Part:
    """A tensor from another call, a constant, or several numbers in a row that are fed as one vector."""

    def __init__(self, constants: list[Constant] | None, spec: TensorSpec) -> None:
        self.constants, self.is_fed = constants, constants is not None
        self.spec = spec
        self.decode: Callable[[Tensor], Tensor] | None = None
        self.key: Any = (self.is_fed, spec)
        if constants is not None:
            feed, count = constants[0].feed, len(constants)
            self.spec = feed if count == 1 else TensorSpec((count,), feed.dtype)
            self.decode = constants[0].decode
            self.key = (self.is_fed, self.spec, constants[0].key)

    def feed(self, e: Emitter) -> str:
        assert self.constants is not None
        names = [constant.name for constant in self.constants]
        return names[0] if len(names) == 1 else f"{e.object(SideBySide(self.spec.dtype))}({', '.join(names)})"


def _parts(leaves: list[Value], specs: list[TensorSpec]) -> list[_Part]:
    """Leaves from left to right; numbers that stand side by side are one part: every fed tensor takes long to trace."""

    def is_number(at: int) -> bool:
        leaf = leaves[at]
        return isinstance(leaf, Constant) and leaf.decode is None and not leaf.feed.shape

    found: list[_Part] = []
    for numbers, run in itertools.groupby(range(len(leaves)), is_number):
        if numbers:
            found.append(_Part([leaves[at] for at in run], TensorSpec((), torch.float32)))
        else:
            found += [_Part([leaves[at]] if isinstance(leaves[at], Constant) else None, specs[at]) for at in run]
    return found


class SideBySide:
    """Numbers as one row; tensors among them keep their gradient."""

    plain = frozenset({float, int, bool})

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, *numbers: Any) -> Any:
        if self.plain.issuperset(map(type, numbers)):
            return numbers
        there = next((number.device for number in numbers if isinstance(number, Tensor)), "cpu")
        return torch.stack([torch.as_tensor(number, dtype=self.dtype, device=there) for number in numbers])


def _joining(dim: int, parts: list[_Part]) -> Body:
    """Concatenation of results of calls and of constants, which come after them as arguments."""
    count = sum(not part.is_fed for part in parts)

    def body(*tensors: Tensor) -> Sequence[Tensor]:
        results, rows = iter(tensors[:count]), iter(tensors[count:])
        found = []
        for part in parts:
            tensor = next(rows) if part.is_fed else next(results)
            tensor = tensor if part.decode is None else part.decode(tensor)
            found.append(tensor.reshape(1) if tensor.dim() == 0 else tensor)
        return [torch.cat(found, dim)]

    return body
