"""The C text of a walk.

    for each step:
        for some hundred rows at a time:
            copy what is gathered
            products, by the library that torch itself uses or, of few long rows, by `c/narrow.c`
            kernels, the pointwise runs of `weft.run.cpu.pointwise`
            sums over edges, and what is done within a row (`weft.run.cpu.rowops`)

What one operation leaves, the next finds in the cache: rows that others do not depend on go through all operations together.
A step with edges, or with sums over its rows, is done as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from weft.cc import NAME
from weft.graph.segments import segment_sum
from weft.graph.tape import Value, operands
from weft.run.cpu.kernel import Stack, kernel_text
from weft.run.cpu.pointwise import fuses, input_of, outward, phases, read_by
from weft.run.cpu.rowops import NoWalk, over_all_rows, row_operation
from weft.run.emit import needed_part
from weft.run.rowview import place_of, row_width
from weft.run.split import Piece
from weft.run.views import bases, is_free

aten = torch.ops.aten

ALIGNED = 16
"""Scratch memory of each value begins at a multiple of so many numbers."""
IN_CACHE = 1 << 18
"""How many numbers the rows that go through all operations together may have."""
LEAST_ROWS = 128
"""Fewer rows at a time than these make products slower."""
MANY_ROWS = 2048
"""The same for a large matrix: the library lays it out anew for each product, which costs more than what is in cache saves."""

POINTERS = {torch.bool: "_Bool *", torch.int64: "long *"}
"""What is written besides numbers of the walk's precision."""

SIGNATURE = (
    f"void {NAME}(long first, long last, const line *columns, const tools *by, product_t *product, real *scratch, "
    "long most_n, long most_e) {"
)


def rounded(numbers: int) -> int:
    return -(-numbers // ALIGNED) * ALIGNED


class WalkText:
    """Writes the text for one piece, and says what the function needs."""

    def __init__(
        self,
        piece: Piece,
        stores: tuple[Value, ...],
        leave_out: tuple[Value, ...],
        indexed: Mapping[str, int],
        gathered: Mapping[str, str],
        dtype: torch.dtype,
    ) -> None:
        self.takes = piece.takes
        self.indexed, self.gathered, self.dtype = indexed, gathered, dtype
        self.number = {id(value): i for i, value in enumerate([*self.takes, *piece.values])}
        self.given = {id(value) for value in self.takes}
        returns = [value for value in piece.gives if not any(value is store for store in stores)]
        self.views = [(value, value.args[0]) for value in returns if self._is_turned(value)]
        self.into = [*stores, *(value for value in returns if not self._is_turned(value))]
        self.wanted = [value for value in self.into if not any(value is other for other in leave_out)]
        self.matrices = self._matrices(piece)
        self.piece = needed_part(piece, leave_out) if leave_out else piece
        self.fusable = {id(value) for value in self.piece.values if fuses(value)}
        self.destination = self._destinations()
        self.kernels: list[str] = []
        self.stack = Stack()
        self.lines: list[str] = []
        self.scratch: list[tuple[str, int]] = []
        self.beside: list[str] = []
        self.made: set[int] = set()
        self.numbers = 1
        self.chunk = self._chunk()

    def _is_turned(self, value: Value) -> bool:
        """Whether a value is something given, turned."""
        return value.target is aten.t.default and id(value.args[0]) in self.given and value.rows is None

    def _matrices(self, piece: Piece) -> dict[str, bool]:
        """Names of what stands on the right of a product, and whether it stands there turned."""
        found: dict[str, bool] = {}
        others: list[Value] = []
        for value in piece.values:
            mine = list(operands(value))
            if value.target is aten.mm.default and not over_all_rows(value):
                right = mine.pop()
                base = right.args[0] if self._is_turned(right) and id(right) not in self.given else right
                if right.rows is not None or id(base) not in self.given:
                    raise NoWalk
                if found.setdefault(base.name, base is not right) != (base is not right):
                    raise NoWalk
            others += mine
        if any(base.name in found for value in others for base in (value, *bases(value))):
            raise NoWalk
        return found

    def _destinations(self) -> dict[int, int]:
        """By value the number of the place that it, or a reshape of it, is written to."""
        inside = {id(value) for value in self.piece.values}
        found: dict[int, int] = {}
        for value in self.wanted:
            base = value
            while base.target is aten.reshape.default:
                base = base.args[0]
            if id(base) in inside and not is_free(base) and id(base) not in found and row_width(base) == row_width(value):
                found[id(base)] = next(i for i, other in enumerate(self.into) if other is value)
        return found

    def _chunk(self) -> int:
        values = [value for value in [*self.takes, *self.piece.values] if value.rows is not None]
        if any(value.rows is not None and value.rows.kind == "e" for value in values) or "sum" in self.gathered.values():
            return 0
        if any(over_all_rows(value) for value in self.piece.values):
            return 0
        sizes = [row_width(value.args[1]) or 0 for value in self.piece.values if value.target is aten.mm.default]
        least = MANY_ROWS if max(sizes, default=0) > IN_CACHE else LEAST_ROWS
        return max(least, IN_CACHE // max(1, sum(row_width(value) or 0 for value in values)))

    def text(self) -> str:
        columns = self._columns()
        self._body()
        for number, value in enumerate(self.into):
            if any(value is wanted for wanted in self.wanted) and number not in self.destination.values():
                self._copy(value, f"to{number}")
        head = [SIGNATURE, "  for (long s = first; s != last; s += first < last ? 1 : -1) {"]
        lines = [*columns, *self._in_chunks([*self._scratch_lines(), *self.lines]), "  }", "}"]
        return "\n".join([*self.kernels, *head, *lines]) + "\n"

    # What the function is given.

    def _columns(self) -> list[str]:
        names: list[tuple[str, str]] = []
        self.moving: list[tuple[str, str]] = []
        for value in self.takes:
            names += self._given(value)
        for number, value in enumerate(self.into):
            pointer = "real *" if value.dtype == self.dtype else POINTERS.get(value.dtype or self.dtype)
            if row_width(value) is None or pointer is None or (value.rows is None and self.chunk):
                raise NoWalk
            names.append((pointer, f"to{number}"))
            self.moving.append((f"to{number}", str(row_width(value))))
        names += [("long ", "n"), ("long ", "e"), ("int *", "bounds")]
        return [f"    {kind}{name} = ({kind})at(columns + {at}, s);" for at, (kind, name) in enumerate(names)]

    def _given(self, value: Value) -> list[tuple[str, str]]:
        at, name = self.number[id(value)], value.name
        if name in self.indexed:
            slots = self.indexed[name]
            self.moving.append((f"i{at}", str(slots or 1)))
            if slots:
                return [("real *", f"v{at}"), ("int *", f"i{at}")]
            self.moving.append((f"o{at}", f"a{at}"))
            return [("real *", f"v{at}"), ("int *", f"i{at}"), ("real *", f"o{at}"), ("long ", f"a{at}")]
        if self.gathered.get(name) == "seg":
            return [("long *", f"v{at}")]
        if name in self.gathered:
            return self._gather(value, self.gathered[name])
        if name in self.matrices:
            return [("real *", f"v{at}"), ("long ", f"turned{at}"), ("long ", f"apart{at}")]
        if value.rows is not None:
            self.moving.append((f"v{at}", str(row_width(value))))
        return [("real *", f"v{at}")]

    def _gather(self, value: Value, kind: str) -> list[tuple[str, str]]:
        at, width = self.number[id(value)], row_width(value)
        if width is None:
            raise NoWalk
        slots = (value.shape or ())[1] if kind == "slots" else 1
        assert isinstance(slots, int)
        columns = [("real *", f"v{at}"), ("real *", f"g{at}"), ("int *", f"i{at}")]
        if kind == "sum":
            self.lines.append(f"by->gather_sum(v{at}, g{at}, i{at}, b{at}, n, {width});")
            return [*columns, ("int *", f"b{at}")]
        count = f"n * {slots}" if kind == "slots" else "e"
        self.lines.append(f"by->gather(v{at}, g{at}, i{at}, {count}, {width // max(slots, 1)});")
        self.moving += [(f"v{at}", str(width)), (f"i{at}", str(slots))]
        return columns

    def _scratch_lines(self) -> list[str]:
        lines, place = [], "scratch"
        most_n = f"(most_n < {self.chunk} ? most_n : {self.chunk})" if self.chunk else "most_n"
        for (kind, width), name in zip(self.scratch, self.beside, strict=True):
            lines.append(f"real *{name} = {place};")
            most = most_n if kind == "n" else "most_e"
            place = f"{name} + ({most} * {width} + {ALIGNED - 1}) / {ALIGNED} * {ALIGNED}"
        return lines

    def _in_chunks(self, lines: list[str]) -> list[str]:
        """Some rows after the other, each through all operations; what has rows moves on."""
        if not self.chunk:
            return [f"    {line}" for line in lines]
        inside = [f"      {line}" for line in lines]
        moves = [f"      {name} += n * {width};" for name, width in self.moving]
        head = [
            "    for (long left = n; left > 0; left -= n) {",
            f"      n = left < {self.chunk} ? left : {self.chunk};",
        ]
        return [*head, *inside, *moves, "    }"]

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
        arguments += [self.place(value) for value in made]
        self.made.update(id(value) for value in run)
        name = f"{NAME}_{len(self.kernels)}"
        text = kernel_text(run, [input_of(value, self.indexed) for value in inputs], made, self.stack)
        self.kernels.append(text.replace(f"void {NAME}(", f"static void {name}(", 1))
        self.lines.append(f"{name}(0, {kind}, {', '.join(arguments)});")
        self.numbers = max(self.numbers, sum(row_width(value) or 0 for value in run))

    def _arguments(self, value: Value) -> list[str]:
        """What a kernel needs to know of a value that it reads."""
        at = self.number.get(id(value))
        if at is None or value.constant is not None or value.dtype != self.dtype:
            raise NoWalk
        if value.name in self.indexed:
            return [f"v{at}", f"i{at}", *([f"o{at}", f"a{at}"] if not self.indexed[value.name] else [])]
        return [self.address(value)]

    def address(self, value: Value) -> str:
        if id(value) not in self.given | self.made:
            raise NoWalk
        number = self.destination.get(id(value))
        return f"v{self.number[id(value)]}" if number is None else f"to{number}"

    def place(self, value: Value) -> str:
        """Where a value is computed: where it is wanted, or in scratch memory."""
        self.made.add(id(value))
        if id(value) in self.destination:
            return self.address(value)
        width, rows = row_width(value), value.rows
        if width is None or rows is None or value.dtype != self.dtype:
            raise NoWalk
        self.scratch.append((rows.kind, width))
        self.beside.append(f"v{self.number[id(value)]}")
        return self.beside[-1]

    def _library(self, value: Value) -> None:
        operation = row_operation(value)
        if operation is not None:
            operation(self, value)
        elif value.target is aten.mm.default:
            self._product(value)
        elif value.target is segment_sum:
            rows, apart, width = self.rows_at(value.args[0], "e")
            self.lines.append(f"by->segment_sum({self.place(value)}, {rows}, bounds, n, {width}, {apart});")
        elif value.target is aten.index_select.default and value.args[1] == 0 and self._is_seg(value.args[2]):
            rows, apart, width = self.rows_at(value.args[0], "n")
            self.lines.append(f"by->spread({self.place(value)}, {rows}, bounds, n, {width}, {apart});")
        elif not is_free(value):
            raise NoWalk

    def _is_seg(self, value: Value) -> bool:
        return self.gathered.get(value.name) == "seg"

    def rows_at(self, value: Value, kind: str) -> tuple[str, int, int]:
        """Where the rows of an operand begin, how far apart they are and how long."""
        place = place_of(value)
        if place is None or value.rows is None or value.rows.kind != kind or place.width != row_width(value):
            raise NoWalk
        if place.base.rows is None or place.base.name in self.indexed or place.base.dtype != self.dtype:
            raise NoWalk
        return f"{self.address(place.base)} + {place.offset}", row_width(place.base) or 0, place.width

    def _product(self, value: Value) -> None:
        left, right = value.args
        rows = value.rows
        if rows is None or left.rows != rows or rows.times != 1:
            raise NoWalk
        start, apart, inner = self.rows_at(left, rows.kind)
        base = right if id(right) in self.given else right.args[0]
        at, columns = self.number[id(base)], (value.shape or ())[1]
        place = self.place(value)
        self.lines.append(
            f"by->multiply(product, {place}, {start}, v{at}, turned{at}, apart{at}, {rows.kind}, {inner}, {columns}, {apart});"
        )

    def _copy(self, value: Value, into: str) -> None:
        kind = value.rows.kind if value.rows is not None else ""
        rows, apart, width = self.rows_at(value, kind)
        self.lines.append(f"by->copy({into}, {rows}, {kind}, {width}, {apart});")
