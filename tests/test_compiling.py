"""C is compiled once, many functions at a time, and only what is called."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import weft
import weft.nn
from weft import cc
from weft.run.cpu import native
from weft.run.cpu.formulas import HEADS
from weft.run.cpu.native import Native, compile_all

HEAD = "typedef double real;\n"
ADD = "void NAME(real *x) { x[0] += %d; }\n"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, one_thread: None) -> list[str]:
    """What the compiler is given from here on, with nothing compiled before."""
    path = cc.compiler()
    assert path is not None, "these tests need a C compiler: cc, gcc or clang"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native, "_loaded", {})
    seen: list[str] = []
    right = cc._compile

    def compiled(path: str, source: str, effort: str, libraries: Sequence[Path]) -> None:
        seen.append(source)
        right(path, source, effort, libraries)

    monkeypatch.setattr(cc, "_compile", compiled)
    return seen


def function(text: str, head: str = HEAD) -> Native:
    return Native(str(cc.compiler()), head, text, [ctypes.c_void_p])


def applied(*functions: Native) -> float:
    x = torch.zeros(1, dtype=torch.float64)
    for each in functions:
        each(x.data_ptr())
    return float(x)


def test_functions_are_compiled_together_once_and_found_again_one_by_one(runs: list[str]) -> None:
    functions = [function(ADD % number) for number in (1, 10, 100, 10)]
    assert compile_all(functions) and len(runs) == 1
    assert applied(*functions) == 121
    native._loaded.clear()  # as in another process
    assert applied(function(ADD % 100)) == 100 and len(runs) == 1
    assert compile_all([function(ADD % 1), function(ADD % 1000)]) and len(runs) == 2
    assert "1000" in runs[1] and "+= 1;" not in runs[1]


def test_what_does_not_compile_keeps_nothing_else_from_it(runs: list[str]) -> None:
    good, bad, other = function(ADD % 1), function("this is not C\n"), function(ADD % 2)
    assert not compile_all([good, bad, other])
    assert [each.ready for each in (good, bad, other)] == [True, False, True]
    assert applied(good, other) == 3
    with pytest.raises(OSError, match="cannot compile a part of a function that it compiled before"):
        bad(0)


def test_a_function_is_compiled_when_it_is_called(runs: list[str]) -> None:
    waiting = function(ADD % 5)
    assert not runs and not waiting.ready
    assert applied(waiting, waiting) == 10 and len(runs) == 1


def test_a_model_is_compiled_in_one_go_but_for_kernels_that_a_walk_stands_for(runs: list[str]) -> None:
    model, graph = weft.nn.ChildSumTreeLSTM(7, 9).double(), weft.Graph.from_parents([2, 2, 4, 4, -1])
    model(graph, torch.randn(5, 7, dtype=torch.float64))
    assert len([source for source in runs if source.startswith(HEADS[torch.float64]) and "weft_tools" not in source]) == 1
    cells = [cell for kept in model.__dict__["_weft"].cells.values() for cell in kept]
    pieces = [piece for cell in cells for code in cell.codes.values() for piece in code.codes.values()]
    walks = [piece for piece in pieces if piece.walk is not None]
    assert walks and all(piece.walk.function.ready for piece in walks)
    assert not any(kernel.ready for piece in walks for kernel in piece.kernels)
    others = [kernel for piece in pieces if piece.walk is None for kernel in piece.kernels]
    assert others and all(kernel.ready for kernel in others)


def test_texts_do_not_depend_on_the_order_of_sets() -> None:
    """It changes from process to process, and what one compiles the next should find."""
    model, graph = weft.nn.ChildSumTreeLSTM(3, 5), weft.Graph.from_parents([2, 2, 4, 4, -1])
    model(graph, torch.randn(5, 3, requires_grad=True))
    cells = [cell for kept in model.__dict__["_weft"].cells.values() for cell in kept]
    found = [code for cell in cells for code in cell.codes.values()]
    assert max(len(code.split.gradients) for code in found) > 4
    for code in found:
        named = [name[1] for name in code.split.tape.outputs if name[0] == "grad"]
        assert list(code.split.gradients) == [name for name in named if name in code.split.gradients]


def test_a_watched_model_runs_by_kernels_that_were_not_compiled_yet(runs: list[str]) -> None:
    model, graph = weft.nn.ChildSumTreeLSTM(7, 11).double(), weft.Graph.from_parents([2, 2, 4, 4, -1])
    x = torch.randn(5, 7, dtype=torch.float64)
    with torch.no_grad():
        expected = model(graph, x)
        before = len(runs)
        with FlopCounterMode(display=False):
            found = model(graph, x)
    assert len(runs) > before
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@pytest.fixture
def homeless(runs: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The temporary folder of a user whom the system does not know."""

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"weft-{os.getuid()}"


def test_who_has_no_home_compiles_in_a_temporary_folder(homeless: Path) -> None:
    assert applied(function(ADD % 7)) == 7
    assert homeless.stat().st_mode & 0o777 == 0o700


def test_nothing_is_run_from_a_folder_of_somebody_else(homeless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.getuid() + 1
    homeless.with_name(f"weft-{other}").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(OSError, match="cannot compile"):
        function(ADD % 8)(0)
    assert cc._works(str(cc.compiler())) is False


def test_a_temporary_folder_is_not_asked_for_without_need(runs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: (_ for _ in ()).throw(FileNotFoundError("no temporary folder")))
    assert applied(function(ADD % 9)) == 9
