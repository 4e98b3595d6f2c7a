"""What a recipe on a CPU does besides asking for memory: a list of jobs, which one C function goes through (`c/jobs.c`).

Gathers, copies and sums of rows are so short here that calling torch for each would take longer than doing them. A recipe puts
addresses and numbers together as one list, as far as the next call of torch, and has it done.
"""

from __future__ import annotations

import ctypes
import functools
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.cc import build, compiler
from weft.run import spare
from weft.run.cpu.formulas import c_text
from weft.run.cpu.walk import Walk
from weft.run.gpu.launch import fresh_text
from weft.run.recipe import NoRecipe, Writer

WALK, COPY, ZERO, TAKE, SPREAD, COLLECT = range(6)

ALL = 1 << 62
"""More rows than there are."""

NUMBERS = (torch.float32, torch.float64)
"""What jobs can add."""

_VIEW = re.compile(r"(x\d+)\.(narrow\(0|view|flatten|t\()")


@functools.cache
def _library() -> Any:
    path = compiler()
    assert path is not None, "walks are made first, and they need one"
    function = build(path, c_text("jobs.c")).weft_jobs
    function.argtypes, function.restype = [ctypes.c_long] * 2, None
    return function


def do(numbers: Sequence[int]) -> None:
    """Do some jobs."""
    jobs = array("q", numbers)
    first, count = jobs.buffer_info()
    _library()(first, first + 8 * count)


@dataclass(eq=False)
class JobWriter(Writer):
    """Puts jobs together; they are done before anything else is that may need their results."""

    _jobs: str = ""
    is_picked: bool = False
    """Whether each call says where the rows are that it is fed, and not its plan."""
    _dense: set[str] = field(default_factory=set)
    """Variables of tensors whose rows lie side by side."""

    def job(self, *numbers: object) -> None:
        """One more; everything is the text of a number."""
        self._jobs += "".join(f"{number}, " for number in numbers)

    def walk(self, walk: Walk, lines: Sequence[str], scratch: str, most: tuple[str, str], steps: tuple[str, str]) -> None:
        """The job of a walk. It is done at once, so that memory is let go."""
        head = (WALK, walk.address, walk.tools, walk.product, f"{scratch}.data_ptr()", *most, *steps, 3 * len(lines))
        self.job(*head, *lines)
        self.finish()

    def finish(self) -> None:
        """Have all jobs done."""
        jobs, self._jobs = self._jobs, ""
        if jobs:
            super().say(f"{self.bind(do, 'jobs')}(({jobs}))")

    def view(self, expression: str) -> str:
        """A new variable: memory, or a view of some, which does not depend on whether jobs are done."""
        return super().let(expression)

    def let(self, expression: str) -> str:
        part = _VIEW.match(expression)
        if part is None:
            self.finish()
        name = super().let(expression)
        if part is not None and part[1] in self._dense and part[2] != "t(":
            self._dense.add(name)
        return name

    def dense(self, tensor: str) -> str:
        """The tensor, or a copy of it, with rows side by side. What jobs write to has them so."""
        if tensor in self._dense:
            return tensor
        name = self.view(f"{tensor}.contiguous()")
        self._dense.add(name)
        return name

    def say(self, *lines: str) -> None:
        self.finish()
        super().say(*lines)

    def empty(self, sizes: Any, dtype: torch.dtype | None) -> str:
        return self.made(fresh_text(sizes, dtype, self.bind(spare.laid_out, "memory")))

    def made(self, memory: str) -> str:
        """A new variable: fresh memory."""
        name = self.view(memory)
        self._dense.add(name)
        return name

    def recipe(self, parameters: str, results: str, about: Any = None) -> Any:
        self.finish()
        return super().recipe(parameters, results, about)


def width_of(dtype: torch.dtype | None, width: int | None) -> tuple[int, int]:
    """Numbers of a row and bytes of a number, where jobs can add such rows."""
    if dtype not in NUMBERS or width is None:
        raise NoRecipe("rows that only torch can add")
    return width, dtype.itemsize
