"""One call on a GPU: by the recipe that an earlier call of its kind left, or the general way, which leaves one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.run.backward import Backward
from weft.run.execution import Execution
from weft.run.gpu.chosen import chosen_rows
from weft.run.gpu.firststep import as_kept_otherwise
from weft.run.gpu.launch import Fresh, allocator, current_stream
from weft.run.gpu.onecall.kept import Kept
from weft.run.gpu.onecall.later import Unfinished
from weft.run.gpu.onecall.lowered import Lowered, Versions, can_lower
from weft.run.gpu.onecall.note import Given
from weft.run.gpu.recipeback import GpuBackText
from weft.run.gpu.recipeforward import GpuForwardText
from weft.run.gpu.replay import Replay, replayed, replayed_back
from weft.run.recipe import MOST_RECIPES, Recipe, written
from weft.run.recipeforward import Saved

_autograd: Any = torch._C._autograd
_stride = Tensor.stride
_precision: Any = torch._C._get_float32_matmul_precision


Saving = Sequence[Tensor] | Kept
"""What forward keeps for backward."""


class GpuExecution(Execution):
    """One forward pass and, perhaps, its backward passes."""

    recipe: Recipe | None = None
    """By which this call ran."""
    written: Recipe | None = None
    """Which this call wrote."""
    whole: Lowered | None = None
    """What ran the forward pass as one call."""
    replay: Replay | None = None
    """What ran the forward pass and will run the backward pass."""
    kept: Saving = ()
    _chosen: Sequence[Tensor] | None = None

    def forward(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        known = self._known("forward", *map(_stride, tensors))
        self.recipe = self._suiting(known)
        if self.recipe is not None:
            found = replayed(self, self.recipe, tensors) if self.call.graph else None
            found = found or self._whole(self.recipe, tensors)
            outputs, self.kept = found or self._forward_by(self.recipe, tensors)
            return list(outputs)
        outputs = super().forward(tensors)
        if len(known) < MOST_RECIPES:
            self.written = written(GpuForwardText(self))
            known.append(self.written)
        return outputs

    def pack(self) -> list[Tensor]:
        """Nothing for autograd to keep, unless somebody wants to know what is kept: backward lets go of it piece by piece."""
        if self.recipe is None:
            return super().pack()
        about: Saved = self.recipe.about
        self.saved, self.saved_arenas = about.names, about.arenas
        if self.replay is not None or (not about.seen and _autograd._top_saved_tensors_default_hooks(True) is None):
            return []
        kept, self.kept = list(self.kept), ()
        return kept

    def backward(
        self, tensors: Sequence[Tensor], saved: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        mine, keep = saved or self.kept, _autograd._get_current_graph_task_keep_graph()
        if not keep:
            self.kept = ()
        try:
            return self._backward(tensors, mine, grads, keep, not saved)
        finally:
            if not keep:
                self.replay = None

    def _backward(
        self, tensors: Sequence[Tensor], saved: Saving, grads: Sequence[Tensor | None], keep: bool, owned: bool
    ) -> list[Tensor | None]:
        """`owned`: nobody else has what was saved."""
        found = None if self.recipe is None else self._suiting(self._known_back(self.recipe, grads))
        if found is None:
            mine = list(saved)
            if self.recipe is not None:
                mine = as_kept_otherwise(self, self.recipe.about, tensors, mine)
            return super().backward(tensors, mine, grads)
        results: list[Tensor | None] | None = None
        if not keep:
            results = None if self.replay is None else replayed_back(self, self.replay, found, tensors, saved, grads)
            whole = self._whole(found, tensors, saved, grads, owned) if results is None else results
            results = whole.finished() if isinstance(whole, Unfinished) else whole
        return self._backward_by(found, tensors, list(saved), grads, keep) if results is None else results

    def _whole(
        self,
        recipe: Recipe,
        tensors: Sequence[Tensor],
        saved: Saving | None = None,
        grads: Sequence[Tensor | None] = (),
        owned: bool = False,
        fresh: Fresh | None = None,
    ) -> Any:
        """By one call of C; None where the recipe does it. `owned`: nobody else has what was saved. `fresh` makes memory."""
        device, before = self.call.device, None if saved is None else self.whole
        if not can_lower(device):
            return None
        chosen = self.chosen()
        versions = Versions.of(recipe, device, before, isinstance(saved, Kept))
        whose = owned and before is not None
        rest = tensors, chosen, saved, grads, whose, current_stream(device), fresh or allocator(device)
        for fast in versions.kept:
            found = fast.run(fast.facts(self.indices), *rest)
            if found is not None:
                break
        else:
            rows = frozenset(range(self.kind.first_feed, len(tensors)))
            given = Given(tensors, rows, chosen, saved, [None if grad is None else grad.contiguous() for grad in grads])
            earlier = None if saved is None or self.recipe is None else (self.recipe, before)
            added = versions.add(recipe, earlier, self.indices, given)
            if added is None:
                return None
            fast, found = added, added.run(added.facts(self.indices), *rest)
        if saved is None and found is not None:
            self.whole = fast
        return found

    def _forward_by(self, recipe: Recipe, tensors: Sequence[Tensor]) -> Any:
        device = self.call.device
        rest = device, current_stream(device), allocator(device)
        return recipe.run(self._facts(recipe), tensors, self.chosen(), self.records, *rest)

    def _backward_by(
        self, recipe: Recipe, tensors: Sequence[Tensor], saved: list[Tensor], grads: Sequence[Tensor | None], keep: bool
    ) -> Any:
        device = self.call.device
        given = tensors, self.chosen(), saved, grads, self.records
        return recipe.run(self._facts(recipe), *given, device, current_stream(device), keep, allocator(device))

    def _facts(self, recipe: Recipe) -> tuple[Any, ...]:
        """What a recipe knows of the plan."""
        before = () if recipe is self.recipe or self.recipe is None else self.recipe.facts(self.indices)
        return recipe.facts(self.indices, before)

    def wrote_down(self, sweep: Backward, tensors: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        recipe = self.recipe or self.written
        known = [] if recipe is None else self._known_back(recipe, grads)
        if recipe is None or len(known) >= MOST_RECIPES:
            return
        known.append(written(GpuBackText(self, sweep, recipe, tensors, grads)))

    def chosen(self) -> Sequence[Tensor]:
        """What recipes know of the rows asked for, where these are not all."""
        if self._chosen is None:
            every = self.call.wanted and self.call.wanted[0].nodes is None  # what a call returns is of all nodes or of some
            self._chosen = () if every else chosen_rows(self.call, self.codes, self.indices)
        return self._chosen

    def _known(self, *key: Any) -> list[Recipe | None]:
        made, by = self.codes.recipes, (*key, _precision())
        known = made.get(by)
        return made.setdefault(by, []) if known is None else known

    def _known_back(self, recipe: Recipe, grads: Sequence[Tensor | None]) -> list[Recipe | None]:
        return self._known("backward", id(recipe), bool(self.must), *[grad is None for grad in grads])

    def _suiting(self, known: Sequence[Recipe | None]) -> Recipe | None:
        for one in known:
            if one is not None and one.suits(self.indices):
                return one
        return None
