"""What recipes are made of: lines, questions and facts, allocations, launches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from weft.run import spare
from weft.run.gpu import launch
from weft.run.gpu.launch import Quick, allocator, fresh_text
from weft.run.recipe import Writer, _letting_go


def test_variables_are_let_go_and_views_that_nobody_uses_are_not_made() -> None:
    lines = ["x1 = fresh((3,), (1,), torch.int32)", "x2 = x1.narrow(0, f1, f0)", "x3 = x1.view(3)", "x4 = call(x3)"]
    assert _letting_go(lines, "x1") == [lines[0], lines[2], lines[3], "del x4, x3"]


@pytest.mark.parametrize("sizes", [(5,), (5, 3), (2, 5, 3), ("n", 3), (2, "2 * n", 3), ()])
def test_allocations_are_laid_out_as_torch_does(sizes: tuple[Any, ...]) -> None:
    made: list[Any] = []
    eval(fresh_text(sizes, torch.float32), {"fresh": lambda *given: made.extend(given), "torch": torch, "n": 4})
    shape, strides, dtype = made
    expected = torch.empty(shape, dtype=dtype)
    assert strides == expected.stride()
    for make in (allocator(torch.device("cpu")), spare.laid_out, spare._laid_out):
        made_so = make(shape, strides, dtype)
        assert (made_so.shape, made_so.stride(), made_so.dtype) == (expected.shape, expected.stride(), dtype)


def test_what_one_recipe_asked_the_next_one_does_not_ask_again() -> None:
    asked: list[str] = []

    def question(name: str) -> Any:
        return lambda indices: asked.append(name) or name

    nothing: Any = SimpleNamespace(traits=lambda back: None)
    first = Writer(nothing)
    first.ask("a", question("a"))
    first.say(f"{first.fact('one', question('fact one'))}")
    before = first.recipe("tensors", "[]")
    second = Writer(nothing, before)
    assert second.ask("a", question("again")) == "a"
    second.ask("b", question("b"))
    second.say(second.fact("two", question("fact two")), second.fact("one", question("fact one again")))
    after = second.recipe("tensors", "[]")
    asked.clear()
    facts = before.facts(nothing)
    assert after.suits(nothing)
    assert after.facts(nothing, facts) == ("fact two", "fact one")
    assert asked == ["fact one", "b", "fact two"]


def _noting(asked: list[str], name: str, question: Any) -> Any:
    def ask(indices: Any) -> Any:
        asked.append(name)
        return question(indices)

    return ask


def test_plans_of_equal_traits_are_asked_once_but_for_numbers_of_rows() -> None:
    plan: Any = SimpleNamespace(traits=lambda back: "a", answer=1, rows=5)
    asked: list[str] = []
    writer = Writer(plan)
    writer.ask("answer", _noting(asked, "answer", lambda one: one.answer))
    writer.ask("many", _noting(asked, "many", lambda one: one.rows > 3), by_rows=True)
    recipe = writer.recipe("tensors", "[]")
    asked.clear()
    assert recipe.suits(plan) and recipe.suits(SimpleNamespace(traits=lambda back: "a", answer=1, rows=4))
    assert asked == ["answer", "many", "many"]
    assert not recipe.suits(SimpleNamespace(traits=lambda back: "a", answer=1, rows=3))
    asked.clear()
    other: Any = SimpleNamespace(traits=lambda back: "b", answer=2, rows=5)
    assert not recipe.suits(other) and not recipe.suits(other)
    assert asked == ["answer"]
    assert recipe.suits(SimpleNamespace(traits=lambda back: None, answer=1, rows=4))


right = Quick._written


class _Kernel:
    """Stands for a compiled kernel: notes what it is launched with."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.slowly: list[int] = []
        self.compiled = {(None, True, (7,)): self.ready}
        self.fixed = {self.ready: ("function", "how")}

    def ready(self, *given: Any) -> None:
        self.launched.append(given)

    def launch(self, programs: int, device: torch.device, arguments: Any, constants: Any) -> None:
        self.slowly.append(programs)


def test_a_kernel_writes_its_own_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """It falls back to the general way for memory that is not aligned, and where there is nothing to do."""
    kernel: Any = _Kernel()
    quick = Quick(kernel, 2, "-(-n0 // 4)", (7,))
    rows = torch.zeros(16)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 99, raising=False)
    monkeypatch.setattr(launch.Quick, "_written", lambda self, index, many: right(self, -1, many))
    kernel.compiled[-1, True, (7,)] = kernel.ready
    quick.go(9, 5, rows, rows[4:])
    assert kernel.slowly == [3]
    quick.go(9, 5, rows, rows[4:])
    at = rows.data_ptr()
    assert kernel.launched == [(3, 1, 1, 99, "function", "how", 9, 5, at, at + 16, 7)]
    quick.go(9, 5, rows, rows[1:])
    quick.go(0, 5, rows, rows)
    assert kernel.slowly == [3, 3, 0]
    assert len(kernel.launched) == 1
