"""Node types within forward recipes on a CPU: the numbers and addresses that their walks are called with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch

from weft.graph.tape import Name, Value
from weft.plan.plan import Read
from weft.run.columns import Cuts
from weft.run.cpu.fed import LARGE, Fed, Stretches
from weft.run.cpu.rowtypes import CONSTANT, NativeTypeText
from weft.run.cpu.turn import turned_into
from weft.run.cpu.walk import Walk, dense
from weft.run.emit import Code
from weft.run.forward import kept
from weft.run.indices import Indices
from weft.run.recipe import NoRecipe, Writer
from weft.run.typerun import MANY_STEPS, TypeRun


@dataclass(frozen=True, eq=False)
class Sweep:
    """A walk over some steps of a type, as texts."""

    walk: Walk
    lines: list[str]
    scratch: str
    most: tuple[str, str]
    steps: tuple[str, str]


class ForwardTypeText(NativeTypeText):
    """One node type within a forward recipe on a CPU; `run` is how the first call ran it."""

    def __init__(self, writer: Writer, run: TypeRun, arenas: dict[tuple[int, Name], str], inputs: dict[Any, int]) -> None:
        super().__init__(writer, run, arenas, inputs)
        self.run = run
        self.fed: Fed | None = None
        self.reading: Fed | None = None
        """`fed` while the lines of the steps that read it are written."""
        self.turned: dict[str, str] = {}
        self.views: dict[str, Value] = {}
        """Turned weights by name, which are made when they are needed as tensors."""

    def whole(self, value: Value) -> str:
        if value.name in self.views and value.name not in self.store:
            self.store[value.name] = self.writer.let(f"{self.whole(self.views[value.name])}.t()")
        return super().whole(value)

    def begin(self, place: str) -> str:
        """Of a part of an arena it is told by the arena: where nobody else needs the view, it is not made."""
        part = next((part for part, name in self.parts.items() if name == place), None)
        if part is None:
            return super().begin(place)
        number = self.plan.class_of[self.type, part[0]]
        first, apart = self.class_first(part[0]), _apart(self.run.arenas[number, part[1]])
        return f"{self.arenas[number, part[1]]}.data_ptr() + {first} * {apart}"

    def given(self, value: Value, walk: Walk) -> list[str]:
        return self._given(value, walk)

    def scratch(self, walk: Walk, rows: str, edges: str) -> str:
        return self.writer.empty([self.writer.view(walk.room_text(rows, edges))], walk.dtype)

    def _given(self, value: Value, walk: Walk, turn: bool = False) -> list[str]:
        """The lines of a value that exists for all rows."""
        found = self.run.whole(value)
        if value.name not in walk.matrices:
            return [f"{self._dense(value)}.data_ptr(), {CONSTANT}"]
        matrix, turned, apart = dense(found.t() if walk.matrices[value.name] else found)
        if turn and turned:
            if value.name not in self.turned:
                fresh = f"fresh({tuple(found.shape)}, {found.dtype}, device)"
                self.turned[value.name] = self.writer.let(f"{self.writer.bind(turned_into)}({fresh}, {self.whole(value)})")
            name, turned, apart = self.turned[value.name], False, found.shape[1]
        elif matrix.data_ptr() != found.data_ptr():
            raise NoRecipe("a matrix that is neither dense by rows nor by columns")
        else:
            name = self.whole(self.views.get(value.name, value))  # turned or not, it begins at the same place
        return [f"{name}.data_ptr(), {CONSTANT}", f"{int(turned)}, {CONSTANT}", f"{apart}, {CONSTANT}"]

    def _dense(self, value: Value) -> str:
        """The variable of a value, copied if its memory is not contiguous; of a single row that cannot be told."""
        name, found = self.whole(value), self.run.whole(value)
        is_dense = found.is_contiguous() and (value.rows is None or len(found) > 1)
        return name if is_dense else self.writer.let(f"{name}.contiguous()")

    # Sweeps.

    def sweep(self, code: Code) -> list[Sweep]:
        """The walk over this type's steps; where some read what is fed, two of them."""
        walk: Walk = code.walk
        most, steps, first = self._cuts("most", lambda cuts: cuts.most), self._cuts("steps", len), "0"
        most_e = "0"
        if self.bag is not None:
            most_e = self.fact("most edges", lambda indices, read: indices.edge_cuts(read).most, self.bag)
        scratch, calls = self.scratch(walk, most, most_e), []
        if self.fed is not None:
            self.reading = fed = self.fed
            calls.append(Sweep(walk, self._lines(code, walk), scratch, (most, most_e), (first, self._cuts("steps", len))))
            first = self.writer.fact((*fed.key, "first"), lambda indices: _found(fed, indices).steps)
            self.reading = None
        return [*calls, Sweep(walk, self._lines(code, walk), scratch, (most, most_e), (first, steps))]

    def _lines(self, code: Code, walk: Walk) -> list[str]:
        lines: list[str] = []
        for value in code.takes:
            lines += self._taken(value, code, walk)
        lines += [self._place(value) for value in code.stores]
        sizes = self._cuts("sizes", lambda cuts: cuts.sizes.address)
        lines.append(f"0, 1, {sizes}")
        if self.bag is None:
            return [*lines, f"0, {CONSTANT}", f"0, {CONSTANT}"]
        edges = self.fact("edge sizes", lambda indices, read: indices.edge_cuts(read).sizes.address, self.bag)
        bounds = self._column(lambda indices, read: indices.seg(read)[3], "seg bounds", self.bag, 4)
        return [*lines, f"0, 1, {edges}", bounds]

    def may_read_fed(self, read: Read) -> bool:
        """Whether only a walk, of a type alone on its cycle, reads this port and no other, and not through the index."""
        group, code = self.plan.groups[self.plan.group_of[self.type]], self.code.codes.get("during")
        if len(group.types) != 1 or code is None or code.walk is None or not read.recurrent or read.kind != "slots":
            return False
        at = [(value, self.run.recurrent(value)) for value in code.takes]
        taken = [(value, found) for value, found in at if found is not None]
        if self.bag is not None or any(found.read.port != read.port for _, found in taken):
            return False
        names = [name for value in code.stores for name in self.code.exchanged.get(id(value), [])]
        if not all(self.class_range(output) for output, _ in names):
            return False
        return not any(value.name in code.indexed or kept(self.run, value) for value, _ in taken)

    def has_large_matrix(self) -> bool:
        code = self.code.codes["during"]
        return any(self.run.whole(value).numel() > LARGE for value in code.takes if value.name in code.walk.matrices)

    def _cuts(self, what: str, of: Any) -> str:
        type, fed = self.type, self.reading
        if fed is not None:
            return self.writer.fact((*fed.key, what), lambda indices: of(_found(fed, indices).cuts))
        return self.writer.fact(("cuts", what, type), lambda indices: of(indices.step_cuts(type)))

    def _column(self, of: Any, what: str, port: int, apart: int) -> str:
        """The line of a tensor that is cut into the steps' parts."""
        tensor = self.fact(what, lambda indices, read: of(indices, read).tensor, port)
        starts = self.fact(f"starts of {what}", lambda indices, read: of(indices, read).cuts.offsets.address, port)
        return f"{tensor}.data_ptr(), {apart}, {starts}"

    def _taken(self, value: Value, code: Code, walk: Walk) -> list[str]:
        at = self.run.recurrent(value)
        if at is not None:
            port = at.read.port
            if value.name in code.indexed:
                arena = self.arenas[at.read.value_class, self.code.input_name[value.name][-1]]
                return [f"{arena}.data_ptr(), {CONSTANT}", self._index(port)]
            return self._gathered(value, at.read)
        if self.code.input_name.get(value.name) == ("seg",):
            assert self.bag is not None
            return [self._column(lambda indices, read: indices.seg(read)[2], "seg", self.bag, 8)]
        if value.rows is None:
            copies = value.target is torch.ops.aten.t.default and self.writer.ask(
                ("narrow", self.type), partial(_are_narrow, self.type, self.fed), by_rows=True
            )
            return self._given(value, walk, copies)
        name, tensor = self._dense(value), self.run.whole(value)
        apart = prod(tensor.shape[1:]) * tensor.element_size()
        return [f"{name}.data_ptr(), {apart}, {self._starts(value.rows.kind)}"]

    def _starts(self, kind: str) -> str:
        if kind == "n":
            return self._cuts("offsets", lambda cuts: cuts.offsets.address)
        assert self.bag is not None
        return self.fact("edge offsets", lambda indices, read: indices.edge_cuts(read).offsets.address, self.bag)

    def _index(self, port: int) -> str:
        index = self.fact("index32", lambda indices, read: indices.read(read).index.int(), port)
        starts = self.fact("index starts", lambda indices, read: indices.read(read).cuts.offsets.address, port)
        return f"{index}.data_ptr(), 4, {starts}"

    def _gathered(self, value: Value, read: Read) -> list[str]:
        key, port, kind = self.code.input_name[value.name][-1], read.port, read.kind
        arena, tensor = self.arenas[read.value_class, key], self.run.arenas[read.value_class, key]
        nothing = f"0, {CONSTANT}"
        if self.reading is not None:
            fed = self.reading
            starts = self.writer.fact((*fed.key, "starts"), lambda indices: _found(fed, indices).starts.address)
            return [f"{fed.tensors[key]}.data_ptr(), {_apart(tensor)}, {starts}", nothing, nothing]
        if kind != "sum" and self.ask("slices", lambda indices, read: indices.read(read).all_slices, port):
            starts = self.fact("slices", lambda indices, read: indices.read(read).starts.address, port)
            return [f"{arena}.data_ptr(), {_apart(tensor)}, {starts}", nothing, nothing]
        if kept(self.run, value):
            whole = self.store[value.name] = self.empty(value)
            to = f"{whole}.data_ptr(), {_apart(self.run.store[value.name])}, {self._starts('e' if kind == 'edges' else 'n')}"
        else:
            most = (
                self._cuts("most", lambda cuts: cuts.most)
                if kind == "sum"
                else self.fact("most gathered", lambda indices, read: indices.read(read).cuts.most, port)
            )
            to = f"{self.writer.empty([most, *tensor.shape[1:]], tensor.dtype)}.data_ptr(), {CONSTANT}"
        lines = [to, f"{arena}.data_ptr(), {CONSTANT}", self._index(port)]
        if kind == "sum":
            lines.append(self._column(lambda indices, read: indices.read(read).bounds, "sum bounds", port, 4))
        return lines

    def _place(self, value: Value) -> str:
        """Where steps write a value."""
        names = self.code.exchanged.get(id(value), [])
        if not names:
            if value.name not in self.store:
                self.store[value.name] = self.empty(value)
        elif self.class_range(names[0][0]):
            self.store[value.name] = self.class_part(*names[0])
            return self._class_line(*names[0])
        else:
            type, (output, key) = self.type, names[0]
            self.in_class[value.name] = output, key
            starts = self.writer.fact(
                ("class starts", type, output), lambda indices: indices.class_starts(type, output).address
            )
            number = self.plan.class_of[type, output]
            return f"{self.arenas[number, key]}.data_ptr(), {_apart(self.run.arenas[number, key])}, {starts}"
        kind = value.rows.kind if value.rows is not None else "n"
        return f"{self.store[value.name]}.data_ptr(), {_apart(self.run.store[value.name])}, {self._starts(kind)}"

    def _class_line(self, output: int, key: Name) -> str:
        """Where steps write a class whose rows of this type are one range."""
        number = self.plan.class_of[self.type, output]
        apart = _apart(self.run.arenas[number, key])
        return f"{self.arenas[number, key]}.data_ptr() + {self.class_first(output)} * {apart}, {apart}, {self._starts('n')}"


def _apart(tensor: torch.Tensor) -> int:
    return tensor.stride(0) * tensor.element_size()


def _found(fed: Fed, indices: Indices) -> Stretches:
    found = fed.find(indices)
    assert found is not None, "the recipe asked for them"
    return found


def _are_narrow(type: int, fed: Fed | None, indices: Indices) -> bool:
    """Whether so many steps, or stretches, have some rows that a copy of a turned weight pays."""
    found, cuts = None if fed is None else fed.find(indices), indices.step_cuts(type)
    if found is not None:
        cuts = Cuts([*found.cuts.sizes, *cuts.sizes[found.steps :]])
    return cuts.narrow >= MANY_STEPS
