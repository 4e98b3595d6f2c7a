"""Paths that depend on values: items that are kept or not, loops that go on or stop."""

from __future__ import annotations

from typing import Any

from weft.blocks.block import Block
from weft.blocks.checks import is_integer
from weft.blocks.emit import Emitter, Value, Writing
from weft.blocks.inference import set_type
from weft.blocks.sequences import items_of, not_iterable
from weft.blocks.types import PyObjectType, SequenceType, TensorType
from weft.errors import TypeMismatch


class Filter(Block):
    """The items for which a block gives something other than zero (a tensor), or something true (a Python object).

    Which items stay depends on values where the predicate computes a tensor; all examples are then looked at together.

    >>> import weft.blocks as wb
    >>> (wb.Map(wb.Scalar()) >> wb.Filter(wb.Function(lambda x: x > 1)) >> wb.Sum()).eval_one([1, 2, 3])
    tensor(5.)
    """

    def __init__(self, predicate: Any, *, name: str | None = None) -> None:
        super().__init__([predicate], name=name)

    def _update(self) -> None:
        (predicate,) = self.subblocks
        if self.input_type is None:
            if isinstance(predicate.input_type, PyObjectType):
                set_type(self, "input", PyObjectType())
            return
        item = items_of(self, self.input_type)
        set_type(predicate, "input", item)
        set_type(self, "output", SequenceType(item))
        check_truth(predicate)

    def _looks_at_values(self) -> bool:
        return isinstance(self.subblocks[0].output_type, TensorType)

    def _emit(self, e: Emitter, x: Value) -> Writing:
        (predicate,), given = self.subblocks, self._known("input")
        item_type, kind = items_of(self, given), predicate._known("output")
        items, truths = e.let("[]"), e.let("[]")
        with e.loop(x, given) as item:
            item = e.settled(item, item_type)
            y = yield predicate, item
            raw = isinstance(self.output_type, PyObjectType)
            e.line(f"{items}.append({item if raw else e.pack(item, item_type)}); {truths}.append({e.reference(y)})")
        if isinstance(kind, TensorType):
            e.value_dependent = self
            e.line(f"{truths} = (yield (None, {truths})) if {truths} else {truths}")
        kept = f"[i for i, k in zip({items}, {truths}) if k]"
        return e.let(kept, x.place if isinstance(self.output_type, PyObjectType) else "''")

    def _explain(self, error: Exception, value: Any) -> Exception | None:
        return not_iterable(value)


def check_truth(block: Block) -> None:
    """What decides is one number, or a Python object."""
    type = block.output_type
    if type is not None and not isinstance(type, PyObjectType) and not (isinstance(type, TensorType) and type.size == 1):
        raise block._mismatch(f"output type: expected one number or a Python object to decide by, got {type!r}")


class While(Block):
    """`body` on a state again and again, as long as `cond` of it gives something other than zero; `max_steps` times at most.

    >>> import weft.blocks as wb
    >>> half = wb.Function(lambda x: x / 2)
    >>> (wb.Scalar() >> wb.While(wb.Function(lambda x: x > 1), half, max_steps=50)).eval_one(12)
    tensor(0.7500)
    """

    def __init__(self, cond: Any, body: Any, max_steps: int, *, name: str | None = None) -> None:
        super().__init__([cond, body], name=name)
        if not is_integer(max_steps) or max_steps < 0:
            raise TypeMismatch(f"{self.name}: max_steps: expected an integer of at least 0, got {max_steps!r}")
        self._max_steps = int(max_steps)

    def _update(self) -> None:
        cond, body = self.subblocks
        ends = [(self, "input"), (self, "output"), (body, "input"), (body, "output"), (cond, "input")]
        known = next((block._types[side] for block, side in ends if block._types[side] is not None), None)
        if known is not None:
            for block, side in ends:
                set_type(block, side, known)
        check_truth(cond)

    def _looks_at_values(self) -> bool:
        return isinstance(self.subblocks[0].output_type, TensorType)

    def _emit(self, e: Emitter, x: Value) -> Writing:
        cond, body = self.subblocks
        type = self._known("input")
        state = e.variables(type)
        e.assign(state, x, type)
        with e.under(f"for {e.fresh('i')} in range({self._max_steps}):"):
            going = yield cond, state
            if isinstance(cond._known("output"), TensorType):
                e.value_dependent = self
                going = e.let(f"(yield (None, [{e.reference(going)}]))[0]")
            e.line(f"if not {going}: break")
            e.assign(state, (yield body, state), type)
        return state

    def _labels(self) -> Any:
        yield from zip(("cond", "body"), self.subblocks, strict=False)
