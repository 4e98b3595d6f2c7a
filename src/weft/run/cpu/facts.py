"""The facts of a plan that a recipe on a CPU needs: as far as they can be told so, numbers of the plan and addresses in it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from weft.plan.shape import NativePlan, native
from weft.run.indices import Indices
from weft.run.recipe import Recipe
from weft.run.told import texts_of

_TELLING = "telling"


def facts_of(recipe: Recipe, indices: Indices, before: Sequence[Any]) -> tuple[Any, ...]:
    """What a recipe needs to know of a plan; `before`: the facts of the recipe that ran before."""
    plan = native(indices.plan)
    if plan is None:
        return recipe.facts(indices, before)
    telling = recipe.whole.get(_TELLING)
    if telling is None:
        telling = recipe.whole[_TELLING] = _telling(recipe, plan)
    tell, rest = telling
    found = [make(indices) if callable(make) else before[make] for make in rest]
    return tell(plan.numbers, plan.back_numbers, plan.place, plan.back_place, found)


def _telling(recipe: Recipe, plan: NativePlan) -> tuple[Callable[..., tuple[Any, ...]], list[Any]]:
    """A function of a plan's numbers that gives all facts, and what makes those that it is given."""
    rest: list[Any] = []
    parts = [_text(key, plan) for key in recipe.makers]
    for at, make in enumerate(recipe.makers.values()):
        if parts[at] is None:
            parts[at] = f"rest[{len(rest)}]"
            rest.append(make)
    text = f"lambda n, b, base, back, rest: ({''.join(f'{part}, ' for part in parts)})"
    return eval(compile(text, "weft_facts.py", "eval")), rest


def _text(key: Hashable, plan: NativePlan) -> str | None:
    """A number, or, for keys that ask where something is, an address; None for all else."""
    if not isinstance(key, tuple) or key[0] != "at":
        told = texts_of([key], plan.layout, plan.back_traits or ()).get(key)
        return told.text if told is not None and told.rows is None else None
    if key[1] == "places":  # lie where only the host reads
        return f"(base + 4 * n[{plan.layout.class_rows(key[2:])}])"
    told = texts_of([key[1:]], plan.layout, plan.back_traits or ()).get(key[1:])
    return told.text if told is not None and told.rows is not None else None
