"""The arguments of a batched call: which hold examples, how many there are, and what one example gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor

from weft.errors import StructureError, TypeMismatch
from weft.lazy.given import GivenRows, is_known, known
from weft.lazy.tape import Tape
from weft.lazy.value import Value

AUTO = "auto"
"""Without `in_dims`: lists, tuples and tensors hold examples, everything else is shared."""


class Argument(ABC):
    """One argument: called with the number of an example it gives what that example gets."""

    size: int | None = None
    """How many examples it holds; None if it is shared."""

    @abstractmethod
    def __call__(self, example: int) -> Any: ...

    def on(self, tape: Tape) -> Argument:
        """The same while recording: tensors are values that know their tensor."""
        return self

    def row(self) -> Hashable:
        """Shape and dtype of one example, the first, where it is a tensor; None where they are not known."""
        return None


class Shared(Argument):
    """An argument that all examples share."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def __call__(self, example: int) -> Any:
        return self.given


class Items(Argument):
    """A list or tuple with one item per example."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items, self.size = items, len(items)

    def __call__(self, example: int) -> Any:
        return self.items[example]

    def on(self, tape: Tape) -> Argument:
        return Items([_on(tape, item) for item in self.items])

    def row(self) -> Hashable:
        first = self.items[0] if self.size else None
        return (*first.shape, first.dtype) if isinstance(first, Tensor | Value) else None


PLAIN = frozenset((bool, int, float, str, bytes, type(None), tuple, list, dict))
"""Classes that are no tensors."""


def _on(tape: Tape, item: Any) -> Any:
    """An example while recording: its tensors, and those that a tuple, list or dictionary holds, are values."""
    if isinstance(item, Tensor):
        return known(tape, item) if is_known(tape, item) else item
    cls = item.__class__
    if (cls is tuple or cls is list) and PLAIN.issuperset(map(type, item)):
        return item
    if (cls is tuple or cls is list) and any(is_known(tape, part) for part in item):
        return cls([known(tape, part) if is_known(tape, part) else part for part in item])
    if cls is dict and any(is_known(tape, part) for part in item.values()):
        return {key: known(tape, part) if is_known(tape, part) else part for key, part in item.items()}
    return item


class Split(Argument):
    """A tensor that is split along a dimension."""

    def __init__(self, tensor: Tensor, dim: int) -> None:
        self.tensor, self.dim, self.size = tensor, dim, tensor.shape[dim]
        self._parts: Sequence[Tensor] | None = None

    def __call__(self, example: int) -> Any:
        if self._parts is None:
            self._parts = self.tensor.unbind(self.dim)
        return self._parts[example]

    def on(self, tape: Tape) -> Argument:
        if not is_known(tape, self.tensor):
            return self
        return Items(tape.all_given(GivenRows(self.tensor.movedim(self.dim, 0))))

    def row(self) -> Hashable:
        at = self.dim % self.tensor.ndim
        return (*self.tensor.shape[:at], *self.tensor.shape[at + 1 :], self.tensor.dtype)


class Nest(Argument):
    """A dictionary, list or tuple whose parts are split or shared, as `in_dims` says."""

    def __init__(self, like: Any, parts: Sequence[Argument]) -> None:
        self.like, self.parts = like, parts

    def __call__(self, example: int) -> Any:
        found = [part(example) for part in self.parts]
        if isinstance(self.like, dict):
            return dict(zip(self.like, found, strict=True))
        cls = type(self.like)
        return cls._make(found) if hasattr(cls, "_make") else cls(found)

    def on(self, tape: Tape) -> Argument:
        return Nest(self.like, [part.on(tape) for part in self.parts])

    def row(self) -> Hashable:
        return tuple(part.row() for part in self.parts)


def split(args: Sequence[Any], in_dims: Any) -> tuple[int, list[Argument]]:
    """How many examples there are, and for each argument how to get that of one example."""
    if not args:
        raise TypeMismatch("a batched function needs at least one positional argument: a list, a tuple or a tensor of examples")
    sizes: list[tuple[str, int]] = []
    dims = _for_each(in_dims, len(args))
    found = [_argument(given, dim, f"argument {at}", sizes) for at, (given, dim) in enumerate(zip(args, dims, strict=True))]
    if not sizes:
        raise TypeMismatch("no argument holds examples: pass a list, a tuple or a tensor of them")
    for name, size in sizes:
        if size != sizes[0][1]:
            raise StructureError(f"{sizes[0][0]} holds {sizes[0][1]} examples, {name} holds {size}")
    return sizes[0][1], found


def _for_each(in_dims: Any, count: int) -> Sequence[Any]:
    """What `in_dims` says of each argument."""
    if in_dims is None:
        return (AUTO,) * count
    if isinstance(in_dims, tuple):
        if len(in_dims) != count:
            raise TypeMismatch(f"in_dims has {len(in_dims)} entries for {count} arguments")
        return in_dims
    if isinstance(in_dims, int) and not isinstance(in_dims, bool):
        return (in_dims,) * count
    raise TypeMismatch(f"in_dims: expected None, an integer or a tuple with an entry for each argument, got {in_dims!r}")


def _argument(given: Any, dims: Any, name: str, sizes: list[tuple[str, int]]) -> Argument:
    """One argument, or a part of one; how many examples its parts hold is noted with their names."""
    if isinstance(dims, dict | list | tuple):
        _check_alike(given, dims, name)
        keys = list(given) if isinstance(given, dict) else range(len(given))
        return Nest(given, [_argument(given[key], dims[key], f"{name}[{key!r}]", sizes) for key in keys])
    if isinstance(given, dict) and dims is not None and dims != AUTO:
        return Nest(given, [_argument(part, dims, f"{name}[{key!r}]", sizes) for key, part in given.items()])
    found = Shared(given) if dims is None else _leaf(given, dims, name)
    if found.size is not None:
        sizes.append((name, found.size))
    return found


def _check_alike(given: Any, dims: Any, name: str) -> None:
    keys = (set(given) if isinstance(given, dict) else len(given)) if isinstance(given, dict | list | tuple) else None
    if keys != (set(dims) if isinstance(dims, dict) else len(dims)):
        raise TypeMismatch(f"{name}: in_dims has the structure {dims!r}, which is not that of the {type(given).__name__} given")


def _leaf(given: Any, dim: Any, name: str) -> Argument:
    """What an argument, or a part of one, holds."""
    if dim != AUTO and (isinstance(dim, bool) or not isinstance(dim, int)):
        raise TypeMismatch(f"{name}: in_dims: expected an integer or None, got {dim!r}")
    at = 0 if dim == AUTO else dim
    if isinstance(given, Tensor | Value):
        if not given.ndim and dim == AUTO:
            return Shared(given)
        if not -given.ndim <= at < given.ndim:
            raise TypeMismatch(f"{name}: in_dims asks for dimension {at} of a tensor of shape {list(given.shape)}")
        if isinstance(given, Tensor):
            return Split(given, at)
        return Items(list(given if at == 0 else given.movedim(at, 0)))
    if isinstance(given, list | tuple):
        if at != 0:
            raise TypeMismatch(
                f"{name}: in_dims asks for dimension {at} of a {type(given).__name__}, which has one item per example"
            )
        return Items(given)
    if dim != AUTO:
        raise TypeMismatch(f"{name}: in_dims asks for examples, got {type(given).__name__}")
    return Shared(given)
