"""Examples that are not taken as Python objects but as tensors, tuples and sequences, as the root's input type says."""

from __future__ import annotations

from typing import Any

from weft.blocks.constants import ToArray, brief
from weft.blocks.types import BroadcastSequenceType, ResultType, SequenceType, TensorType, TupleType, VoidType
from weft.errors import TypeMismatch, WeftError

Place = tuple[Any, int] | None
"""Where in an example something is: (the place of what it is an item of, number); None for the example itself."""

MOST_LOOPS = 20
"""So many loops Python allows in each other."""
WAY_OUT = "begin with a block that takes a Python object"


class Given:
    """Converts an example to a type. Errors have the place in the example as `place`.

    >>> from weft.blocks.types import convert_to_type
    >>> Given(convert_to_type((2, [])))(([1, 2], 3))
    (array([1., 2.], dtype=float32), array(3., dtype=float32))
    """

    def __init__(self, type: ResultType) -> None:
        self.type = type
        self._arrays: dict[int, ToArray] = {}
        pending = [(type, 0)]
        while pending:
            each, depth = pending.pop()
            if isinstance(each, TensorType):
                self._arrays[id(each)] = ToArray(each)
            if isinstance(each, BroadcastSequenceType) or (isinstance(each, TensorType) and each.ragged):
                raise TypeMismatch(f"an example cannot be given as {type!r}; {WAY_OUT}")
            if isinstance(each, TupleType):
                pending += [(item, depth) for item in each]
            elif isinstance(each, SequenceType):
                if depth == MOST_LOOPS:
                    raise TypeMismatch(f"an example cannot be given as sequences nested {depth + 1} deep; {WAY_OUT}")
                pending.append((each.element_type, depth + 1))

    def __call__(self, example: Any) -> Any:
        return self._converted(example, self.type, None)

    def _converted(self, x: Any, type: ResultType, place: Place) -> Any:
        if isinstance(type, TensorType):
            return self._tensor(x, type, place)
        if isinstance(type, TupleType):
            if not isinstance(x, tuple | list) or len(x) != len(type):
                raise _at(place, TypeMismatch(f"expected a tuple of {len(type)}, got {brief(x)}"))
            pairs = enumerate(zip(x, type, strict=True))
            return tuple(self._converted(item, kind, (place, number)) for number, (item, kind) in pairs)
        if isinstance(type, SequenceType):
            try:
                items = list(x)
            except TypeError:
                raise _at(place, TypeMismatch(f"expected something to loop over, got {brief(x)}")) from None
            return [self._converted(item, type.element_type, (place, number)) for number, item in enumerate(items)]
        return None if isinstance(type, VoidType) else x

    def _tensor(self, x: Any, type: TensorType, place: Place) -> Any:
        try:
            return self._arrays[id(type)](x)
        except WeftError as error:
            raise _at(place, error) from None
        except Exception as error:
            meaning = TypeMismatch(f"expected something that converts to {type!r}, got {brief(x)}")
            raise _at(place, meaning) from error


def _at(place: Place, error: WeftError) -> WeftError:
    keys: list[int] = []
    while place is not None:
        place, key = place
        keys.append(key)
    error.__dict__["place"] = "".join(f"[{key}]" for key in reversed(keys))
    return error
