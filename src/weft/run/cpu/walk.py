"""A piece as one C function: all steps of a sweep, or all rows of a piece outside one, without Python in between.

Everything that the function touches is an address. A column gives one of them (or a number) for every step, as a line of three
numbers: the first plus the second times what the third, an address, lists. A piece that contains anything else than gathers,
products, pointwise operations, sums and what is done within a row has no walk: Python runs it, call by call.
"""

from __future__ import annotations

import ctypes
import subprocess
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from weft.cc import build, compiler
from weft.graph.tape import Value
from weft.run.cpu.formulas import HEADS, c_text
from weft.run.cpu.kernel import NoKernel
from weft.run.cpu.native import Native, compile_all
from weft.run.cpu.parallel import WORTH
from weft.run.cpu.rowops import NoWalk
from weft.run.cpu.walktext import ALIGNED, POINTERS, WalkText, rounded
from weft.run.split import Piece

ARGUMENTS = [ctypes.c_long] * 2 + [ctypes.c_void_p] * 4 + [ctypes.c_long] * 2


@dataclass(frozen=True, eq=False)
class Walk:
    """A piece as a C function.

    Its columns are those of `takes`, then those of `into`, then numbers of rows and of edges and segment bounds. An indexed
    value has the columns that its kernels need; a gathered one three (where to, where from or 0, index) and for sums a fourth
    (bounds); a matrix three (address, whether it is turned, how far apart its rows are); any other one.
    """

    function: Native
    tools: int
    """The address of what walks do with rows."""
    product: int
    """The address of the library's matrix product."""
    takes: tuple[Value, ...]
    into: tuple[Value, ...]
    """What it writes to given places: what is stored, then what is returned."""
    matrices: Mapping[str, bool]
    """Names of what stands on the right of a product, and whether it stands there turned."""
    views: tuple[tuple[Value, Value], ...]
    """Returned values that are others, turned: nothing is to be done for them."""
    scratch: tuple[tuple[str, int], ...]
    """Kind of rows and width of what only lives during a step."""
    chunk: int
    """How many rows of a step go through all operations before the next ones; 0: all of them."""
    numbers: int
    dtype: torch.dtype

    @property
    def address(self) -> int:
        """Of the function."""
        compile_all([self.function])
        return ctypes.cast(self.function.function, ctypes.c_void_p).value or 0

    def room_text(self, rows: str, edges: str) -> str:
        """As `room`, of variables."""
        rows = f"min({rows}, {self.chunk})" if self.chunk else rows
        parts = [f"-(-{rows if kind == 'n' else edges} * {width} // {ALIGNED}) * {ALIGNED}" for kind, width in self.scratch]
        return " + ".join(parts) or "0"

    def room(self, rows: int, edges: int) -> int:
        """Numbers of scratch memory for steps of at most so many rows and edges."""
        rows = min(rows, self.chunk) if self.chunk else rows
        return sum(rounded((rows if kind == "n" else edges) * width) for kind, width in self.scratch)

    def alone(self, rows: int) -> bool:
        """Whether one thread does steps of at most so many rows."""
        return rows * self.numbers < WORTH or torch.get_num_threads() == 1

    def run(self, lines: array[int], first: int, last: int, scratch: Tensor, most: tuple[int, int]) -> None:
        """Do the steps from `first` to before `last`; backwards if the last comes first."""
        self.function(first, last, lines.buffer_info()[0], self.tools, self.product, scratch.data_ptr(), *most)


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
    piece: Piece,
    stores: Iterable[Value],
    leave_out: Iterable[Value] = (),
    indexed: Mapping[str, int] | None = None,
    gathered: Mapping[str, str] | None = None,
) -> Walk | None:
    """The walk of a piece, not yet compiled.

    `indexed` as for kernels; `gathered` are names and kinds of what is gathered step by step.
    """
    path = compiler()
    dtypes = {value.dtype for value in piece.values if value.dtype is not None} - POINTERS.keys()
    if path is None or len(dtypes) != 1 or not dtypes <= HEADS.keys():
        return None
    (dtype,) = dtypes
    product = _library_product(dtype)
    if product is None:
        return None
    try:
        text = WalkText(piece, tuple(stores), tuple(leave_out), indexed or {}, gathered or {}, dtype)
        function = Native(path, HEADS[dtype], text.text(), ARGUMENTS)
        tools = _tools(path, dtype)
    except (NoKernel, NoWalk, OSError, subprocess.SubprocessError):
        return None
    into, views, scratch = tuple(text.into), tuple(text.views), tuple(text.scratch)
    takes, sizes = tuple(piece.takes), (text.chunk, text.numbers)
    return Walk(function, tools, product, takes, into, text.matrices, views, scratch, *sizes, dtype)


@cache
def _tools(path: str, dtype: torch.dtype) -> int:
    library = build(path, HEADS[dtype] + c_text("narrow.c", "rows.c", "tools.c"))
    return ctypes.addressof(ctypes.c_char.in_dll(library, "weft_tools"))


def dense(matrix: Tensor) -> tuple[Tensor, bool, int]:
    """A matrix on the right of a product, whether its columns instead of its rows lie densely, and how far apart they are."""
    rows, columns = matrix.shape
    apart, across = matrix.stride()
    if (across == 1 or columns == 1) and (apart >= columns or rows == 1):
        return matrix, False, max(apart if rows > 1 else 0, columns, 1)
    if (apart == 1 or rows == 1) and (across >= rows or columns == 1):
        return matrix, True, max(across if columns > 1 else 0, rows, 1)
    return matrix.contiguous(), False, max(columns, 1)
