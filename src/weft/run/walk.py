"""All steps of a sweep as one C function: gathers, products and kernels of a per-step piece, without Python in between.

    for each step:
        copy the rows that it gathers
        products          by the library that torch itself uses
        kernels           the pointwise runs of `weft.run.native`
        sums over edges

Everything that a step touches is an address. A column lists one of them (or a number) for every step; the function gets all
columns as one table. A piece that contains anything else has no walk, and its steps run one by one from Python.
"""

from __future__ import annotations

import ctypes
import subprocess
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.cc import build, compiler
from weft.graph.segments import segment_sum
from weft.graph.tape import Value, operands
from weft.run.ctext import PRELUDE
from weft.run.emit import needed_part
from weft.run.kernel import TooManySegments, kernel_text
from weft.run.native import fuses, input_of, outward, phases, read_by
from weft.run.parallel import WORTH
from weft.run.rowview import place_of, row_width
from weft.run.split import Piece
from weft.run.views import is_free

aten = torch.ops.aten

ALIGNED = 16
"""Scratch memory of each value begins at a multiple of so many numbers."""

_HELPERS = """
typedef void gemm_t(const char *, const char *, const int *, const int *, const int *, const real *, const real *, const int *,
                    const real *, const int *, const real *, real *, const int *);
static void gather(real *restrict out, const real *restrict from, const int *restrict index, long count, long width) {
  if (from)
    for (long i = 0; i < count; i++) __builtin_memcpy(out + i * width, from + index[i] * width, width * sizeof(real));
}
static void gather_sum(real *restrict out, const real *restrict from, const int *restrict index, const int *restrict bounds,
                       long count, long width) {
  for (long i = 0; from && i < count; i++) {
    for (long j = 0; j < width; j++) out[i * width + j] = 0;
    for (long k = bounds[i]; k < bounds[i + 1]; k++)
      for (long j = 0; j < width; j++) out[i * width + j] += from[index[k] * width + j];
  }
}
static void segment_sum(real *restrict out, const real *restrict rows, const int *restrict bounds, long count, long width,
                        long apart) {
  for (long i = 0; i < count; i++) {
    for (long j = 0; j < width; j++) out[i * width + j] = 0;
    for (long k = bounds[i]; k < bounds[i + 1]; k++)
      for (long j = 0; j < width; j++) out[i * width + j] += rows[k * apart + j];
  }
}
static void spread(real *restrict out, const real *restrict rows, const int *restrict bounds, long count, long width,
                   long apart) {
  for (long i = 0; i < count; i++)
    for (long k = bounds[i]; k < bounds[i + 1]; k++)
      __builtin_memcpy(out + k * width, rows + i * apart, width * sizeof(real));
}
static void copy(real *restrict out, const real *restrict rows, long count, long width, long apart) {
  for (long i = 0; i < count; i++) __builtin_memcpy(out + i * width, rows + i * apart, width * sizeof(real));
}
static void product(gemm_t *gemm, real *out, const real *left, const real *right, long turned, int apart_right, int rows,
                    int inner, int columns, int apart_left) {
  const real one = 1, zero = 0;
  gemm(turned ? "T" : "N", "N", &columns, &rows, &inner, &one, right, &apart_right, left, &apart_left, &zero, out, &columns);
}
"""


class NoWalk(Exception):
    """The piece contains something that is no part of a walk."""


@dataclass(frozen=True, eq=False)
class Walk:
    """A per-step piece as a C function over many steps.

    Its columns are those of `takes`, then those of `stores`, then numbers of rows and of edges and segment bounds. An indexed
    value has the columns that its kernels need; a gathered one three (where to, where from or 0, index) and for sums a fourth
    (bounds); a matrix three (address, whether it is turned, how far apart its rows are); any other one.
    """

    function: Any
    gemm: int
    takes: tuple[Value, ...]
    stores: tuple[Value, ...]
    matrices: frozenset[str]
    gathered: Mapping[str, str]
    scratch: tuple[tuple[str, int], ...]
    """Kind of rows and width of what only lives during a step."""
    numbers: int
    dtype: torch.dtype

    def room(self, rows: int, edges: int) -> int:
        """Numbers of scratch memory for steps of at most so many rows and edges."""
        return sum(_rounded((rows if kind == "n" else edges) * width) for kind, width in self.scratch)

    def alone(self, rows: int) -> bool:
        """Whether one thread does steps of at most so many rows."""
        return rows * self.numbers < WORTH or torch.get_num_threads() == 1

    def run(self, table: array[int], steps: int, first: int, last: int, scratch: Tensor, most: tuple[int, int]) -> None:
        """Do the steps `first` to `last` of a table; backwards if the last comes first."""
        self.function(steps, first, last, table.buffer_info()[0], self.gemm, scratch.data_ptr(), *most)


def _rounded(numbers: int) -> int:
    return -(-numbers // ALIGNED) * ALIGNED


@cache
def _library_product(dtype: torch.dtype) -> int | None:
    """The address of the matrix product in the library that torch uses; None where it cannot be found."""
    name = {torch.float32: "sgemm_", torch.float64: "dgemm_"}.get(dtype)
    folder = Path(torch.__file__).parent / "lib"
    for file in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        try:
            function = getattr(ctypes.CDLL(str(folder / file)), name or "")
        except (OSError, AttributeError):
            continue
        return ctypes.cast(function, ctypes.c_void_p).value
    return None


def make_walk(
    piece: Piece, stores: Iterable[Value], leave_out: Iterable[Value], indexed: Mapping[str, int], gathered: Mapping[str, str]
) -> Walk | None:
    """The walk of a piece. `indexed` as for kernels; `gathered` are names and kinds of what is gathered step by step."""
    path = compiler()
    dtypes = {value.dtype for value in piece.values if value.dtype is not None}
    if path is None or len(dtypes) != 1 or not dtypes <= PRELUDE.keys():
        return None
    (dtype,) = dtypes
    gemm = _library_product(dtype)
    if gemm is None:
        return None
    try:
        writer = _Writer(piece, tuple(stores), tuple(leave_out), indexed, gathered, dtype)
        function: Any = build(path, writer.text()).weft_walk
    except (NoWalk, OSError, subprocess.SubprocessError, TooManySegments):
        return None
    function.argtypes = [ctypes.c_long] * 3 + [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2
    function.restype = None
    scratch, numbers = tuple(writer.scratch), writer.numbers
    matrices = frozenset(writer.matrices)
    return Walk(function, gemm, tuple(piece.takes), tuple(stores), matrices, gathered, scratch, numbers, dtype)


class _Writer:
    """Writes the C text of one piece."""

    def __init__(
        self,
        piece: Piece,
        stores: tuple[Value, ...],
        leave_out: tuple[Value, ...],
        indexed: Mapping[str, int],
        gathered: Mapping[str, str],
        dtype: torch.dtype,
    ) -> None:
        self.takes, self.into = piece.takes, stores
        self.stores = [value for value in stores if not any(value is other for other in leave_out)]
        self.piece = needed_part(piece, leave_out) if leave_out else piece
        self.indexed, self.gathered, self.dtype = indexed, gathered, dtype
        self.fusable = {id(value) for value in self.piece.values if fuses(value)}
        self.matrices = self._matrices(piece)
        self.number = {id(value): i for i, value in enumerate([*self.takes, *self.piece.values])}
        self.given = {id(value) for value in self.takes}
        self.destination = self._destinations()
        self.kernels: list[str] = []
        self.lines: list[str] = []
        self.scratch: list[tuple[str, int]] = []
        self.offset: list[str] = []
        self.made: set[int] = set()
        self.numbers = 1

    def _matrices(self, piece: Piece) -> set[str]:
        """Names of what stands on the right of a product."""
        products = [value for value in piece.values if value.target is aten.mm.default]
        found = {value.args[1].name for value in products}
        others = [operand for value in piece.values for operand in operands(value)]
        for value in products:
            others.remove(value.args[1])
        if any(value.args[1].rows is not None for value in products) or any(value.name in found for value in others):
            raise NoWalk
        return found

    def _destinations(self) -> dict[int, int]:
        """By value the number of the store that it, or a reshape of it, is written to."""
        inside = {id(value) for value in self.piece.values}
        found: dict[int, int] = {}
        for value in self.stores:
            base = value
            while base.target is aten.reshape.default and id(base) not in inside - {id(value)}:
                base = base.args[0]
            if id(base) in inside and not is_free(base) and id(base) not in found and row_width(base) == row_width(value):
                found[id(base)] = next(i for i, other in enumerate(self.into) if other is value)
        return found

    def text(self) -> str:
        columns = self._columns()
        self._body()
        for number, value in enumerate(self.into):
            if any(value is store for store in self.stores) and number not in self.destination.values():
                self._copy(value, f"to{number}")
        lines = [*columns, *self._scratch_lines(), *(f"    {line}" for line in self.lines)]
        head = (
            "void weft_walk(long steps, long first, long last, const long *table, gemm_t *gemm, real *scratch, "
            "long most_n, long most_e) {\n"
            "  for (long s = first; s != last; s += first < last ? 1 : -1) {\n"
        )
        return "\n".join([PRELUDE[self.dtype], _HELPERS, *self.kernels, head, *lines, "  }", "}"]) + "\n"

    # What the function is given.

    def _columns(self) -> list[str]:
        names: list[tuple[str, str]] = []
        for value in self.takes:
            names += self._given(value)
        names += [("real *", f"to{number}") for number in range(len(self.into))]
        names += [("long ", "n"), ("long ", "e"), ("int *", "bounds")]
        return [f"    {kind}{name} = ({kind})table[{at} * steps + s];" for at, (kind, name) in enumerate(names)]

    def _given(self, value: Value) -> list[tuple[str, str]]:
        at, name = self.number[id(value)], value.name
        if name in self.indexed:
            more = [("real *", f"o{at}"), ("long ", f"a{at}")] if not self.indexed[name] else []
            return [("real *", f"v{at}"), ("int *", f"i{at}"), *more]
        if self.gathered.get(name) == "seg":
            return [("long *", f"v{at}")]
        if name in self.gathered:
            kind, width = self.gathered[name], row_width(value)
            if width is None:
                raise NoWalk
            slots = (value.shape or ())[1] if kind == "slots" else 1
            assert isinstance(slots, int)
            if kind == "sum":
                self.lines.append(f"gather_sum(v{at}, g{at}, i{at}, b{at}, n, {width});")
            else:
                count = f"n * {slots}" if kind == "slots" else "e"
                self.lines.append(f"gather(v{at}, g{at}, i{at}, {count}, {width // max(slots, 1)});")
            more = [("int *", f"b{at}")] if kind == "sum" else []
            return [("real *", f"v{at}"), ("real *", f"g{at}"), ("int *", f"i{at}"), *more]
        if name in self.matrices:
            return [("real *", f"v{at}"), ("long ", f"turned{at}"), ("long ", f"apart{at}")]
        return [("real *", f"v{at}")]

    def _scratch_lines(self) -> list[str]:
        lines, place = [], "scratch"
        for (kind, width), name in zip(self.scratch, self.offset, strict=True):
            lines.append(f"    real *{name} = {place};")
            place = f"{name} + (most_{kind} * {width} + {ALIGNED - 1}) / {ALIGNED} * {ALIGNED}"
        return lines

    # What it does.

    def _body(self) -> None:
        phase = phases(self.piece, self.fusable)
        for number in range(max(phase.values(), default=0) + 1):
            mine = [value for value in self.piece.values if phase[id(value)] == number and id(value) in self.fusable]
            for kind in ("n", "e"):
                run = [value for value in mine if value.rows is not None and value.rows.kind == kind]
                if run:
                    self._kernel(run, kind)
            for value in self.piece.values:
                if phase[id(value)] == number + 1 and id(value) not in self.fusable:
                    self._library(value)

    def _kernel(self, run: list[Value], kind: str) -> None:
        inputs, made = read_by(run), outward(self.piece, run)
        arguments = [argument for value in inputs for argument in self._arguments(value)]
        arguments += [self._place(value) for value in made]
        self.made.update(id(value) for value in run)
        name = f"kernel{len(self.kernels)}"
        text = kernel_text(run, [input_of(value, self.indexed) for value in inputs], made)
        self.kernels.append(text.removeprefix(PRELUDE[self.dtype]).replace("void weft_piece(", f"static void {name}(", 1))
        self.lines.append(f"{name}(0, {kind}, {', '.join(arguments)});")
        self.numbers = max(self.numbers, sum(row_width(value) or 0 for value in run))

    def _arguments(self, value: Value) -> list[str]:
        """What a kernel needs to know of a value that it reads."""
        at = self.number.get(id(value))
        if at is None or value.constant is not None or value.dtype != self.dtype:
            raise NoWalk
        if value.name in self.indexed:
            return [f"v{at}", f"i{at}", *([f"o{at}", f"a{at}"] if not self.indexed[value.name] else [])]
        return [self._address(value)]

    def _address(self, value: Value) -> str:
        if id(value) not in self.given | self.made:
            raise NoWalk
        number = self.destination.get(id(value))
        return f"v{self.number[id(value)]}" if number is None else f"to{number}"

    def _place(self, value: Value) -> str:
        """Where a value is computed: where it is stored, or in scratch memory."""
        self.made.add(id(value))
        if id(value) in self.destination:
            return self._address(value)
        width, rows = row_width(value), value.rows
        if width is None or rows is None or value.dtype != self.dtype:
            raise NoWalk
        self.scratch.append((rows.kind, width))
        self.offset.append(f"v{self.number[id(value)]}")
        return self.offset[-1]

    def _library(self, value: Value) -> None:
        if is_free(value):
            return
        if value.target is aten.mm.default:
            self._product(value)
        elif value.target is segment_sum:
            rows, apart, width = self._rows(value.args[0], "e")
            self.lines.append(f"segment_sum({self._place(value)}, {rows}, bounds, n, {width}, {apart});")
        elif value.target is aten.index_select.default and value.args[1] == 0 and self._is_seg(value.args[2]):
            rows, apart, width = self._rows(value.args[0], "n")
            self.lines.append(f"spread({self._place(value)}, {rows}, bounds, n, {width}, {apart});")
        else:
            raise NoWalk

    def _is_seg(self, value: Value) -> bool:
        return self.gathered.get(value.name) == "seg"

    def _rows(self, value: Value, kind: str) -> tuple[str, int, int]:
        """Where the rows of an operand begin, how far apart they are and how long."""
        place = place_of(value)
        if place is None or value.rows is None or value.rows.kind != kind or place.width != row_width(value):
            raise NoWalk
        if place.base.rows is None or place.base.name in self.indexed or place.base.dtype != self.dtype:
            raise NoWalk
        return f"{self._address(place.base)} + {place.offset}", row_width(place.base) or 0, place.width

    def _product(self, value: Value) -> None:
        left, right = value.args
        rows = value.rows
        if rows is None or left.rows != rows or rows.times != 1 or right.name not in {take.name for take in self.takes}:
            raise NoWalk
        start, apart, inner = self._rows(left, rows.kind)
        at, columns = self.number[id(right)], (value.shape or ())[1]
        place = self._place(value)
        self.lines.append(
            f"product(gemm, {place}, {start}, v{at}, turned{at}, apart{at}, {rows.kind}, {inner}, {columns}, {apart});"
        )

    def _copy(self, value: Value, into: str) -> None:
        kind = value.rows.kind if value.rows is not None else ""
        rows, apart, width = self._rows(value, kind)
        self.lines.append(f"copy({into}, {rows}, {kind}, {width}, {apart});")


def dense(matrix: Tensor) -> tuple[Tensor, bool, int]:
    """A matrix on the right of a product, whether its columns instead of its rows lie densely, and how far apart they are."""
    rows, columns = matrix.shape
    apart, across = matrix.stride()
    if (across == 1 or columns == 1) and (apart >= columns or rows == 1):
        return matrix, False, max(apart if rows > 1 else 0, columns, 1)
    if (apart == 1 or rows == 1) and (across >= rows or columns == 1):
        return matrix, True, max(across if columns > 1 else 0, rows, 1)
    return matrix.contiguous(), False, max(columns, 1)


def table_of(columns: Iterable[Sequence[int]]) -> array[int]:
    """One table of all columns."""
    table = array("q")
    for column in columns:
        table.extend(column)
    return table
