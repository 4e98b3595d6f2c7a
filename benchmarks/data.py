"""Treebanks for the benchmarks, as plain numpy arrays. Where they lie is told by `--data` or by WEFT_DATA."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class DataMissing(Exception):
    """The data folder, or a file in it, is not there."""


def folder(given: str | None) -> Path:
    """The data folder: what was given, else WEFT_DATA."""
    name = given or os.environ.get("WEFT_DATA")
    if not name:
        raise DataMissing("no data: give --data DIR or set WEFT_DATA to a folder that holds sst/, sick/ and glove_sick/")
    path = Path(name)
    if not path.is_dir():
        raise DataMissing(f"no data: {name} is not a folder")
    return path


def _file(root: Path, name: str) -> Path:
    path = root / name
    if not path.is_file():
        raise DataMissing(f"no data: {name} is missing in the data folder {root}")
    return path


@dataclass(frozen=True)
class BinaryTree:
    """A constituency tree in post-order: children before parents, the root last."""

    children: Ints  # [n, 2], -1 at leaves
    words: Ints  # [n], vocabulary index, -1 at inner vertices
    labels: Ints  # [n], 0..4


def _parse(line: str, vocabulary: dict[str, int]) -> BinaryTree:
    children: list[list[int]] = []
    words: list[int] = []
    labels: list[int] = []
    open_labels: list[int] = []
    open_kids: list[list[int]] = []
    tokens = line.replace("(", " ( ").replace(")", " ) ").split()
    at, word = 0, -1
    while at < len(tokens):
        token = tokens[at]
        if token == "(":
            open_labels.append(int(tokens[at + 1]))
            open_kids.append([])
            at += 2
            continue
        if token == ")":
            kids = open_kids.pop()
            children.append(kids if kids else [-1, -1])
            words.append(-1 if kids else word)
            labels.append(open_labels.pop())
            if open_kids:
                open_kids[-1].append(len(children) - 1)
        else:
            word = vocabulary.setdefault(token, len(vocabulary))
        at += 1
    return BinaryTree(np.array(children), np.array(words), np.array(labels))


def sst(root: Path, split: str = "train", limit: int | None = None) -> tuple[list[BinaryTree], int]:
    """Trees of the Stanford Sentiment Treebank (Socher et al., EMNLP 2013) and the number of different words in them."""
    vocabulary: dict[str, int] = {}
    with gzip.open(_file(root, f"sst/{split}.txt.gz"), "rt", encoding="utf-8") as lines:
        trees = [_parse(line, vocabulary) for _, line in zip(range(limit or 1 << 60), lines, strict=False)]
    return trees, len(vocabulary)


@dataclass(frozen=True)
class DependencyTree:
    """A dependency tree over the tokens of a sentence."""

    parents: Ints  # [n], -1 at the root
    words: tuple[str, ...]


def _lines(archive: tarfile.TarFile, name: str) -> Iterator[str]:
    member = archive.extractfile(name)
    if member is None:
        raise DataMissing(f"no data: {name} is missing in sick_parsed.tar.xz")
    return iter(member.read().decode("utf-8").splitlines())


def sick(root: Path, split: str = "train") -> list[tuple[DependencyTree, DependencyTree]]:
    """Sentence pairs of SICK (Marelli et al., LREC 2014) with their dependency parses."""
    sides: list[list[DependencyTree]] = []
    with tarfile.open(_file(root, "sick/sick_parsed.tar.xz"), "r:xz") as archive:
        for side in "ab":
            heads = _lines(archive, f"sick_parsed/{split}/{side}.parents")
            tokens = _lines(archive, f"sick_parsed/{split}/{side}.toks")
            sides.append(
                [
                    DependencyTree(np.array(head.split(), dtype=np.int64) - 1, tuple(token.split()))
                    for head, token in zip(heads, tokens, strict=True)
                ]
            )
    return list(zip(*sides, strict=True))


def glove(root: Path) -> dict[str, NDArray[np.float32]]:
    """GloVe rows (Pennington et al., EMNLP 2014) of the words of SICK; six words have none."""
    words = _file(root, "glove_sick/words.txt").read_text(encoding="utf-8").splitlines()
    vectors = np.load(_file(root, "glove_sick/vectors_f16.npy")).astype(np.float32)
    return dict(zip(words, vectors, strict=True))
