"""Kinds of calls that blocks make, numbered by what they compute."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from weft.blocks.types import ResultType, TensorType, TupleType
from weft.graph.calls import CallType
from weft.graph.cell import discover
from weft.graph.rows import TensorSpec
from weft.graph.tracing import tracing

Body = Callable[..., Sequence[Tensor]]


def spec_of(type: ResultType) -> TensorSpec:
    assert isinstance(type, TensorType)
    return TensorSpec(type.shape, type.dtype)


@dataclass(frozen=True, eq=False)
class Kind:
    """A call type before it is known on which device it will run.

    `weight` is what it adds to the depth; one that is `pairwise` adds the levels of a tree over its further arguments to it.
    """

    name: str
    body: Body
    args: tuple[TensorSpec, ...] = ()
    feeds: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    many: TensorSpec | None = None
    owners: tuple[object, ...] = ()
    weight: int = 1
    where: str = ""
    """Path of the first block that makes such calls."""
    pairwise: bool = False

    def depth(self, further: int) -> int:
        """What a call with so many further arguments adds to the depth."""
        return self.weight + ((further - 1).bit_length() if self.pairwise and further else 0)

    def call_type(self, device: str, look_for_randomness: bool = False) -> CallType:
        made = CallType(self.name, self.body, self.args, self.feeds, self.outputs, self.many, self.owners, False, device)
        return replace(made, random=draws(made)) if look_for_randomness else made


class _Watch(TorchDispatchMode):
    """Notices operations that draw random numbers."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def draws(kind: CallType) -> bool:
    """Whether a call of this type draws random numbers as its modules are set now: it is run once on fake tensors."""
    watch = _Watch()  # type: ignore[no-untyped-call]

    def body(*args: Any) -> Sequence[Tensor]:
        with watch:
            return kind.body(*args)

    with tracing:
        discover(replace(kind, body=body).engine_body(), kind.spec)
    return watch.seen


@dataclass(eq=False)
class Kinds:
    """Kinds by number, and by the key that says what they compute."""

    known: list[Kind]
    numbers: dict[Hashable, int]

    def number(self, key: Hashable, make: Callable[[], Kind]) -> int:
        found = self.numbers.get(key)
        if found is None:
            found = self.numbers[key] = len(self.known)
            self.known.append(make())
        return found


@dataclass(frozen=True)
class Constant:
    """A constant that waits for its reader: the name of the variable that holds it, and how a fed row becomes the tensor."""

    name: str
    type: TensorType
    feed: TensorSpec
    decode: Callable[[Tensor], Tensor] | None = None
    key: Hashable = None
    """Says what `decode` does."""


def constant_kind(constant: Constant) -> Kind:
    decode = constant.decode
    body: Body = (lambda row: [row.clone()]) if decode is None else (lambda row: [decode(row)])
    return Kind("constant", body, feeds=(constant.feed,), outputs=(spec_of(constant.type),), weight=0)


def one_hot(size: int, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """From a position to a unit vector; -1 gives zeros."""
    return lambda position: (torch.arange(size, device=position.device) == position).to(dtype)


def positional(type: ResultType) -> Callable[[Sequence[Tensor]], tuple[Any, ...]]:
    """From the leaves of an input to the positional arguments of a function of that input."""
    if not isinstance(type, TupleType) or all(isinstance(item, TensorType) for item in type):
        return tuple
    numbers = _numbered(type, itertools.count())
    return lambda leaves: _picked(numbers, leaves)


def _numbered(type: ResultType, count: Iterator[int]) -> Any:
    return tuple(_numbered(item, count) for item in type) if isinstance(type, TupleType) else next(count)


def _picked(numbers: Any, leaves: Sequence[Tensor]) -> Any:
    return tuple(_picked(part, leaves) for part in numbers) if isinstance(numbers, tuple) else leaves[numbers]


def tensor_leaves(nest: Any) -> list[Any]:
    """The leaves of tuples and lists, from left to right."""
    if isinstance(nest, tuple | list):
        return [leaf for part in nest for leaf in tensor_leaves(part)]
    return [nest]
