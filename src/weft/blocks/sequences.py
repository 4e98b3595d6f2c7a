"""Blocks over sequences: map, fold, recurrent cells, reduction.

*Sequence-like* are sequences, tuples whose items have one type, and Python objects that can be looped over.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from weft.blocks.block import Block
from weft.blocks.constants import brief
from weft.blocks.emit import Emitter, Value, Writing, element_of
from weft.blocks.inference import bad_type, inferring, set_type
from weft.blocks.leaves import check_has_zeros, zeros_of
from weft.blocks.types import BroadcastSequenceType, PyObjectType, ResultType, SequenceType, TupleType, VoidType
from weft.errors import TypeMismatch

SEQUENCE_LIKE = (PyObjectType, SequenceType, TupleType)


def items_of(block: Block, type: ResultType, endless: bool = False, objects: bool = True) -> ResultType:
    """The type of the items of a sequence-like type, or an error."""
    if isinstance(type, BroadcastSequenceType) and not endless:
        raise block._mismatch(f"input type: expected a sequence that ends, got {type!r}")
    if isinstance(type, TupleType) and (not len(type) or any(item != type[0] for item in type)):
        raise block._mismatch(f"input type: expected items of one type, got {type!r}")
    if not isinstance(type, SEQUENCE_LIKE if objects else SEQUENCE_LIKE[1:]):
        raise bad_type(block, "input", type, f"{'PyObjectType or ' * objects}SequenceType or TupleType")
    return element_of(type)


def not_iterable(value: Any) -> Exception | None:
    """What a failed loop means; None where the value can be looped over, and the error is the user's own."""
    try:
        iter(value)
    except TypeError:
        return TypeMismatch(f"expected something to loop over, got {brief(value)}")
    except Exception:
        return None
    return None


class Map(Block):
    """A block on every item.

    >>> import weft.blocks as wb
    >>> (wb.Map(wb.Scalar()) >> wb.Sum()).eval_one([1, 2, 3])
    tensor(6.)
    """

    def __init__(self, elem_block: Any, *, name: str | None = None) -> None:
        super().__init__([elem_block], name=name)

    def _update(self) -> None:
        (elem,) = self.subblocks
        if self.input_type is not None:
            set_type(elem, "input", items_of(self, self.input_type, endless=True))
        elif isinstance(elem.input_type, PyObjectType):
            set_type(self, "input", PyObjectType())
        if elem.output_type is not None and self.input_type is not None:
            endless = isinstance(self.input_type, BroadcastSequenceType)
            set_type(self, "output", (BroadcastSequenceType if endless else SequenceType)(elem.output_type))
        elif isinstance(self.output_type, SequenceType):
            set_type(elem, "output", self.output_type.element_type)

    def _emit(self, e: Emitter, x: Value) -> Writing:
        (elem,), given = self.subblocks, self._known("input")
        if isinstance(given, BroadcastSequenceType):
            return (yield elem, x)
        if elem in e.waiting and not e.traced:
            items = f"list({e.listed(x, given)})"
            return e.let(f"yield (False, ({e.function_of(elem)}, {items}))")
        out, push = e.let("[]"), e.fresh()
        e.line(f"{push} = {out}.append")
        with e.loop(x, given) as item:
            y = yield elem, item
            e.line(f"{push}({e.pack(y, elem._known('output')) if not isinstance(self.output_type, PyObjectType) else y})")
        return e.placed(out, x.place) if isinstance(self.output_type, PyObjectType) else out

    def _explain(self, error: Exception, value: Any) -> Exception | None:
        return not_iterable(value)


class Fold(Block):
    """From left to right: `state = combine((state, item))`, beginning with `start`, by default zeros of the state's type.

    >>> import torch, weft.blocks as wb
    >>> (wb.Map(wb.Scalar()) >> wb.Fold(wb.Function(torch.sub), wb.Zeros([]))).eval_one([1, 2])
    tensor(-3.)
    """

    def __init__(self, combine: Any, start: Any = None, *, name: str | None = None) -> None:
        super().__init__([combine, *([] if start is None else [start])], name=name)

    def _update(self) -> None:
        combine, start = self.subblocks[0], next(iter(self.subblocks[1:]), None)
        holders = [self, combine, *([start] if start is not None else [])]
        if start is not None:
            set_type(start, "input", VoidType())
        known = next((block.output_type for block in holders if block.output_type is not None), None)
        if known is None and isinstance(combine.input_type, TupleType) and len(combine.input_type) == 2:
            known = combine.input_type[0]
        taken = combine.input_type
        pair = isinstance(taken, TupleType) and len(taken) == 2
        objects = isinstance(taken, PyObjectType) and isinstance(known, PyObjectType | None)
        if taken is not None and not pair and not objects:
            raise combine._mismatch(f"input type: expected a tuple of state and item, got {taken!r}")
        item = None if self.input_type is None else items_of(self, self.input_type)
        if known is not None:
            for block in holders:
                set_type(block, "output", known)
            if item is not None:
                set_type(combine, "input", TupleType(known, item))
            if start is None:
                check_has_zeros(self, known)
        if self.input_type is None and isinstance(combine.input_type, TupleType):
            if isinstance(combine.input_type[1], PyObjectType):
                set_type(self, "input", PyObjectType())

    def _guess(self) -> None:
        """A state of the items' type, if that is what comes out of combining it with an item."""
        if self.output_type is None and self.input_type is not None and len(self.subblocks) == 1:
            with suppress(Exception), inferring():  # where it does not fit, all types are as they were
                set_type(self, "output", items_of(self, self.input_type))

    def _how_to_say(self, side: str) -> str:
        start = "" if side == "input" else "give Fold a start, as in Fold(combine, Zeros([3])), or "
        return start + super()._how_to_say(side)

    def _emit(self, e: Emitter, x: Value) -> Writing:
        type, given = self._known("output"), self._known("input")
        state = e.variables(type)
        first = (yield self.subblocks[1], None) if len(self.subblocks) > 1 else zeros_of(e, type)
        e.assign(state, first, type)
        with e.loop(x, given) as item:
            e.assign(state, (yield self.subblocks[0], (state, item)), type)
        return state

    def _explain(self, error: Exception, value: Any) -> Exception | None:
        return not_iterable(value)

    def _labels(self) -> Any:
        yield from zip(("combine", "start"), self.subblocks, strict=False)


class RNN(Block):
    """A cell along a sequence: `(y, state) = cell((item, state))`. Gives the sequence of `y` and the last state.

    The first state is zeros, or what `initial_state` gives, or comes with the input as `(sequence, state)`.

    >>> import weft.blocks as wb
    >>> cell = wb.Function(lambda x, state: (state + x, state + x))
    >>> net = wb.Map(wb.Scalar()) >> wb.RNN(cell.set_input_type(([], [])))
    >>> net.eval_one([1, 2, 3], tolist=True)
    ([1.0, 3.0, 6.0], 6.0)
    """

    def __init__(
        self, cell: Any, initial_state: Any = None, initial_state_from_input: bool = False, *, name: str | None = None
    ) -> None:
        if initial_state is not None and initial_state_from_input:
            raise ValueError("RNN: give initial_state or initial_state_from_input, not both")
        super().__init__([cell, *([] if initial_state is None else [initial_state])], name=name)
        self._from_input = initial_state_from_input

    def _update(self) -> None:
        cell, start = self.subblocks[0], next(iter(self.subblocks[1:]), None)
        if start is not None:
            set_type(start, "input", VoidType())
        sequence, state = self.input_type, None
        if self._from_input and self.input_type is not None:
            if not isinstance(self.input_type, TupleType) or len(self.input_type) != 2:
                raise self._mismatch(f"input type: expected a tuple of sequence and state, got {self.input_type!r}")
            sequence, state = self.input_type
        state = state or (None if start is None else start.output_type)
        for side, place in (("output", 1), ("input", 1)):
            known = cell._types[side]
            if known is not None and (not isinstance(known, TupleType) or len(known) != 2):
                what = "item and state" if side == "input" else "output and state"
                raise cell._mismatch(f"{side} type: expected a tuple of {what}, got {known!r}")
            if state is None and isinstance(known, TupleType):
                state = known[place]
        if sequence is not None and state is not None:
            set_type(cell, "input", TupleType(items_of(self, sequence), state))
        if isinstance(cell.output_type, TupleType):
            self._finish(cell, cell.output_type, start)

    def _finish(self, cell: Block, output: TupleType, start: Block | None) -> None:
        if isinstance(cell.input_type, TupleType) and cell.input_type[1] != output[1]:
            raise cell._mismatch(f"output type: expected the state to stay {cell.input_type[1]!r}, got {output[1]!r}")
        if start is not None:
            set_type(start, "output", output[1])
        elif not self._from_input:
            check_has_zeros(self, output[1])
        if self.input_type is not None:
            set_type(self, "output", TupleType(SequenceType(output[0]), output[1]))

    def _emit(self, e: Emitter, x: Value) -> Writing:
        cell, given = self.subblocks[0], self._known("input")
        pair = cell._known("output")
        assert isinstance(pair, TupleType)
        item_type, type = pair[0], pair[1]
        state = e.variables(type)
        if self._from_input:
            assert isinstance(given, TupleType)
            (x, first), given = x, given[0]
        else:
            first = (yield self.subblocks[1], None) if len(self.subblocks) > 1 else zeros_of(e, type)
        e.assign(state, first, type)
        out = e.let("[]")
        with e.loop(x, given) as item:
            y, after = yield cell, (item, state)
            e.line(f"{out}.append({e.pack(y, item_type) if not isinstance(item_type, PyObjectType) else y})")
            e.assign(state, after, type)
        return out, state

    def _explain(self, error: Exception, value: Any) -> Exception | None:
        return not_iterable(value[0] if self._from_input else value)

    def _labels(self) -> Any:
        yield from zip(("cell", "initial_state"), self.subblocks, strict=False)


class Reduce(Block):
    """Combine neighbours pairwise, level by level: (0, 1), (2, 3), ...; an odd last item moves up as it is.

    Needs about log2(n) steps. One item is itself; no item gives `default_block`, by default zeros.

    >>> import torch, weft.blocks as wb
    >>> (wb.Map(wb.Scalar()) >> wb.Reduce(wb.Function(torch.sub))).eval_one([1, 2, 3, 4, 5])
    tensor(-5.)
    """

    _input_classes = (SequenceType, TupleType)

    def __init__(self, combine: Any, default_block: Any = None, *, name: str | None = None) -> None:
        super().__init__([combine, *([] if default_block is None else [default_block])], name=name)

    def _update(self) -> None:
        combine, default = self.subblocks[0], next(iter(self.subblocks[1:]), None)
        known = None if self.input_type is None else items_of(self, self.input_type, objects=False)
        holders = [self, combine, *([] if default is None else [default])]
        if default is not None:
            set_type(default, "input", VoidType())
        known = known or next((block.output_type for block in holders if block.output_type is not None), None)
        if known is not None:
            set_type(combine, "input", TupleType(known, known))
            for block in holders:
                set_type(block, "output", known)
            if default is None:
                check_has_zeros(self, known)

    def _emit(self, e: Emitter, x: Value) -> Writing:
        type = self._known("output")
        level, after, at = e.let(f"list({e.listed(x, self._known('input'))})"), e.fresh(), e.fresh("i")
        with e.under(f"while len({level}) > 1:"):
            e.line(f"{after} = []")
            with e.under(f"for {at} in range(0, len({level}) - 1, 2):"):
                left = e.unpack(e.let(f"{level}[{at}]"), type)
                right = e.unpack(e.let(f"{level}[{at} + 1]"), type)
                y = yield self.subblocks[0], (left, right)
                e.line(f"{after}.append({e.pack(y, type)})")
            with e.under(f"if len({level}) & 1:"):
                e.line(f"{after}.append({level}[-1])")
            e.line(f"{level} = {after}")
        out = e.variables(type)
        with e.under(f"if {level}:"):
            e.line("pass")
            e.assign(out, e.unpack(e.let(f"{level}[0]"), type), type)
        with e.under("else:"):
            e.line("pass")
            empty = (yield self.subblocks[1], None) if len(self.subblocks) > 1 else zeros_of(e, type)
            e.assign(out, empty, type)
        return out

    def _labels(self) -> Any:
        yield from zip(("combine", "default_block"), self.subblocks, strict=False)
