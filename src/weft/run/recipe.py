"""Recipes: what one call did, written down as straight Python, so that the next call of the same kind does only that.

Finding out what to run (which pieces, which arenas, who reads whom) takes Python longer than running it takes a GPU, or a CPU
when the batch is small. It depends on the kind of plan, hardly on the plan: so the first call of a kind goes the general way,
and what it did becomes the source of one function. What differs from plan to plan, numbers of rows and index arrays, are its
*facts*; what must not differ are *questions* with the answer that the recipe was written for. A call whose plan answers
otherwise gets another recipe.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch

from weft.run.gpu.launch import fresh_text
from weft.run.indices import Indices

T = TypeVar("T")

Fact = Callable[[Indices], Any]


MOST_RECIPES = 8
"""For one kind of call: plans may answer a recipe's questions in different ways, but rarely in many."""


MOST_TRAITS = 64
"""Of so many plans a recipe remembers whether it suits them."""


class NoRecipe(Exception):
    """This call goes the general way; the text says why."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """`run(facts, ...)` does what the recipe says."""

    run: Callable[..., Any]
    asked: dict[Hashable, tuple[Fact, Any]]
    """In this order: some questions have an answer only where those before were answered so."""
    by_rows: tuple[Hashable, ...]
    """Questions whose answer depends on numbers of rows, too. To others plans of equal traits give equal answers."""
    makers: dict[Hashable, Fact | int]
    """By what they tell: functions of a plan's indices, or which of the facts of the recipe that ran before it is."""
    source: str
    about: Any = None
    """What the writer of another recipe must know of this one."""
    goes_back: bool = False
    """Whether questions are about what comes back to whom, too."""
    whole: dict[Any, Any] = field(default_factory=dict)
    """The recipe as one call of C, by device and what ran before it."""

    _suited: dict[Hashable, bool] = field(default_factory=dict)

    def suits(self, indices: Indices) -> bool:
        """Whether a plan is of the kind that this was written for."""
        traits = indices.traits(self.goes_back)
        if traits is None:
            return self._answers(indices, self.asked)
        suits = self._suited.get(traits)
        if suits is None:
            suits = self._answers(indices, [key for key in self.asked if key not in self.by_rows])
            if len(self._suited) >= MOST_TRAITS:
                self._suited.clear()
            self._suited[traits] = suits
        return suits and (not self.by_rows or self._answers(indices, self.by_rows))

    def _answers(self, indices: Indices, keys: Iterable[Hashable]) -> bool:
        """Whether a plan gives the answers that this was written for."""
        for key in keys:
            question, answer = self.asked[key]
            if question(indices) != answer:
                return False
        return True

    def facts(self, indices: Indices, before: Sequence[Any] = ()) -> tuple[Any, ...]:
        """What the recipe needs to know of a plan; `before`: the facts of the recipe that ran before."""
        return tuple([make(indices) if callable(make) else before[make] for make in self.makers.values()])


@dataclass(eq=False)
class Writer:
    """Collects the lines of a recipe."""

    indices: Indices
    before: Recipe | None = None
    """A recipe by which every plan runs that will run by this one: what it asked needs no asking again."""
    lines: list[str] = field(default_factory=list)
    space: dict[str, Any] = field(default_factory=dict)
    _facts: dict[Hashable, tuple[str, Fact]] = field(default_factory=dict)
    _asked: dict[Hashable, tuple[Fact, Any]] = field(default_factory=dict)
    _by_rows: set[Hashable] = field(default_factory=set)
    _count: int = 0

    def ask(self, key: Hashable, question: Callable[[Indices], T], by_rows: bool = False) -> T:
        """What is so in this plan, and must be so in every plan that the recipe runs.

        Whether it is so may depend on what plans have in common that are of one shape, and on their traits (`Indices.traits`);
        with `by_rows` also on how many rows there are.
        """
        known = self._asked if self.before is None or key not in self.before.asked else self.before.asked
        if key not in known:
            known[key] = question, question(self.indices)
            if by_rows:
                self._by_rows.add(key)
        answer: T = known[key][1]
        return answer

    def fact(self, key: Hashable, make: Fact) -> str:
        """The variable that holds something of the plan."""
        if key not in self._facts:
            self._facts[key] = f"f{len(self._facts)}", make
        return self._facts[key][0]

    def fresh(self) -> str:
        self._count += 1
        return f"x{self._count}"

    def let(self, expression: str) -> str:
        """A new variable."""
        name = self.fresh()
        self.lines.append(f"{name} = {expression}")
        return name

    def say(self, *lines: str) -> None:
        """A statement; further lines belong to it."""
        self.lines.append("\n".join(lines))

    def bind(self, item: Any, start: str = "c") -> str:
        """The name of an object that the recipe uses as it is."""
        for name, known in self.space.items():
            if known is item:
                return name
        name = f"{start}{len(self.space)}"
        self.space[name] = item
        return name

    def empty(self, sizes: Sequence[str | int], dtype: torch.dtype | None) -> str:
        """Fresh memory on the call's device."""
        return self.let(fresh_text(sizes, dtype))

    def recipe(self, parameters: str, results: str, about: Any = None) -> Recipe:
        """The finished recipe; variables are let go after their last use."""
        facts = self._facts
        body = [f"({', '.join(name for name, _ in facts.values())},) = facts"] * bool(facts)
        body += _letting_go(self.lines, results)
        body = [line.replace("\n", "\n    ") for line in body]
        text = "\n    ".join([f"def recipe(facts, {parameters}):", *body, f"return {results}"]) + "\n"
        space = {"torch": torch, **self.space}
        exec(compile(text, "weft_recipe.py", "exec"), space)
        earlier = {} if self.before is None else {key: at for at, key in enumerate(self.before.makers)}
        makers = {key: earlier.get(key, make) for key, (_, make) in facts.items()}
        by_rows = tuple([key for key in self._asked if key in self._by_rows])
        return Recipe(space["recipe"], self._asked, by_rows, makers, text, about, self.before is not None)


_NAME = re.compile(r"\bx\d+\b")
_VIEW = re.compile(r"(x\d+) = x\d+\.(?:narrow|view)\([^()]*\)$")


def _letting_go(lines: Sequence[str], results: str) -> list[str]:
    """The lines, each followed by a `del` of the variables that are not used any more; views that nobody uses are left out."""
    kept, found = set(_NAME.findall(results)), list[str]()
    for line in reversed(lines):
        made = _VIEW.match(line)
        if made is not None and made[1] not in kept:
            continue
        last = [name for name in dict.fromkeys(_NAME.findall(line)) if name not in kept]
        kept.update(last)
        if last:
            found.append(f"del {', '.join(last)}")
        found.append(line)
    return found[::-1]


class Text(Protocol):
    """What writes one recipe."""

    def recipe(self) -> Recipe: ...


def written(text: Text) -> Recipe | None:
    """A recipe, or None where there can be none."""
    try:
        return text.recipe()
    except NoRecipe:
        return None
