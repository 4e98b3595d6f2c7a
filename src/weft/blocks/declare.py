"""Recursion: a block that is named before it is made."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from weft.blocks.block import Block, convert_to_block
from weft.blocks.emit import Emitter, Value
from weft.blocks.faults import Unresolved
from weft.blocks.inference import inferring, set_type, wake
from weft.blocks.types import ResultType, canonicalize_type
from weft.errors import TypeMismatch


class _Reference(Block):
    """Stands for what a declaration is resolved to."""

    def __init__(self, input_type: ResultType | None, output_type: ResultType | None, name: str | None) -> None:
        super().__init__(name=name)
        self.__dict__["_target"] = None
        self.__dict__["_constructed"] = ((), {})
        self.__dict__["_constructor_name"] = "ForwardDeclaration()"
        for side, type in (("input", input_type), ("output", output_type)):
            if type is not None:
                set_type(self, side, type)

    def _bind(self, target: Block) -> None:
        self.__dict__["_target"] = target
        target._watchers.append(weakref.ref(self))
        wake(self)

    @property
    def target(self) -> Block:
        """The block that the declaration was resolved to."""
        found: Block | None = self.__dict__["_target"]
        if found is None:
            raise Unresolved(f"{self._path()}: the declaration was never resolved; call resolve_to")
        return found

    @property
    def subblocks(self) -> tuple[Block, ...]:
        found = self.__dict__["_target"]
        return () if found is None else (found,)

    def _named(self) -> list[tuple[str, Block]]:
        return [("target", part) for part in self.subblocks]

    def _parts(self) -> Mapping[str, nn.Module]:
        return dict(self._named())

    def _update(self) -> None:
        target = self.__dict__["_target"]
        if target is not None:
            for one, other in ((self, target), (target, self)):
                for side, type in one._types.items():
                    if type is not None:
                        set_type(other, side, type)

    def _check_whole(self) -> None:
        _ = self.target

    def _passed_on(self) -> Iterable[Block]:
        return (self.target,)

    def _emit(self, e: Emitter, x: Value) -> Value:
        return e.through_function(self.target, x)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        target = state["_target"]
        if target is not None:
            target.__dict__.setdefault("_watchers", []).append(weakref.ref(self))


class ForwardDeclaration:
    """A block that will be made later, so that it can be used inside itself.

    >>> import weft.blocks as wb
    >>> deep = wb.ForwardDeclaration(wb.PyObjectType(), wb.TensorType([]))
    >>> deep.resolve_to(wb.OneOf(lambda x: isinstance(x, list), (wb.Scalar(), wb.Map(deep()) >> wb.Sum())))
    >>> deep().eval_one([1, [2, [3]]])
    tensor(6.)
    """

    def __init__(self, input_type: Any = None, output_type: Any = None, *, name: str | None = None) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeMismatch(f"ForwardDeclaration: name: expected a string, got {name!r}")
        self.input_type = None if input_type is None else canonicalize_type(input_type)
        self.output_type = None if output_type is None else canonicalize_type(output_type)
        self.name = name
        self._references: list[_Reference] = []
        self._target: Block | None = None

    def __repr__(self) -> str:
        return "ForwardDeclaration" if self.name is None else f"ForwardDeclaration {self.name!r}"

    def __call__(self) -> Block:
        """A block that stands for the one to come, or for the one that came."""
        made = _Reference(self.input_type, self.output_type, self.name)
        if self._target is not None:
            with inferring():
                made._bind(self._target)
        else:
            self._references.append(made)
        return made

    def resolve_to(self, block: Any) -> None:
        """Say what it is. Types must agree."""
        if self._target is not None:
            raise ValueError("ForwardDeclaration: it is already resolved")
        target = convert_to_block(block)
        if target in self._references:
            raise ValueError("ForwardDeclaration: it cannot be resolved to itself")
        with inferring():
            for side, type in (("input", self.input_type), ("output", self.output_type)):
                if type is not None:
                    set_type(target, side, type)
            for reference in self._references:
                reference._bind(target)
        self._target = target
