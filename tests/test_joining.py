"""Jobs that share a launch do what each does alone; and which launches become one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernel_parts import NEEDS_TRITON
from weft.cc import compiler
from weft.run.gpu import counts, rowcopy, totals, turn
from weft.run.gpu.launch import Quick, interpreted
from weft.run.gpu.onecall.blocks import COUNTER, Block, Storage
from weft.run.gpu.onecall.joining import _one_launch, in_fewer_launches
from weft.run.gpu.onecall.operations import Copy, Launch, Operation, Turns, storages_of
from weft.run.gpu.onecall.thrifty import Memory, room_of
from weft.run.gpu.together import Together

pytestmark = NEEDS_TRITON
CPU = torch.device("cpu")
NOBODY: Any = SimpleNamespace(device=CPU)


def launch(quick: Quick, *arguments: Any) -> Launch:
    programs = eval(quick.grid, {f"n{at}": number for at, number in enumerate(arguments[: quick.numbers])})
    return Launch(quick.kernel, programs, [*arguments], quick.constants)


def poisoned(*sizes: int) -> Tensor:
    return torch.full(sizes, float("nan"))


def take(rows: int, width: int) -> tuple[Launch, Tensor, Tensor]:
    a, b = torch.randn(9, width), torch.randn(5, width)
    p, q = (torch.randint(0, many + 1, (rows,), dtype=torch.int32) for many in (9, 5))
    ended = [torch.cat([one, torch.zeros(1, width)]) for one in (a, b)]
    out = poisoned(rows, width)
    made = launch(rowcopy.taker(a.dtype, True, width), rows, width // rowcopy.tiles(width)[0], 9, 5, out, a, p, b, q)
    return made, out, ended[0][p.long()] + ended[1][q.long()]


def put(rows: int, width: int) -> tuple[Launch, Tensor, Tensor]:
    a, p, out = torch.randn(rows, width), torch.randperm(rows).int(), poisoned(rows, width)
    made = launch(rowcopy.putter(a.dtype, False, width), rows, rows, width // rowcopy.tiles(width)[0], out, p, a, p, a)
    return made, out, torch.empty(rows, width).index_copy(0, p.long(), a)


def turned(rows: int, width: int) -> tuple[Launch, Tensor, Tensor]:
    matrix, out = torch.randn(rows, width), poisoned(width, rows)
    return launch(turn.turner(matrix.dtype), rows, width, matrix, out), out, matrix.t()


def total(rows: int, width: int) -> tuple[Launch, Tensor, Tensor]:
    given, out, parts = torch.randn(rows, width), poisoned(1, width), totals.parts(rows, width)
    count = counts.counter(CPU, 0)[counts.BARRIER :]
    made = launch(totals.adder(given.dtype), rows, width, parts, given, poisoned(parts, width), out, count)
    return made, out, given.sum(0, keepdim=True)


@pytest.mark.skipif(not interpreted(), reason="Triton compiles for a GPU here; tests/gpu checks that")
@pytest.mark.parametrize("rows", [0, 1, 2, 63, 127, 1000])
@pytest.mark.parametrize("kinds", [(take, turned), (take, take, put), (total, take, turned, put)])
def test_jobs_together_do_what_each_does_alone(rows: int, kinds: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of different widths and numbers of rows."""
    monkeypatch.setattr(totals, "ROWS", 300)
    torch.manual_seed(0)
    made = [kind(max(rows - at, 0), 16 + 7 * at) for at, kind in enumerate(kinds)]
    joined = _one_launch([one for one, _, _ in made])
    if joined.programs:
        joined.kernel.function[(joined.programs,)](*joined.arguments, *joined.constants)
    for _, out, expected in made:
        assert torch.allclose(out, expected, rtol=1e-5, atol=1e-5)
    assert not counts.counter(CPU, 0).any()


def block(name: str, count: int | None = 16, offset: int = 0) -> Block:
    return Block(NOBODY, Storage(name, torch.float32, count), (4, 4), (4, 1), offset)


def moved(one: Block, out: Block) -> Launch:
    return launch(turn.turner(torch.float32), 4, 4, one, out)


def memory_of(operations: list[Operation], sizes: dict[str, int], results: tuple[str, ...] = ()) -> Memory:
    known = dict.fromkeys(one for operation in operations for one in storages_of(operation))
    owners = {one: None if one.count is None else one for one in known}
    sized = {one: sizes.get(one.name, 256) for one in known}
    return Memory(owners, sized, [], [one for one in known if one.name in results])


def jobs_of(operations: list[Operation]) -> list[int]:
    """How many jobs each launch has; 0 for others."""
    return [len(one.kernel.jobs) if isinstance(one, Launch) and isinstance(one.kernel, Together) else 0 for one in operations]


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
class TestWhatBecomesOneLaunch:
    def joined(self, operations: list[Operation], memory: Memory) -> list[int]:
        found = in_fewer_launches(operations, memory)
        used = [[*dict.fromkeys(memory.of(one))] for one in found]
        before = [[*dict.fromkeys(memory.of(one))] for one in operations]
        assert room_of(used, memory) <= room_of(before, memory)
        return jobs_of(found)

    def test_those_that_need_nothing_of_each_other(self) -> None:
        x, y, a, b, c = block("t0", None), block("t1", None), block("a"), block("b"), block("c")
        operations: list[Operation] = [moved(x, a), moved(y, b), Copy(a, c), Copy(b, c)]
        assert self.joined(operations, memory_of(operations, {})) == [2, 0, 0]

    def test_past_those_that_have_nothing_to_do_with_it(self) -> None:
        x, a, b, c = block("t0", None), block("a"), block("b"), block("c")
        operations: list[Operation] = [moved(x, a), Copy(a, c), moved(x, b), Copy(b, c)]
        assert self.joined(operations, memory_of(operations, {}, ("a", "b"))) == [2, 0, 0]

    def test_not_those_that_read_what_another_wrote(self) -> None:
        x, a, b, c = block("t0", None), block("a"), block("b"), block("c")
        operations: list[Operation] = [moved(x, a), moved(a, b), Copy(b, c), moved(c, a)]
        assert self.joined(operations, memory_of(operations, {})) == [1, 1, 0, 1]

    def test_not_where_that_takes_more_memory(self) -> None:
        """The first block is free before the second one is made."""
        x, a, b, out = block("t0", None), block("a"), block("b"), block("out")
        operations: list[Operation] = [moved(x, a), Copy(a, out), moved(x, b), Copy(b, out)]
        memory = memory_of(operations, {"a": 4096, "b": 4096}, ("out",))
        assert self.joined(operations, memory) == [1, 0, 1, 0]

    def test_not_two_that_count_by_the_same_memory(self) -> None:
        operations: list[Operation] = []
        for name in "ab":
            count = Block(NOBODY, Storage(COUNTER, torch.int32), (4,), (1,), counts.BARRIER)
            given = block(f"t{name}", None), block(f"some{name}"), block(name), count
            operations.append(launch(totals.adder(torch.float32), 4, 4, 1, *given))
        assert self.joined(operations, memory_of(operations, {})) == [1, 1]

    def test_not_aligned_memory_with_other_memory(self) -> None:
        x, a, b = block("t0", None), block("a"), block("b", offset=1)
        operations: list[Operation] = [moved(x, a), moved(x, b)]
        assert self.joined(operations, memory_of(operations, {})) == [1, 1]

    def test_neighbours_in_steps_that_run_apart(self) -> None:
        x, a, b, c = block("t0", None), block("a"), block("b"), block("c")
        steps: list[Operation] = [moved(x, a), moved(x, b), moved(b, c), Copy(c, a), moved(x, b)]
        operations: list[Operation] = [Turns("f0", 0, (), SimpleNamespace(), [], steps)]  # type: ignore[arg-type]
        in_fewer_launches(operations, memory_of(operations, {}))
        (turns,) = operations
        assert isinstance(turns, Turns)
        assert jobs_of(turns.apart) == [2, 1, 0, 1]
