"""One of several blocks, chosen by a key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from weft.blocks.block import Block
from weft.blocks.checks import check_callable
from weft.blocks.compose import named_blocks
from weft.blocks.constants import brief
from weft.blocks.emit import Emitter, Name, Value, Writing
from weft.blocks.inference import set_type
from weft.blocks.types import PyObjectType, VoidType
from weft.errors import MissingKey, TypeMismatch


class OneOf(Block):
    """One of several cases, chosen by a key: a Python function of the input, or a block that gives a Python object.

    Cases are a dict, a list of (key, block) pairs, or a tuple or list of blocks for the keys 0, 1, ... and -1 for the last.
    The case runs on the input, or on what `pre_block` makes of it.

    >>> import torch, weft.blocks as wb
    >>> block = wb.OneOf(lambda x: x > 0, (wb.Scalar(), wb.Scalar() >> wb.Function(torch.neg)))
    >>> block.eval_one(3), block.eval_one(-3)
    (tensor(-3.), tensor(-3.))
    """

    def __init__(self, key_fn: Any, case_blocks: Any, pre_block: Any = None, *, name: str | None = None) -> None:
        if not isinstance(case_blocks, dict | list | tuple):
            raise TypeMismatch(
                f"OneOf: case_blocks: expected a dict, a list of pairs or a tuple of blocks, got {case_blocks!r}"
            )
        pairs = named_blocks(case_blocks)
        if not pairs:
            raise ValueError("OneOf: expected at least one case")
        if not isinstance(key_fn, Block):
            check_callable("OneOf", "key_fn", key_fn)
        super().__init__([block for _, block in pairs], name=name)
        self._count = len(pairs)
        self._numbers = {key: place for place, (key, _) in enumerate(pairs)}
        self._keys = [key for key, _ in pairs]
        if self._keys == list(range(self._count)) and not isinstance(case_blocks, dict):
            self._numbers[-1] = self._count - 1
        self._key_fn = None if isinstance(key_fn, Block) else key_fn
        self._has_pre = pre_block is not None
        for further in (key_fn if isinstance(key_fn, Block) else None, pre_block):
            if further is not None:
                self._adopt(further)

    @property
    def _key_block(self) -> Block | None:
        return None if self._key_fn is not None else self.subblocks[self._count]

    @property
    def _pre(self) -> Block | None:
        return self.subblocks[-1] if self._has_pre else None

    def _update(self) -> None:
        cases, key, pre = self.subblocks[: self._count], self._key_block, self._pre
        if key is None:
            set_type(self, "input", PyObjectType())
        else:
            set_type(key, "output", PyObjectType())
        takers = [part for part in (self, key, pre) if part is not None]
        self._equal(takers, "input")
        case_inputs = [case for case in cases if not isinstance(case.input_type, VoidType)]
        if pre is None:
            self._equal([self, *case_inputs], "input")
        else:
            known = next(
                (
                    part._types[side]
                    for part, side in [(pre, "output"), *((c, "input") for c in case_inputs)]
                    if part._types[side]
                ),
                None,
            )
            if known is not None:
                set_type(pre, "output", known)
                for case in case_inputs:
                    set_type(case, "input", known)
        self._equal([self, *cases], "output")

    def _equal(self, blocks: list[Block], side: str) -> None:
        known = next((block._types[side] for block in blocks if block._types[side] is not None), None)
        if known is not None:
            for block in blocks:
                set_type(block, side, known)

    def _passed_on(self) -> Iterable[Block]:
        return self.subblocks if self._pre is None else self.subblocks[self._count :]

    def _emit(self, e: Emitter, x: Value) -> Writing:
        key, pre, type = self._key_block, self._pre, self._known("output")
        if key is not None or pre is not None or self._count > 1:
            x = e.settled(x, self._known("input"))
        found = e.let(f"{e.object(self._key_fn)}({x})") if key is None else (yield key, x)
        if e.traced:
            e.line(f"AT({found})")
        numbers = e.object(self._numbers)
        plain = f"type({found}) is str or type({found}) is int or type({found}) is bool"
        chosen = e.let(f"{numbers}[{found}] if {plain} else {e.object(self._number)}({found})")
        if pre is not None:
            x = e.settled((yield pre, x), pre._known("output"))
        out = e.variables(type)
        yield from self._choose(e, chosen, 0, self._count, x, out)
        return out

    def _choose(self, e: Emitter, chosen: Name, first: int, end: int, x: Value, out: Value) -> Writing:
        """Halves the cases until one is left."""
        if end - first == 1:
            case = self.subblocks[first]
            e.line("pass")
            y = yield case, None if isinstance(case._known("input"), VoidType) else x
            e.assign(out, y, self._known("output"))
            return None
        middle = (first + end) // 2
        with e.under(f"if {chosen} < {middle}:"):
            yield from self._choose(e, chosen, first, middle, x, out)
        with e.under("else:"):
            yield from self._choose(e, chosen, middle, end, x, out)
        return None

    def _number(self, key: Any) -> int:
        """Which case has a key; an item of a tensor counts as the number in it."""
        return self._numbers[key.item() if isinstance(key, Tensor) and not key.dim() else key]

    def _explain_key(self, key: Any) -> Exception | None:
        try:
            self._number(key)
        except (KeyError, TypeError):
            return MissingKey(f"expected a key of a case ({', '.join(map(repr, self._keys[:8]))}), got {brief(key)}")
        return None

    def _labels(self) -> Iterator[tuple[str, Block]]:
        names = [
            *map(str, self._keys),
            *(["key_fn"] if self._key_fn is None else []),
            *(["pre_block"] if self._has_pre else []),
        ]
        yield from zip(names, self.subblocks, strict=True)
