"""A cell compiled for one role: which of its inputs and outputs are recurrent, and which gradients are wanted."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from weft.graph.tape import Name, Tape, Value, operands
from weft.run.compiled import compile_piece
from weft.run.cpu.native import compile_all
from weft.run.cpu.pointwise import addressed, emit_native
from weft.run.cpu.walk import Walk, make_walk
from weft.run.emit import Code, emit, needed_part
from weft.run.gpu.pointwise import emit_triton, fuses
from weft.run.spare import Spare
from weft.run.split import PER_STEP, Piece, Split, split
from weft.run.thrift import Thrift

ELSEWHERE = ("ct", "feed", "capture", "seg", "filled", "count")
"""Inputs that need not be kept between the passes: backward is given them, or finds them where forward did."""


@dataclass(frozen=True)
class Role:
    """How a cell is used in a plan. Two calls with equal roles share their compiled pieces."""

    recurrent_in: frozenset[Name]
    recurrent_out: frozenset[Name]
    exchanged: frozenset[Name]
    """Outputs that others read, so that they live in an arena."""
    outputs: frozenset[Name]
    gradients: frozenset[Name]
    recompute: bool = False
    backend: str = "eager"
    device: str = "cpu"


class Codes(dict[int, "CellCode"]):
    """The compiled cells of one kind of plan, by type, and what is kept with them."""

    def __init__(self, codes: Mapping[int, CellCode]) -> None:
        super().__init__(codes)
        compile_c(codes.values())
        self.recipes: dict[Hashable, list[Any]] = {}
        """What earlier calls on a GPU did, written down."""


def compile_c(cells: Collection[CellCode]) -> None:
    """Compile the C of all pieces that wait for it, together. Kernels of a piece that has a walk wait until they are called.

    What does not compile is done without: a piece runs by its kernels instead of its walk, or as torch calls.
    """
    pending = [one for cell in cells for one in cell.pending]
    compile_all([function for codes, piece in pending for function in codes[piece.stage].functions])
    for codes, piece in pending:
        code = codes[piece.stage]
        if code.walk is not None and not code.walk.function.ready:
            codes[piece.stage] = code = replace(code, walk=None)
        if not compile_all(code.functions):
            codes[piece.stage] = emit(piece, code.stores)
    for cell in cells:
        cell.pending.clear()


class CellCode:
    """The pieces of one cell in one role, as functions."""

    def __init__(self, tape: Tape, role: Role, name: str = "cell") -> None:
        self.tape, self.role, self.name = tape, role, name
        self.spare = Spare()
        self.input_name: dict[str, Name] = {value.name: name for name, value in tape.inputs.items()}
        self.pending: list[tuple[dict[str, Code], Piece]] = []
        """Pieces whose C is not compiled yet, each with the codes that it is one of."""
        self._without_return: dict[frozenset[Name], Code] = {}
        self._by_cotangents: dict[frozenset[Name], tuple[Split, dict[str, Code]]] = {}
        thrifty = role.backend == "triton" and not role.recompute
        self.thrift = Thrift(role.exchanged, fuses) if thrifty else None
        every = frozenset(name[1] for name in tape.inputs if name[0] == "ct")
        self.split, self.codes = self._pieces(every & role.outputs)

    def with_cotangents(self, given: frozenset[Name]) -> tuple[Split, dict[str, Code]]:
        """Pieces for the case that only these outputs have a gradient: what depends on the others alone is left out."""
        found = self._pieces(given)
        compile_c([self])
        return found

    def _pieces(self, given: frozenset[Name]) -> tuple[Split, dict[str, Code]]:
        if given not in self._by_cotangents:
            role = self.role
            cut = split(
                self.tape,
                role.recurrent_in,
                role.recurrent_out,
                role.outputs,
                role.gradients,
                given,
                role.recompute,
                fuse_matrix_products=role.device != "cpu" and role.backend != "triton",
                thrift=self.thrift,
            )
            codes = {stage: self._compile(cut, stage) for stage in cut.pieces if cut.pieces[stage].gives}
            self._by_cotangents[given] = cut, codes
            self.pending += [(codes, cut.pieces[stage]) for stage in codes if codes[stage].functions]
            for value, name in ((v, n) for n, v in cut.tape.inputs.items()):
                self.input_name[value.name] = name
        return self._by_cotangents[given]

    def _compile(self, cut: Split, stage: str) -> Code:
        piece = cut.pieces[stage]
        per_step = stage in PER_STEP
        stores: list[Value] = list(piece.gives) if per_step else []
        if stage in ("before", "after"):
            exchanged = [value for name, value in cut.outputs.items() if name in self.role.exchanged]
            stores = [value for value in piece.gives if any(value is other for other in exchanged)]
        if self.role.backend == "native":
            return self._compile_natively(cut, stage, stores)
        if self.role.backend == "triton":
            return emit_triton(piece, stores) or emit(piece, stores)
        code = emit(piece, stores)
        return compile_piece(piece, code) if per_step and self.role.backend == "compiled" else code

    def _compile_natively(self, cut: Split, stage: str, stores: list[Value]) -> Code:
        piece, indexed = cut.pieces[stage], self._through_index(cut)
        if stage in PER_STEP:
            native = emit_native(piece, stores, (), True, indexed)
            return emit(piece, stores) if native is None else replace(native, walk=self._walk(cut, stage, native))
        native = emit_native(piece, stores, through_index=indexed, spare=self.spare)
        return replace(native or emit(piece, stores), walk=make_walk(piece, stores))

    def _walk(self, cut: Split, stage: str, code: Code, leave_out: Iterable[Value] = ()) -> Walk | None:
        indexed = {name: slots for name, slots in self._through_index(cut).items() if name in code.indexed}
        gathered = {}
        for name, value in cut.tape.inputs.items():
            kind: Any = name[0]
            if name in self.role.recurrent_in or kind == "seg":
                gathered[value.name] = kind
            elif kind == "ct" and name[1] in self.role.recurrent_out and value.name not in indexed:
                if any(value is taken for taken in cut.pieces[stage].takes):
                    return None  # put together by torch calls
        gathered = {name: kind for name, kind in gathered.items() if name not in indexed}
        return make_walk(cut.pieces[stage], code.stores, leave_out, indexed, gathered)

    def back_without_return(self, given: frozenset[Name]) -> Code:
        """The per-step backward piece for steps that read only states which need no gradient."""
        if given not in self._without_return:
            cut, codes = self.with_cotangents(given)
            returned = self._returned(cut)
            piece, full = cut.pieces["back"], codes["back"]
            short = None
            if self.role.backend == "native":
                short = emit_native(piece, full.stores, returned, True, self._through_index(cut))
                if short is not None and full.walk is not None:
                    short = replace(short, walk=self._walk(cut, "back", full, returned))
                if short is not None and not compile_all(short.functions):
                    short = None
            elif self.role.backend == "triton":
                short = emit_triton(piece, full.stores, returned)
            if short is None and full.addresses | full.indexed:
                short = full  # what it is given would not suit torch calls
            self._without_return[given] = short or emit(piece, full.stores, leave_out=returned)
        return self._without_return[given]

    def _through_index(self, cut: Split) -> dict[str, int]:
        """States and gradients that kernels alone read, from where they are: nobody needs them gathered.

        By name, with the number of rows that each row is gathered from; 0 for what is one row and another.
        """
        whole = {value.name for stage, piece in cut.pieces.items() if stage not in PER_STEP for value in piece.takes}
        copied = set[str]()
        for piece in (cut.pieces[stage] for stage in PER_STEP):
            copied |= {value.name for value in piece.takes} - addressed(piece)
        found: dict[str, int] = {}
        for name, value in cut.tape.inputs.items():
            kind: Any = name[0]
            gathered = name in self.role.recurrent_in and kind in ("slots", "edge")
            collected = kind == "ct" and name[1] in self.role.recurrent_out
            if (gathered or collected) and value.name not in whole | copied:
                size = (value.shape or ())[1] if kind == "slots" else 1 if gathered else 0
                assert isinstance(size, int)
                found[value.name] = size
        return found

    def _returned(self, cut: Split) -> list[Value]:
        """Gradients that are returned to states and serve nothing else."""
        taken = {id(value) for piece in cut.pieces.values() for value in piece.takes}
        taken |= {id(value) for name, value in cut.gradients.items() if name not in self.role.recurrent_in}
        gradients = [value for name, value in cut.gradients.items() if name in self.role.recurrent_in]
        return [value for value in gradients if id(value) not in taken]

    def only_for_return(self, cut: Split) -> list[Value]:
        """Operations of the backward step that only compute what is returned to states."""
        piece = cut.pieces["back"]
        needed = {id(value) for value in needed_part(piece, tuple(self._returned(cut))).values}
        return [value for value in piece.values if id(value) not in needed]

    @cached_property
    def routes(self) -> dict[Name, frozenset[Name]]:
        """For each gradient, by the name of its input, the outputs on whose gradients it depends."""
        comes: dict[int, frozenset[Name]] = {
            id(value): frozenset([name[1]]) for name, value in self.tape.inputs.items() if name[0] == "ct"
        }
        for value in self.tape.values:
            parts = {comes[id(operand)] for operand in operands(value) if id(operand) in comes}
            if parts:
                comes[id(value)] = parts.pop() if len(parts) == 1 else frozenset().union(*parts)
        found = ((name, value) for name, value in self.tape.outputs.items() if name[0] == "grad")
        return {name[1]: comes.get(id(value), frozenset()) for name, value in found}

    @cached_property
    def exchanged(self) -> dict[int, list[Name]]:
        """By a value's id the names (output, key) under which others read it."""
        found: dict[int, list[Name]] = {}
        for name, value in self.split.outputs.items():
            if name in self.role.exchanged:
                found.setdefault(id(value), []).append(name)
        return found

    @cached_property
    def has_doubles(self) -> bool:
        """Whether anything that the cell is given is in float64."""
        return any(value.dtype is torch.float64 for value in self.tape.inputs.values())

    @cached_property
    def has_twins(self) -> bool:
        """Whether others read one value under two names."""
        return any(len(names) > 1 for names in self.exchanged.values())

    @cached_property
    def saved(self) -> list[Value]:
        """What the backward pieces read of the forward ones; what is fed or captured they find where forward did."""
        found: dict[str, Value] = {}
        for stage in ("late", "back", "sums"):
            for value in self.split.pieces[stage].takes:
                home = self.split.home.get(id(value))
                name = self.input_name.get(value.name)
                if home in ("before", "during", "after") or (name is not None and name[0] not in ELSEWHERE):
                    found[value.name] = value
        return list(found.values())
