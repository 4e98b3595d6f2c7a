"""The text of a sweep: one kernel that walks all steps of a group, a barrier of the whole grid between stages.

    for every step
        for every stage
            for every tile of rows and columns that falls to this program
                the job
            wait until all programs are here

Columns are dealt out first, so that a program meets the same columns in every step and its part of the weights stays in its
first cache. What other programs wrote is read past that cache. The barrier counts arrivals; the last program to leave sets the
count back, so that the kernel can be launched, or replayed from a CUDA graph, again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.run.gpu.formulas import PRELUDE
from weft.run.gpu.variables import Tile

BARRIER = """

@triton.jit
def arrived(counter):
    text: tl.constexpr = "ld.acquire.gpu.global.s32 $0, [$1];"
    return tl.inline_asm_elementwise(text, "=r,l", [counter.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def wait_for_all(counter, target, PROGRAMS: tl.constexpr):
    tl.debug_barrier()
    if PROGRAMS > 1:
        tl.atomic_add(counter, 1, sem="release", scope="gpu")
        seen = arrived(counter)
        while seen < target:
            seen = arrived(counter)
        tl.debug_barrier()


@triton.jit
def leave(counter, PROGRAMS: tl.constexpr):
    if PROGRAMS > 1:
        if tl.atomic_add(counter + 1, 1, sem="acq_rel", scope="gpu") == PROGRAMS - 1:
            tl.store(counter, 0)
            tl.store(counter + 1, 0)
"""


@dataclass(frozen=True)
class Member:
    """One type of the group: the lines of each stage by kind of rows, how many tiles of columns there are, and the columns
    of the table that its text uses, by variable name."""

    stages: list[dict[str, list[str]]]
    tile: Tile
    columns: int
    shifts: dict[str, int]


def sweep_text(
    members: Sequence[Member], parameters: Sequence[str], numbers: Sequence[str], backward: bool, table_width: int
) -> str:
    """The whole source; the kernel is `sweep(table, begin, end, counter, *parameters, PROGRAMS)`, `numbers` among them."""
    lines = [f"def sweep(table, begin, end, counter, {', '.join(parameters)}, PROGRAMS: tl.constexpr):"]
    lines += [
        "    pid = tl.program_id(0)",
        "    target = 0",
        "    turn = begin",
        "    while turn < end:",
        f"        line = table + {'(begin + end - 1 - turn)' if backward else 'turn'} * {table_width}",
        "        lo = tl.load(line)",
        "        hi = tl.load(line + 1)",
        "        elo = tl.load(line + 2)",
        "        ehi = tl.load(line + 3)",
    ]
    if len(members) == 1:
        lines += _steps(members[0], "        ")
    else:
        lines.append("        kind = tl.load(line + 4)")
        for number, member in enumerate(members):
            lines.append(f"        if kind == {number}:")
            lines += _steps(member, " " * 12)
    lines += ["        turn += 1", "    leave(counter, PROGRAMS)"]
    return PRELUDE + BARRIER + f"\n\n@triton.jit(do_not_specialize={['begin', 'end', *numbers]})\n" + "\n".join(lines) + "\n"


def _steps(member: Member, indent: str) -> list[str]:
    lines = [f"{indent}{name} = tl.load(line + {column})" for name, column in member.shifts.items()]
    tile, columns = member.tile, member.columns
    for stage in member.stages:
        for kind, job in stage.items():
            lo, hi = ("lo", "hi") if kind == "n" else ("elo", "ehi")
            lines += [
                f"{indent}tiles = tl.cdiv({hi} - {lo}, {tile.rows}) * {columns}",
                f"{indent}tile = pid",
                f"{indent}while tile < tiles:",
                f"{indent}    column = tile % {columns}",
                f"{indent}    r = {lo} + (tile // {columns}) * {tile.rows} + tl.arange(0, {tile.rows})",
                f"{indent}    live = r < {hi}",
                f"{indent}    r = r.to(tl.int64)",
                *(f"{indent}    {line}" for line in job),
                f"{indent}    tile += PROGRAMS",
            ]
        lines += [f"{indent}target += PROGRAMS", f"{indent}wait_for_all(counter, target, PROGRAMS)"]
    return lines
