"""One call on a CPU with compiled pieces: by the recipes that an earlier call of its kind left, or the general way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.cc import compiler
from weft.plan.library import address
from weft.run.backward import Backward
from weft.run.cpu.facts import facts_of
from weft.run.cpu.recipeback import NativeBackText
from weft.run.cpu.recipeforward import NativeForwardText
from weft.run.cpu.walking import watched
from weft.run.execution import Execution
from weft.run.recipe import MOST_RECIPES, Recipe, written
from weft.run.recipeforward import Saved
from weft.run.wanted import Wanted


class NativeExecution(Execution):
    """One forward pass and, perhaps, its backward passes."""

    recipe: Recipe | None = None
    """By which this call ran."""
    kept: tuple[Tensor, ...] = ()

    def forward(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        if watched() or compiler() is None:  # what recipes do is done in C
            return super().forward(tensors)
        known = self._known(tensors)
        self.recipe = self._suiting(known)
        if self.recipe is None:
            outputs = super().forward(tensors)
            if len(known) < MOST_RECIPES:
                known.append(written(NativeForwardText(self)))
            return outputs
        made: list[Tensor]
        facts, device = self._facts(self.recipe), self.call.device
        made, self.kept = self.recipe.run(facts, tensors, self.records, device, self._borrow, self._chosen(), self._feed())
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

    def backward(
        self, tensors: Sequence[Tensor], saved: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        found = None if self.recipe is None or watched() else self._suiting(self._known_back(self.recipe, grads))
        if found is None:
            return super().backward(tensors, saved, grads)
        facts, device = self._facts(found, self.recipe), self.call.device
        given = facts, tensors, self._chosen(), [*saved], grads, self.records, device, self._feed()
        results: list[Tensor | None] = found.run(*given)
        return results

    def _feed(self) -> int:
        """Where it is listed which row each node is fed, if the call says so."""
        return 0 if self.call.feed is None else address(self.call.feed)

    def _chosen(self) -> list[Any]:
        """Of results that are rows of some nodes: where these are listed, how many, the list; or parts by type."""
        return [None if one.nodes is None else self._rows_of(one) for one in self.call.wanted]

    def _rows_of(self, wanted: Wanted) -> Any:
        if wanted.type is None and len(wanted.types(self.plan)) != 1:
            return wanted.parts(self.plan)
        rows = wanted.rows(self.plan)
        return address(rows), len(rows), rows

    def wrote_down(self, sweep: Backward, tensors: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        if self.recipe is None or watched():
            return
        known = self._known_back(self.recipe, grads)
        if len(known) >= MOST_RECIPES:
            return
        known.append(written(NativeBackText(self, sweep, self.recipe, tensors, grads)))

    def _known(self, tensors: Sequence[Tensor]) -> list[Recipe | None]:
        # A single row is contiguous whatever its stride; of several the shape tells it.
        strides = [None if tensor.is_contiguous() else tensor.stride() for tensor in tensors]
        key = torch.get_num_threads(), self.call.feed is None, *strides
        return self.codes.recipes.setdefault(key, [])

    def _known_back(self, recipe: Recipe, grads: Sequence[Tensor | None]) -> list[Recipe | None]:
        key = id(recipe), bool(self.must), tuple([grad is None for grad in grads])
        return self.codes.recipes.setdefault(key, [])

    def _suiting(self, known: Sequence[Recipe | None]) -> Recipe | None:
        return next((one for one in known if one is not None and self._suits(one)), None)

    def _suits(self, recipe: Recipe) -> bool:
        return self.indices.once((recipe, "suits"), lambda: recipe.suits(self.indices))

    def _facts(self, recipe: Recipe, before: Recipe | None = None) -> tuple[Any, ...]:
        def find() -> tuple[Any, ...]:
            earlier = () if before is None else self._facts(before)
            return facts_of(recipe, self.indices, earlier)

        return self.indices.once((recipe, "facts"), find)
