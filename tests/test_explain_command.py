"""`weft explain FILE.py:NAME`: what the file may import, and what is said where it holds no example."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft.cli import main

EXAMPLES = """
import torch, weft

def doubled(t):
    return t * 2

class Sum(weft.VertexFunction):
    def __init__(self):
        super().__init__(state={"h": ()})

    def forward(self, v):
        v.scatter(h=v.pull() + v.gather().sum())

def cyclic():
    return Sum(), weft.Graph([[0]]), torch.ones(1)

def just_a_model():
    return Sum()

def nothing():
    return ()

def needs(size, depth, seed=0):
    return doubled, [torch.ones(size)] * depth

def may_take(count=2, *more, **options):
    return doubled, [torch.ones(2)] * count

def a_number():
    return 3, [1]

def broken():
    raise ValueError("of the user's own")

constant = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a file of examples."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some_examples.py").write_text(EXAMPLES, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("some_examples.py:", "expected FILE.py:NAME, got some_examples.py:"),
        ("some_examples.py:constant", "some_examples.py has no function constant"),
        (
            "some_examples.py:needs",
            "needs in some_examples.py needs arguments (size, depth); expected a function that needs none",
        ),
        ("some_examples.py:just_a_model", "just_a_model in some_examples.py returned Sum; expected a tuple (model, *inputs)"),
        ("some_examples.py:nothing", "nothing in some_examples.py returned nothing to plan; expected a tuple (model, *inputs)"),
        ("some_examples.py:a_number", "weft.plan: expected a model, a block or a function, got int"),
        (
            "some_examples.py:cyclic",
            "Sum: graph 0: cycle: 0 -> 0 (vertex 0 gathers itself); rounds= runs on graphs with cycles",
        ),
        ("notes.txt:example", "notes.txt is not a Python file"),
    ],
)
def test_what_is_no_example_is_told_in_one_line(
    target: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "notes.txt").touch()
    assert main(["explain", target]) == 2
    assert capsys.readouterr().out == f"weft explain: {message}\n"


def test_arguments_that_have_defaults_are_none_to_give(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "some_examples.py:may_take"]) == 0
    assert capsys.readouterr().out.startswith("doubled: 2 examples, ")


def test_an_error_in_the_file_stays_what_it_is(folder: Path) -> None:
    with pytest.raises(ValueError, match="of the user's own"):
        main(["explain", "some_examples.py:broken"])


SIBLING = """
import torch
import weft_sibling
import weft_here.helper

def example():
    import weft_late
    return (lambda t: t * weft_sibling.two * weft_late.three), [torch.ones(2)]
"""


def test_a_file_may_import_what_lies_beside_it_and_in_the_current_folder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in {
        "models/uses_a_sibling.py": SIBLING,
        "models/weft_sibling.py": "two = 2.0",
        "models/weft_late.py": "three = 3.0",
        "weft_here/helper.py": "",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    before = list(sys.path)
    assert main(["explain", "models/uses_a_sibling.py:example"]) == 0
    assert capsys.readouterr().out.startswith("<lambda>: 1 example, ")
    assert sys.path == before


def test_a_terminal_that_lacks_characters_shows_the_others(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(EXAMPLES)
    command = [sys.executable, "-m", "weft.cli", "explain", "model.py:may_take"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0 and "2 examples" in found.stdout, found.stderr
