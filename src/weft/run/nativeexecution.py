"""One call on a CPU with compiled pieces: by the recipe that an earlier call of its kind left, or the general way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.run.batched import Execution
from weft.run.gpu.recipe import NoRecipe, Recipe
from weft.run.gpu.recipeforward import Saved
from weft.run.nativerecipe import NativeForwardText
from weft.run.walking import watched

MOST_RECIPES = 8
"""For one kind of call: plans may answer a recipe's questions in different ways, but rarely in many."""


class NativeExecution(Execution):
    """One forward pass and, perhaps, its backward passes."""

    recipe: Recipe | None = None
    """By which this call ran."""
    kept: tuple[Tensor, ...] = ()

    def forward(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        if watched():
            return super().forward(tensors)
        known = self._known(tensors)
        self.recipe = next((one for one in known if one is not None and self._suits(one)), None)
        if self.recipe is None:
            outputs = super().forward(tensors)
            if len(known) < MOST_RECIPES:
                known.append(self._written())
            return outputs
        made: list[Tensor]
        parts = [None if wanted.nodes is None else wanted.parts(self.plan) for wanted in self.call.wanted]
        facts, device = self._facts(self.recipe), self.call.device
        made, self.kept = self.recipe.run(facts, tensors, self.records, device, self._borrow, parts)
        self._note_borrowed(made)
        return made

    def pack(self) -> list[Tensor]:
        if self.recipe is None:
            return super().pack()
        kept, self.kept = list(self.kept), ()
        about: Saved = self.recipe.about
        self.saved, self.saved_arenas = about.names, about.arenas
        self.forget()
        return kept

    def _known(self, tensors: Sequence[Tensor]) -> list[Recipe | None]:
        # A single row is dense whatever its stride; several rows with the same stride need not be.
        key = torch.get_num_threads(), *[(tensor.stride(), tensor.is_contiguous()) for tensor in tensors]
        return self.codes.recipes.setdefault(key, [])

    def _suits(self, recipe: Recipe) -> bool:
        return self.indices.once((recipe, "suits"), lambda: recipe.suits(self.indices))

    def _facts(self, recipe: Recipe) -> tuple[Any, ...]:
        return self.indices.once((recipe, "facts"), lambda: recipe.facts(self.indices))

    def _written(self) -> Recipe | None:
        try:
            return NativeForwardText(self).recipe()
        except NoRecipe:
            return None
