"""`weft train`: what it reads, what it prints and saves, and what it says where the data is wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

import weft
from weft.cli import main
from weft.train import SentimentTrees, Split, accuracy, parse, read_trees
from weft.treebank import make


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A treebank in files, one of them packed."""
    found = tmp_path_factory.mktemp("trees")
    trees = make(360, seed=5, max_words=12)
    for name, some in {"train": trees[:240], "dev": trees[240:300], "test": trees[300:]}.items():
        text = "".join(f"{tree.brackets}\n" for tree in some)
        if name == "test":
            (found / "test.txt.gz").write_bytes(gzip.compress(text.encode("utf-8")))
        else:
            (found / f"{name}.txt").write_text(text, encoding="utf-8")
    return found


def test_a_network_is_trained_and_saved(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "model.pt"
    arguments = ["--epochs", "5", "--dim", "24", "--batch", "16", "--rate", "0.02", "--out", str(out)]
    assert main(["train", "sst", "--data", str(folder), *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("sst: 240 trees, ") and lines[0].endswith(" words, 5 classes, 24 hidden")
    assert [line.split(":")[0] for line in lines[1:]] == [*(f"epoch {epoch}" for epoch in range(1, 6)), "best epoch", "saved"]
    found = torch.load(out, weights_only=True)
    model = SentimentTrees(len(found["vocabulary"]), found["dim"], found["classes"])
    model.load_state_dict(found["state_dict"])
    vocabulary = {word: number for number, word in enumerate(found["vocabulary"])}
    test = Split(read_trees(folder, "test"), vocabulary)
    assert accuracy(model, test, 256) == found["accuracy"]["test"]
    roots = torch.tensor([labels[-1] for labels in test.labels])
    assert found["accuracy"]["test"] > 0.15 + float((roots == roots.mode().values).float().mean())


def test_trees_are_read_as_they_were_written(folder: Path) -> None:
    trees, written = read_trees(folder, "test"), make(360, seed=5, max_words=12)[300:]
    assert [tree.labels for tree in trees] == [tree.labels.tolist() for tree in written]
    assert [[word for word in tree.words if word] for tree in trees] == [tree.tokens for tree in written]
    assert parse("(1 (2 8\xa01/2) (0 x))").words == ["8\xa01/2", "x", None]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("(3 (2 a) (1 b) (1 c))", "expected (label word) or (label left right), got a vertex with 3 parts"),
        ("(3 (2 a) b)", "expected (label word) or (label left right), got a vertex with 2 parts"),
        ("(good (2 a) (1 b))", "expected a label after '(', got 'good'"),
        ("(3 (2 a) (1 b)", "expected ')', got the end of the line"),
        ("(2 a) (1 b)", "expected one tree, got '( 1 b' after it"),
        ("word", "expected '(', got 'word'"),
    ],
)
def test_what_is_no_tree_is_told_with_its_line(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.txt").write_text(f"(2 fine)\n\n{line}\n", encoding="utf-8")
    assert main(["train", "sst", "--data", str(tmp_path)]) == 2
    assert capsys.readouterr().out == f"weft train: train.txt, line 3: {message}\n"


def test_what_is_missing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "sst", "--data", str(tmp_path)]) == 2
    assert main(["train", "other", "--data", str(tmp_path)]) == 2
    (tmp_path / "train.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(weft.StructureError, match=r"train\.txt holds no trees$"):
        read_trees(tmp_path, "train")
    assert capsys.readouterr().out.splitlines() == [
        f"weft train: there is no train.txt or train.txt.gz in {tmp_path}",
        "weft train: there is no recipe other; there is sst",
    ]
