"""A treebank that the package makes itself: film reviews from a seeded grammar, with a sentiment at every vertex.

The sentiment of a phrase is a small function of its two parts, so a model has to compose:

    not X, isn't X          turns X round                     nobody thinks X    turns the whole clause X round
    very X, slightly X      makes X strong, makes X weak      hardly X           turns X round and makes it weak
    X and Y                 adds, limited to -2 .. 2          X but Y            is Y
    although X              counts for nothing                A N (the dull film) is as good as A

Which words occur does not decide the label: "not good but clever" and "not clever but good" differ, and so do
"(not good) and clever" and "not (good and clever)". Trees are binary and stored as flat arrays, children before parents.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

LABELS = ("very negative", "negative", "neutral", "positive", "very positive")

_ADJECTIVES = {
    2: ("wonderful", "brilliant", "superb", "moving"),
    1: ("good", "charming", "clever", "fresh", "funny"),
    0: ("long", "quiet", "modern", "Danish"),
    -1: ("dull", "weak", "clumsy", "flat", "tired"),
    -2: ("awful", "terrible", "dreadful", "unbearable"),
}
_NOUNS = ("film", "story", "music", "script", "acting", "ending", "dialogue", "hero")
_SCORES = {word: score for score, words in _ADJECTIVES.items() for word in words}
_FUNCTION_WORDS = (
    *("the", "this", "is", "looks", "isn't", "not", "hardly", "very", "slightly"),
    *("and", "but", "although", "nobody", "thinks", "everyone"),
)
VOCABULARY = ("", *_FUNCTION_WORDS, *_NOUNS, *_SCORES)
"""Word of each word id; id 0 stands for "no word": an inner vertex."""

_WORD_ID = {word: number for number, word in enumerate(VOCABULARY)}


@dataclass(frozen=True, eq=False)
class Tree:
    """One sentence: `children` [n, 2] (-1: a leaf), `words` [n] (ids, 0 at inner vertices), `labels` [n]; the root is last.

    >>> tree = make(1, seed=3)[0]
    >>> tree.children.shape == (len(tree.words), 2) and tree.text.split()[0] in VOCABULARY
    True
    """

    children: Ints
    words: Ints
    labels: Ints

    @property
    def tokens(self) -> list[str]:
        return [VOCABULARY[word] for word in self.words if word]

    @property
    def text(self) -> str:
        return " ".join(self.tokens)

    @property
    def brackets(self) -> str:
        """The tree as `(label left right)` and `(label word)`, the notation of sentiment treebanks."""
        parts: list[str] = []
        for (left, right), word, label in zip(self.children, self.words, self.labels, strict=True):
            inside = VOCABULARY[word] if word else f"{parts[left]} {parts[right]}"
            parts.append(f"({label} {inside})")
        return parts[-1]


@dataclass(frozen=True)
class _Phrase:
    score: int
    word: str = ""
    parts: tuple[_Phrase, _Phrase] | None = None


def make(count: int, seed: int = 0, min_words: int = 1, max_words: int = 40) -> list[Tree]:
    """`count` different sentences of `min_words` to `max_words` words; the same seed gives the same sentences.

    >>> print(make(1, seed=2, max_words=8)[0].brackets)
    (3 (1 (2 this) (1 (1 dull) (2 acting))) (4 (2 is) (4 (2 very) (3 funny))))
    """
    rng = random.Random(seed)
    trees: dict[str, Tree] = {}
    while len(trees) < count:
        tree = _flatten(_sentence(rng, depth=0))
        if min_words <= len(tree.tokens) <= max_words:
            trees.setdefault(tree.text, tree)
    return list(trees.values())


def _clip(score: int) -> int:
    return max(-2, min(2, score))


def _sign(score: int) -> int:
    return (score > 0) - (score < 0)


_MODIFIERS: dict[str, Callable[[int], int]] = {
    "not": lambda score: -score,
    "isn't": lambda score: -score,
    "hardly": lambda score: -_sign(score),
    "very": lambda score: 2 * _sign(score),
    "slightly": _sign,
    "is": lambda score: score,
    "looks": lambda score: score,
}


def _word(word: str) -> _Phrase:
    return _Phrase(_SCORES.get(word, 0), word)


def _pair(score: int, left: _Phrase, right: _Phrase) -> _Phrase:
    return _Phrase(score, parts=(left, right))


def _modify(word: str, phrase: _Phrase) -> _Phrase:
    return _pair(_MODIFIERS[word](phrase.score), _word(word), phrase)


def _join(left: _Phrase, word: str, right: _Phrase) -> _Phrase:
    score = _clip(left.score + right.score) if word == "and" else right.score
    return _pair(score, left, _pair(right.score, _word(word), right))


def _pick(rng: random.Random, weights: dict[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def _quality(rng: random.Random, depth: int = 0, negated: bool = False) -> _Phrase:
    rule = _pick(rng, {"word": 4 + 2 * depth, "not": 0 if negated else 2, "degree": 4, "and": 2, "but": 2})
    if rule == "word":
        return _adjective(rng)
    if rule == "not":
        return _modify("not", _quality(rng, depth + 1, negated=True))
    if rule == "degree":
        return _modify(rng.choice(("hardly", "very", "slightly")), _adjective(rng))
    return _join(_quality(rng, depth + 1), rule, _quality(rng, depth + 1))


def _adjective(rng: random.Random) -> _Phrase:
    return _word(rng.choice(_ADJECTIVES[rng.choices((2, 1, 0, -1, -2), (3, 4, 1, 4, 3))[0]]))


def _clause(rng: random.Random) -> _Phrase:
    noun = _word(rng.choice(_NOUNS))
    if rng.random() < 0.3:
        quality = _adjective(rng)
        noun = _pair(quality.score, quality, noun)
    subject = _pair(noun.score, _word(rng.choice(("the", "this"))), noun)
    verb = _pick(rng, {"is": 4, "looks": 2, "isn't": 2})
    predicate = _modify(verb, _quality(rng))
    return _pair(_clip(subject.score + predicate.score), subject, predicate)


def _sentence(rng: random.Random, depth: int) -> _Phrase:
    rule = _pick(rng, {"clause": 3 + 3 * depth, "and": 2, "but": 3, "although": 2, "nobody": 1, "everyone": 1})
    if rule == "clause":
        return _clause(rng)
    rest = _sentence(rng, depth + 1)
    if rule == "although":
        aside = _pair(0, _word("although"), _clause(rng))
        return _pair(rest.score, aside, rest)
    if rule in ("nobody", "everyone"):
        opinion = _pair(0, _word(rule), _word("thinks"))
        return _pair(-rest.score if rule == "nobody" else rest.score, opinion, rest)
    return _join(_clause(rng), rule, rest)


def _flatten(phrase: _Phrase) -> Tree:
    children: list[tuple[int, int]] = []
    words: list[int] = []
    labels: list[int] = []

    def visit(part: _Phrase) -> int:
        children.append((visit(part.parts[0]), visit(part.parts[1])) if part.parts else (-1, -1))
        words.append(_WORD_ID[part.word])
        labels.append(part.score + 2)
        return len(words) - 1

    visit(phrase)
    return Tree(np.array(children, dtype=np.int64), np.array(words, dtype=np.int64), np.array(labels, dtype=np.int64))


def word_counts(trees: Sequence[Tree]) -> npt.NDArray[np.float32]:
    """Bag of words: [len(trees), len(VOCABULARY)], how often each word occurs in each tree."""
    counts = np.zeros((len(trees), len(VOCABULARY)), dtype=np.float32)
    for row, tree in zip(counts, trees, strict=True):
        np.add.at(row, tree.words[tree.words > 0], 1)
    return counts
