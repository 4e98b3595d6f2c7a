"""The backward steps of a group as one kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.graph.tape import Value
from weft.plan.plan import Group
from weft.run.gpu.bind import Binding
from weft.run.gpu.simpler import in_simpler_words
from weft.run.gpu.sweep import Part, walk
from weft.run.indices import BackIndex
from weft.run.typerun import TypeRun

if TYPE_CHECKING:
    from weft.run.backward import Backward

_autograd: Any = torch._C._autograd

Gradients = tuple[Tensor | None, list[tuple[Tensor, BackIndex]]]
"""What comes from outside the group, and what its own readers give back."""


class BackSweep:
    """One group of one backward pass."""

    def __init__(self, backward: Backward, number: int, group: Group, runs: list[TypeRun]) -> None:
        self.backward, self.number, self.group, self.runs = backward, number, group, runs
        self.gradients: dict[tuple[int, str], Gradients] = {}
        for run in runs:
            for value in backward.cut[run.type][1]["back"].takes:
                name = self.recurrent_gradient(run, value)
                if name is not None:
                    self.gradients[run.type, value.name] = backward.parts_of_gradient(number, run, name)

    def run(self) -> bool:
        """Run all steps; or do nothing, where a kernel cannot."""
        if len(self.runs) < len(self.group.types):
            return False
        key = ("backward", tuple(self._key(run) for run in self.runs))
        parts = lambda: [self._part(run, f"t{i}_") for i, run in enumerate(self.runs)]  # noqa: E731
        found = walk(self.number, self.runs, key, parts, True)
        if found is None:
            return False
        self.backward.swept[self.number] = found, self
        for run in self.runs:
            self._make_places(run)
            run.gradients = {name: parts for (type, name), parts in self.gradients.items() if type == run.type}
        found.run(self.number, self.runs)
        return True

    def recurrent_gradient(self, run: TypeRun, value: Value) -> Any:
        name: Any = run.code.input_name.get(value.name)
        return name[1] if name is not None and name[0] == "ct" and name[1] in run.code.role.recurrent_out else None

    def _key(self, run: TypeRun) -> Any:
        code = self.backward.cut[run.type][1]["back"]
        shape = tuple(
            (name, outside is None, tuple(back.single is None for _, back in inner))
            for (type, name), (outside, inner) in self.gradients.items()
            if type == run.type
        )
        strides = tuple(run.whole(value).stride() for value in code.takes if value.rows is None and value.constant is None)
        there = tuple(value.name in run.store for value in code.takes)
        return id(code), shape, strides, there

    def _part(self, run: TypeRun, prefix: str) -> Part:
        cut, codes = self.backward.cut[run.type]
        code, binding = codes["back"], Binding(prefix)
        piece, stores = in_simpler_words(cut.pieces["back"], code.stores)
        for value in code.takes:
            name = self.recurrent_gradient(run, value)
            at = run.recurrent(value)
            if name is not None:
                outside, inner = self.gradients[run.type, value.name]
                singles = [(i, back.single is not None) for i, (_, back) in enumerate(inner)]
                binding.collected(value, name[0], outside is not None, singles)
                if value in cut.pieces["sums"].takes:
                    binding.own(value)
            elif at is not None and value.name not in run.store:
                binding.gathered(run, value, at)
            else:
                binding.plain(run, value, piece)
        for value in stores:
            binding.own(value)
        return Part(run, piece, stores, binding, bool(cut.overwritten or cut.over_collected))

    def _make_places(self, run: TypeRun) -> None:
        cut, codes = self.backward.cut[run.type]
        for value in codes["back"].takes:
            summed = self.recurrent_gradient(run, value) is not None and value in cut.pieces["sums"].takes
            if summed and value.name not in run.store:  # what is given back as it is has its memory already
                run.store[value.name] = run.empty(value)
        keep = _autograd._get_current_graph_task_keep_graph()
        for value in codes["back"].stores:
            if value.name not in run.store:
                over = None if keep else cut.overwritten.get(value.name)
                run.store[value.name] = run.empty(value) if over is None else run.store[over.kept]
