"""Options that cannot be right are told before a command does anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.run import arguments

import weft.demo
import weft.train
from weft.arguments import why_no_file, why_no_folder
from weft.cli import main

COUNT, ABOVE_ZERO = "expected a whole number of at least 1", "expected a number above 0"
SEED = "expected a whole number from -2**63 to 2**64 - 1"


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever takes long fails the test."""

    def work(*_: Any) -> Any:
        pytest.fail("work has begun")

    monkeypatch.setitem(weft.train.RECIPES, "sst", work)
    monkeypatch.setattr(weft.demo, "run", work)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(
    ("option", "given", "message"),
    [
        ("--epochs", "0", COUNT),
        ("--epochs", "-1", COUNT),
        ("--epochs", "2.5", COUNT),
        ("--batch", "0", COUNT),
        ("--dim", "0", COUNT),
        ("--dim", "many", COUNT),
        ("--rate", "nan", ABOVE_ZERO),
        ("--rate", "inf", ABOVE_ZERO),
        ("--rate", "0", ABOVE_ZERO),
        ("--rate", "-0.1", ABOVE_ZERO),
        ("--rate", "fast", ABOVE_ZERO),
        ("--seed", "18446744073709551616", SEED),
        ("--seed", "x", SEED),
    ],
)
def test_numbers_of_training_make_sense(
    option: str, given: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train", "sst", "--data", str(tmp_path), option, given])
    assert caught.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[-1] == f"weft train: error: argument {option}: {message}, got {given}"


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("command", [["demo"], ["train", "sst", "--data", "."]])
def test_a_file_that_cannot_be_written_is_told_at_once(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_file").touch()
    for out, message in (
        (tmp_path / "none" / "x.out", f"there is no folder {tmp_path / 'none'} to write x.out to"),
        (tmp_path / "a_file" / "x.out", f"there is no folder {tmp_path / 'a_file'} to write x.out to"),
        (tmp_path, f"{tmp_path} is a folder; expected a file"),
    ):
        assert main([*command, "--out", str(out)]) == 2
        assert capsys.readouterr().out == f"weft {command[0]}: --out: {message}\n"


def test_what_may_not_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_no_file(tmp_path / "new") is None and why_no_folder(tmp_path / "new" / "newer") is None
    monkeypatch.setattr("os.access", lambda *_: False)  # permissions do not bind the user that tests may run as
    assert why_no_file(tmp_path / "new") == f"{tmp_path / 'new'} cannot be written"
    assert why_no_folder(tmp_path / "new" / "newer") == f"{tmp_path} cannot be written to"


def test_benchmarks_are_told_before_they_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a_file").touch()
    for given, message in (
        (["--batch", "16", "0"], f"argument --batch: {COUNT}, got 0"),
        (["--repeat", "0"], f"argument --repeat: {COUNT}, got 0"),
        (["--threads", "-1"], f"argument --threads: {COUNT}, got -1"),
        (["--out", str(tmp_path / "a_file")], f"--out: {tmp_path / 'a_file'} is a file; expected a folder"),
        (["--out", str(tmp_path / "a_file" / "deep")], f"--out: {tmp_path / 'a_file'} is a file; expected a folder"),
    ):
        with pytest.raises(SystemExit) as caught:
            arguments(given)
        assert caught.value.code == 2
        assert capsys.readouterr().err.splitlines()[-1] == f"python -m benchmarks.run: error: {message}"
    assert arguments(["--out", str(tmp_path / "made" / "later")]).out == tmp_path / "made" / "later"
