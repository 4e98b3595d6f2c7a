"""Kernels whose programs can be divided among several jobs: one launch instead of one for each.

    job a, 3 programs    | 0 1 2 |
    job b, 4 programs            | 3 4 5 6 |      job b is told that these are its programs 0 to 3

A job is a function of the program's number, of numbers, of pointers and of compile-time constants, in this order. Alone it is
a kernel of its own. Together, jobs must not need each other, for nobody waits for anybody; and all have as many registers and
as much shared memory as the one that wants most, so those that copy go well with each other, but not with products.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from weft.run.gpu.launch import Kernel


@dataclass(frozen=True)
class Job:
    """What some programs do: `name(program, *numbers, *pointers, *constants)`, defined by a text."""

    source: str
    name: str
    numbers: int
    pointers: int
    constants: int = 0


class Together(Kernel):
    """The kernel of some jobs: `together(numbers and pointers of each, where the programs of each but the last end, constants
    of each)`."""

    def __init__(self, *jobs: Job) -> None:
        self.jobs = jobs
        super().__init__(_text(jobs), "together")


@functools.cache
def together(*kernels: Together) -> Together:
    """One kernel for the jobs of several; the same for the same, because it is compiled for the kinds of their arguments."""
    return Together(*[job for kernel in kernels for job in kernel.jobs])


def _text(jobs: Sequence[Job]) -> str:
    numbers, given, constants, calls = list[str](), list[str](), list[str](), list[str]()
    ends = [f"end{at}" for at in range(len(jobs) - 1)]
    for at, job in enumerate(jobs):
        mine, pointers, fixed = (
            [f"{kind}{at}_{i}" for i in range(many)]
            for kind, many in (("n", job.numbers), ("p", job.pointers), ("C", job.constants))
        )
        numbers, given, constants = [*numbers, *mine], [*given, *mine, *pointers], [*constants, *fixed]
        program = f"program - {ends[at - 1]}" if at else "program"
        calls.append(f"{job.name}({', '.join([program, *mine, *pointers, *fixed])})")
    heads = [f"if program < {end}:" for end in ends]
    heads = [*heads[:1], *[f"el{head}" for head in heads[1:]], "else:"] if heads else ["if True:"]
    parameters = [*given, *ends, *[f"{name}: tl.constexpr" for name in constants]]
    lines = [
        "import triton\nimport triton.language as tl\n",
        *dict.fromkeys(job.source for job in jobs),
        f"\n@triton.jit(do_not_specialize={[*numbers, *ends]!r})",
        f"def together({', '.join(parameters)}):",
        "    program = tl.program_id(0)",
        *[f"    {head}\n        {call}" for head, call in zip(heads, calls, strict=True)],
    ]
    return "\n".join(lines) + "\n"
