"""The synthetic treebank: the same every time, well-formed, labelled by the rules it states."""

from __future__ import annotations

import numpy as np
import pytest

from weft.treebank import VOCABULARY, Tree, make, word_counts

TREES = make(300, seed=5)


def label_by_rule(tree: Tree) -> list[int]:
    """The label of every vertex, worked out again from the words and the shape alone, as -2 .. 2."""
    strength = {"wonderful": 2, "brilliant": 2, "superb": 2, "moving": 2}
    strength |= {"good": 1, "charming": 1, "clever": 1, "fresh": 1, "funny": 1}
    strength |= {"dull": -1, "weak": -1, "clumsy": -1, "flat": -1, "tired": -1}
    strength |= {"awful": -2, "terrible": -2, "dreadful": -2, "unbearable": -2}
    scores: list[int] = []
    heads: list[str] = []
    for (left, right), word in zip(tree.children, tree.words, strict=True):
        if word:
            head, score = VOCABULARY[word], strength.get(VOCABULARY[word], 0)
        else:
            head, score = heads[left], combine(heads[left], heads[right], tree.words[left] > 0, scores[left], scores[right])
        scores.append(score)
        heads.append(head)
    return scores


def combine(left_head: str, right_head: str, left_is_word: bool, left: int, right: int) -> int:
    if left_is_word and left_head in ("not", "isn't"):
        return -right
    if left_is_word and left_head in ("hardly", "very", "slightly"):
        return int(np.sign(right)) * {"hardly": -1, "very": 2, "slightly": 1}[left_head]
    if left_is_word and left_head == "although":
        return 0
    if left_head == "nobody" and not left_is_word and right_head not in ("and", "but"):
        return -right
    if right_head == "but":
        return right
    return max(-2, min(2, left + right))


def test_every_label_follows_the_rules() -> None:
    for tree in TREES:
        assert label_by_rule(tree) == (tree.labels - 2).tolist(), tree.brackets


def test_the_same_seed_gives_the_same_trees_and_another_seed_others() -> None:
    assert [tree.brackets for tree in make(20, seed=1)] == [tree.brackets for tree in make(20, seed=1)]
    assert [tree.text for tree in make(20, seed=1)] != [tree.text for tree in make(20, seed=2)]


def test_no_sentence_occurs_twice() -> None:
    assert len({tree.text for tree in TREES}) == len(TREES)


def test_children_come_before_parents_and_every_vertex_but_the_root_has_one_parent() -> None:
    for tree in TREES:
        inner = tree.words == 0
        assert (tree.children[~inner] == -1).all()
        assert (tree.children[inner] < np.flatnonzero(inner)[:, None]).all()
        assert sorted(tree.children[inner].ravel()) == list(range(len(tree.words) - 1))


@pytest.mark.parametrize(("shortest", "longest"), [(1, 8), (21, 40)])
def test_lengths_are_kept(shortest: int, longest: int) -> None:
    lengths = [len(tree.tokens) for tree in make(50, min_words=shortest, max_words=longest)]
    assert shortest <= min(lengths) and max(lengths) <= longest


def test_all_five_labels_are_common_at_the_root() -> None:
    shares = np.bincount([tree.labels[-1] for tree in make(1000)], minlength=5) / 1000
    assert shares.min() > 0.1 and shares.max() < 0.3


def test_word_counts_count_words_and_no_inner_vertices() -> None:
    counts = word_counts(TREES)
    assert counts.sum(1).tolist() == [len(tree.tokens) for tree in TREES]
    assert not counts[:, 0].any()


def test_the_bag_of_words_does_not_decide_the_label() -> None:
    """Some two sentences use the same words equally often and differ in sentiment."""
    labels: dict[bytes, set[int]] = {}
    for tree in make(6000, seed=0, max_words=8):
        labels.setdefault(word_counts([tree]).tobytes(), set()).add(int(tree.labels[-1]))
    assert any(len(found) > 1 for found in labels.values())
