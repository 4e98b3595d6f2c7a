"""Fused pointwise kernels for the CPU, in C, from a piece.

A piece alternates between operations that a library does best (matrix products, gathers, segment sums) and runs of pointwise
ones. Each run becomes one C function that goes through the rows once: what is only needed inside stays in registers or in the
first cache, what others need is written to its place. Where the machine has no C compiler the same piece runs as torch calls.

    phase 0    pointwise operations on what the piece is given          one kernel
    phase 1    a product of these; pointwise operations on the result   one kernel
    ...
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch

from weft.cc import compiler
from weft.graph.tape import Value, operands
from weft.run.cpu.formulas import HEADS, PRELUDE, has_formula
from weft.run.cpu.kernel import Input, NoKernel, Stack, kernel_text
from weft.run.cpu.native import Native
from weft.run.cpu.parallel import over_rows
from weft.run.emit import Code, Emitter
from weft.run.formulas import JOINS
from weft.run.rowview import place_of, row_width
from weft.run.spare import Spare
from weft.run.split import Piece
from weft.run.views import bases, is_free

APART = "apart_of_"
"""How the names of arguments begin that are numbers, not addresses."""


def emit_native(
    piece: Piece,
    stores: Iterable[Value],
    leave_out: Iterable[Value] = (),
    by_address: bool = False,
    through_index: Mapping[str, int] | None = None,
    spare: Spare | None = None,
) -> Code | None:
    """The piece with its pointwise operations fused, its kernels not yet compiled; None where nothing can be fused.

    With `by_address`, what only kernels touch is given as an address. Values named in `through_index` are then given as two:
    each of their rows is so many rows of other memory, which the kernels find through an index. Where that number is 0 it is
    one row, to which a row of a further tensor is added: its address and how far apart its rows are follow.
    What is only needed inside the piece borrows its memory from `spare`.
    """
    path = compiler()
    if path is None:
        return None
    stores = tuple(stores)
    addresses = addressed(piece, stores) if by_address else set()
    indexed = {name: slots for name, slots in (through_index or {}).items() if name in addresses}
    emitter = _NativeEmitter(piece, stores, tuple(leave_out), path, addresses - indexed.keys(), indexed, spare)
    try:
        return emitter.native_code() if emitter.fusable else None
    except NoKernel:
        return None


def addressed(piece: Piece, stores: tuple[Value, ...] = ()) -> set[str]:
    """Names of what a piece is given, or computes into a given place, and only its kernels touch."""
    kernels = {id(value) for value in piece.values if fuses(value)}
    others = [operand for value in piece.values if id(value) not in kernels for operand in operands(value)]
    read = [place_of(operand) for value in piece.values if id(value) in kernels for operand in operands(value)]
    others += [place.base for place in read if place is not None and is_free(place.base)]  # made by a torch call first
    seen = {id(operand) for operand in others} | _behind(others)
    taken = _behind(piece.gives)
    given = _behind([value for value in piece.gives if id(value) not in kernels])
    found = {value.name for value in piece.takes if id(value) not in seen | taken and value.constant is None}
    return found | {value.name for value in stores if id(value) in kernels and id(value) not in seen | given}


def _behind(values: Iterable[Value]) -> set[int]:
    """What values are views of: what is given to a piece may itself be a view, one that is the same for every step."""
    return {id(base) for value in values for per_step in (False, True) for base in bases(value, per_step)}


def fuses(value: Value) -> bool:
    """Whether an operation can be part of a kernel."""
    width = row_width(value)
    if not width or value.rows is None:
        return False
    if value.target in JOINS:
        dim = value.args[1] if len(value.args) > 1 else 0
        parts = value.args[0]
        return value.dtype in PRELUDE and dim == 1 and all(_readable(part, value, row_width(part) or 0) for part in parts)
    return has_formula(value) and all(_readable(operand, value, width) for operand in operands(value))


def _readable(operand: Value, value: Value, width: int) -> bool:
    place = place_of(operand)
    if place is None or operand.dtype != value.dtype or place.width not in (1, width):
        return False
    return operand.rows is None or (value.rows is not None and operand.rows == value.rows)


class _NativeEmitter(Emitter):
    def __init__(
        self,
        piece: Piece,
        stores: tuple[Value, ...],
        leave_out: tuple[Value, ...],
        path: str,
        addresses: set[str],
        indexed: dict[str, int],
        spare: Spare | None,
    ) -> None:
        super().__init__(piece, stores, True, leave_out)
        self.spare, self.borrowed = spare, list[str]()
        self.path, self.addresses, self.indexed = path, addresses, indexed
        self.fusable = {id(value) for value in self.piece.values if fuses(value)}
        self.natives: list[Native] = []

    def native_code(self) -> Code:
        code = self.code()
        return replace(code, addresses=frozenset(self.addresses), indexed=frozenset(self.indexed), kernels=tuple(self.natives))

    def parameter(self, taken: Value) -> list[str]:
        name = self.name(taken)
        if taken.name not in self.indexed:
            return [name]
        return [f"rows_of_{name}", name, *([f"plus_{name}", f"{APART}{name}"] if not self.indexed[taken.name] else [])]

    def _new(self, value: Value) -> str:
        shape = self._render(list(value.shape or ()))
        if self.spare is None or id(value) in self.kept:
            return f"torch.empty({shape}, dtype={value.dtype})"
        self.space["spare"] = self.spare
        self.borrowed.append(self.name(value))
        return f"spare.take({shape}, {value.dtype})"

    def _ensure(self, value: Value) -> None:
        product = value.target is torch.ops.aten.mm.default and id(value) not in self.made | self.destination.keys()
        if product and self.spare is not None and id(value) not in self.kept:
            self.lines.append(f"{self.name(value)} = {self._new(value)}")
            self.destination[id(value)] = self.name(value)
        super()._ensure(value)

    def finish(self, results: list[str]) -> None:
        if self.borrowed:
            self.lines.append(f"spare.give_back([{', '.join(self.borrowed)}], [{', '.join(results)}])")

    def _plan_joins(self) -> None:
        """Kernels write the parts of a join in place themselves."""

    def body(self) -> None:
        phase = phases(self.piece, self.fusable)
        last = max(phase.values(), default=0)
        for number in range(last + 1):
            mine = [value for value in self.piece.values if phase[id(value)] == number and id(value) in self.fusable]
            for kind in ("n", "e"):
                for dtype in PRELUDE:
                    run = [v for v in mine if v.rows is not None and v.rows.kind == kind and v.dtype == dtype]
                    if run:
                        self._kernel(run, kind, dtype)
            for value in self.piece.values:
                if phase[id(value)] == number + 1 and id(value) not in self.fusable:
                    self._ensure(value)

    def _kernel(self, run: list[Value], kind: str, dtype: torch.dtype) -> None:
        made = outward(self.piece, run)
        for value in made:
            place = self.destination.get(id(value))
            if place is None:
                self.lines.append(f"{self.name(value)} = {self._new(value)}")
            else:
                self.lines.append(f"{self.name(value)} = {place}")
        inputs = read_by(run)
        for base in inputs:
            self._ensure(base)
            if base.constant is not None:
                self.space[self.name(base)] = base.constant.contiguous()
            elif id(base) not in self.checked and base.name not in self.addresses | self.indexed.keys():
                self.checked.add(id(base))
                self.lines.append(f"{self.name(base)} = {self.name(base)}.contiguous()")
        self.made.update(id(value) for value in run)
        name = f"kernel{len(self.natives)}"
        text = kernel_text(run, [input_of(value, self.indexed) for value in inputs], made, Stack())
        numbers = sum(row_width(value) or 0 for value in run)
        pointers = [pointer for value in [*inputs, *made] for pointer in self._pointers(value)]
        kinds = [ctypes.c_long if pointer.startswith(APART) else ctypes.c_void_p for pointer in pointers]
        native = Native(self.path, HEADS[dtype], text, [ctypes.c_long, ctypes.c_long, *kinds])
        self.natives.append(native)
        self.space[name] = over_rows(native, numbers)
        self.lines.append(f"{name}({kind}, {', '.join(pointers)})")

    def _pointers(self, value: Value) -> list[str]:
        if value.name in self.addresses | self.indexed.keys():
            return self.parameter(value)
        return [f"{self.name(value)}.data_ptr()"]


def phases(piece: Piece, fusable: set[int]) -> dict[int, int]:
    """How many library operations lie, one behind the other, before each value."""
    phase: dict[int, int] = {}
    for value in piece.values:
        before = [phase.get(id(base), 0) for operand in operands(value) for base in bases(operand)]
        phase[id(value)] = max(before, default=0) + (id(value) not in fusable)
    return phase


def outward(piece: Piece, run: list[Value]) -> list[Value]:
    """Which values of a kernel anything outside it reads."""
    inside = {id(value) for value in run}
    readers = [value for value in piece.values if id(value) not in inside]
    seen = {id(base) for reader in readers for operand in operands(reader) for base in bases(operand)}
    seen |= {id(base) for value in piece.gives for base in bases(value)}
    return [value for value in run if id(value) in seen]


def read_by(run: list[Value]) -> list[Value]:
    """What the operations of a kernel read from outside it."""
    inside, found = {id(value) for value in run}, dict[int, Value]()
    for value in run:
        for operand in operands(value):
            place = place_of(operand)
            assert place is not None
            if id(place.base) not in inside:
                found[id(place.base)] = place.base
    return list(found.values())


def input_of(value: Value, indexed: Mapping[str, int]) -> Input:
    """A value as a kernel reads it: from its own memory, or through an index."""
    slots = indexed.get(value.name)
    return Input(value) if slots is None else Input(value, slots or 1, plus=not slots)
