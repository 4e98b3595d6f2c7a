"""Types of what blocks take and give: tensors of a fixed shape, tuples, sequences, any Python object, nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import total_ordering
from typing import Any

import numpy as np
import torch

from weft.errors import TypeMismatch


@total_ordering
class ResultType:
    """A type. Equality, hash and order go by `repr`.

    >>> TensorType([2]) == TensorType((2,), "float32"), TupleType(TensorType([2]), PyObjectType()).size
    (True, None)
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResultType) and repr(self) == repr(other)

    def __lt__(self, other: ResultType) -> bool:
        return repr(self) < repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    @property
    def size(self) -> int | None:
        """How many numbers an instance holds; None where that is not fixed."""
        return None

    def terminal_types(self) -> list[ResultType]:
        """The types of the leaves, from left to right."""
        return [self]

    def flatten(self, instance: Any) -> list[Any]:
        """The leaves of an instance, from left to right."""
        found: list[Any] = []
        self.for_each_terminal(lambda _, leaf: found.append(leaf), instance)
        return found

    def unflatten(self, leaves: Iterator[Any], shaped_like: Any) -> Any:
        """The inverse of `flatten`; sequences get the lengths of those in `shaped_like`."""
        return next(leaves)

    def for_each_terminal(self, fn: Callable[[ResultType, Any], Any], instance: Any) -> None:
        """Call `fn(type, leaf)` for every leaf of an instance."""
        fn(self, instance)


class TensorType(ResultType):
    """A tensor of one example: shape without a batch dimension, and dtype.

    The first dimension may be None, a length that differs from example to example (what `Stack` gives).

    >>> TensorType([3], "int64").dtype, TensorType([2, 3]).size
    (torch.int64, 6)
    """

    def __init__(self, shape: Sequence[int | None], dtype: torch.dtype | str | None = None) -> None:
        if not isinstance(shape, tuple | list):
            raise TypeMismatch(f"the shape of a TensorType: expected a tuple or list of integers, got {shape!r}")
        for place, n in enumerate(shape):
            if n is None and place == 0:
                continue
            if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0:
                raise TypeMismatch(f"the shape of a TensorType: expected integers of at least 0, got {n!r} in {list(shape)}")
        self.shape: tuple[Any, ...] = tuple(None if n is None else int(n) for n in shape)
        self.dtype = as_dtype(dtype)
        self._text = f"TensorType({list(self.shape)}, '{str(self.dtype).removeprefix('torch.')}')"

    def __repr__(self) -> str:
        return self._text

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def ragged(self) -> bool:
        """Whether the first dimension differs from example to example."""
        return bool(self.shape) and self.shape[0] is None

    @property
    def size(self) -> int | None:
        return None if self.ragged else int(np.prod(self.shape, dtype=np.int64))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        zeros = torch.zeros(self.shape, dtype=self.dtype, device="cpu").numpy()
        return zeros if dtype is None else zeros.astype(dtype)


class VoidType(ResultType):
    """Nothing: the value is None.

    >>> VoidType().flatten(None)
    []
    """

    def __repr__(self) -> str:
        return "VoidType()"

    @property
    def size(self) -> int:
        return 0

    def terminal_types(self) -> list[ResultType]:
        return []

    def for_each_terminal(self, fn: Callable[[ResultType, Any], Any], instance: Any) -> None:
        pass

    def unflatten(self, leaves: Iterator[Any], shaped_like: Any) -> None:
        return None


class PyObjectType(ResultType):
    """Any Python object: a record, a list, a string, a number.

    >>> PyObjectType().flatten([1, 2])
    [[1, 2]]
    """

    def __repr__(self) -> str:
        return "PyObjectType()"


class TupleType(ResultType, Sequence[ResultType]):
    """A tuple of types. `TupleType(a, b)` or `TupleType([a, b])`.

    >>> TupleType(TensorType([2]), TensorType([3]))[1:]
    TupleType(TensorType([3], 'float32'))
    """

    def __init__(self, *items: Any) -> None:
        if len(items) == 1 and not isinstance(items[0], ResultType | str | torch.dtype | int):
            items = tuple(items[0])
        self.items = tuple(convert_to_type(item) for item in items)
        self._text = f"TupleType({', '.join(map(repr, self.items))})"

    def __repr__(self) -> str:
        return self._text

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, key: Any) -> Any:
        return TupleType(*self.items[key]) if isinstance(key, slice) else self.items[key]

    @property
    def size(self) -> int | None:
        sizes = [item.size for item in self.items]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def terminal_types(self) -> list[ResultType]:
        return [leaf for item in self.items for leaf in item.terminal_types()]

    def for_each_terminal(self, fn: Callable[[ResultType, Any], Any], instance: Any) -> None:
        for item, part in zip(self.items, instance, strict=True):
            item.for_each_terminal(fn, part)

    def unflatten(self, leaves: Iterator[Any], shaped_like: Any) -> tuple[Any, ...]:
        return tuple(item.unflatten(leaves, part) for item, part in zip(self.items, shaped_like, strict=True))


class SequenceType(ResultType):
    """A list of any length whose items are of one type.

    >>> SequenceType(TensorType([])).flatten([1.0, 2.0])
    [1.0, 2.0]
    """

    def __init__(self, element_type: Any) -> None:
        self.element_type = convert_to_type(element_type)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.element_type!r})"

    def terminal_types(self) -> list[ResultType]:
        return self.element_type.terminal_types()

    def for_each_terminal(self, fn: Callable[[ResultType, Any], Any], instance: Any) -> None:
        for item in instance:
            self.element_type.for_each_terminal(fn, item)

    def unflatten(self, leaves: Iterator[Any], shaped_like: Any) -> Any:
        return [self.element_type.unflatten(leaves, item) for item in shaped_like]


class BroadcastSequenceType(SequenceType):
    """An endless sequence of one and the same item; an instance is an `itertools.repeat`.

    >>> BroadcastSequenceType(TensorType([])).flatten(itertools.repeat(3.0))
    [3.0]
    """

    def for_each_terminal(self, fn: Callable[[ResultType, Any], Any], instance: Any) -> None:
        self.element_type.for_each_terminal(fn, next(instance))

    def unflatten(self, leaves: Iterator[Any], shaped_like: Any) -> Any:
        return itertools.repeat(self.element_type.unflatten(leaves, next(shaped_like)))


def as_dtype(dtype: torch.dtype | str | None) -> torch.dtype:
    """A torch dtype from itself, its name, or None for the default."""
    found = dtype
    if dtype is None:
        found = torch.get_default_dtype()
    elif isinstance(dtype, str):
        found = getattr(torch, dtype.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise TypeMismatch(f"expected a torch dtype or its name, such as 'float32', got {dtype!r}")
    return found


def convert_to_type(x: Any) -> ResultType:
    """A type from a type, a tuple, a shape as a list (its last item may be a dtype), a dtype, or the length of a vector.

    >>> convert_to_type(([2, "int64"], 3))
    TupleType(TensorType([2], 'int64'), TensorType([3], 'float32'))
    """
    if isinstance(x, ResultType):
        return x
    if isinstance(x, torch.Size):
        return TensorType(tuple(x))
    if isinstance(x, tuple):
        return TupleType([convert_to_type(item) for item in x])
    if isinstance(x, list):
        if x and isinstance(x[-1], str | torch.dtype):
            return TensorType(x[:-1], x[-1])
        return TensorType(x)
    if isinstance(x, str | torch.dtype):
        return TensorType([], x)
    if isinstance(x, int | np.integer) and not isinstance(x, bool):
        return TensorType([int(x)])
    raise TypeMismatch(f"expected a type, tuple, list (a shape), dtype or integer, got {x!r}")


def canonicalize_type(x: Any) -> ResultType:
    """Convert, and let tuples of nothing but Python objects, and sequences of them, count as one Python object.

    >>> canonicalize_type((PyObjectType(), SequenceType(PyObjectType())))
    PyObjectType()
    """
    found = convert_to_type(x)
    if isinstance(found, TupleType):
        items = [canonicalize_type(item) for item in found]
        if items and all(isinstance(item, PyObjectType) for item in items):
            return PyObjectType()
        return TupleType(*items)
    if isinstance(found, SequenceType):
        element = canonicalize_type(found.element_type)
        return PyObjectType() if isinstance(element, PyObjectType) else type(found)(element)
    return found


def is_tensor_nest(type: ResultType) -> bool:
    """A tensor, or tuples of nothing but tensors."""
    if isinstance(type, TupleType):
        return all(is_tensor_nest(item) for item in type)
    return isinstance(type, TensorType)


def map_dtypes(type: ResultType, change: Callable[[torch.dtype], torch.dtype]) -> ResultType:
    """The type with other dtypes."""
    if isinstance(type, TensorType):
        return TensorType(type.shape, change(type.dtype))
    if isinstance(type, TupleType):
        return TupleType(*(map_dtypes(item, change) for item in type))
    if isinstance(type, SequenceType):
        return type.__class__(map_dtypes(type.element_type, change))
    return type
